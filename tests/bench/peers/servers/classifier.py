"""The graph and tokenizer that all peers share, as a user of theirs would write it. Knows nothing of the service.

One thread a session and no spinning: two instances on two cores, not two pools of threads for the same cores
(onnxruntime.ai/docs/performance/tune-performance/threading.html).
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import tokenizers


class Classifier:
    """A bundle's first graph. ``classify`` may be called from several threads at once."""

    def __init__(self, bundle: str) -> None:
        folder = Path(bundle)
        manifest = json.loads((folder / "manifest.json").read_text())
        graph = manifest["graphs"]["classify"][0]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # As we do, lest x86 without VNNI computes wrong products faster.
        options.add_session_config_entry("session.x64quantprecision", "1")
        self._session = onnxruntime.InferenceSession(str(folder / graph["file"]), options, providers=["CPUExecutionProvider"])
        self._inputs: list[str] = graph["inputs"]
        self._labels: list[str] = manifest["labels"]
        self._temperature: float = manifest["calibration"]["temperature"]
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(manifest["max_tokens"])
        pad_id = json.loads((folder / "config.json").read_text()).get("pad_token_id", 0)
        # To the longest of the batch, as the tokenizer's own documentation does.
        self._tokenizer.enable_padding(pad_id=pad_id, pad_token=self._tokenizer.id_to_token(pad_id))

    def classify(self, texts: Sequence[str]) -> list[tuple[str, float]]:
        """The label of each text and its probability."""
        encoded = self._tokenizer.encode_batch(list(texts))
        arrays = {
            "input_ids": [row.ids for row in encoded],
            "attention_mask": [row.attention_mask for row in encoded],
            "token_type_ids": [row.type_ids for row in encoded],
        }
        feeds = {name: np.array(arrays[name], dtype=np.int64) for name in self._inputs}
        (logits,) = self._session.run(["logits"], feeds)
        return [self._answer(row) for row in logits.tolist()]

    def _answer(self, logits: list[float]) -> tuple[str, float]:
        best = max(range(len(logits)), key=logits.__getitem__)
        total = math.fsum(math.exp((logit - logits[best]) / self._temperature) for logit in logits)
        return self._labels[best], 1 / total
