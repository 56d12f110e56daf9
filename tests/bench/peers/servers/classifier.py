"""The graph and tokenizer that all servers share but those with weights of their own.

One thread a session and no spinning: two instances on two cores, not two pools of threads for the same cores
(onnxruntime.ai/docs/performance/tune-performance/threading.html).
"""

from collections.abc import Sequence

import numpy as np
import onnxruntime
import tokenizers

from tests.bench.peers.servers.engine import Engine


class Classifier(Engine):
    """A bundle's first graph in ONNX Runtime."""

    def __init__(self, bundle: str) -> None:
        super().__init__(bundle)
        graph = self.manifest["graphs"]["classify"][0]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # As we do, lest x86 without VNNI computes wrong products faster.
        if not graph.get("pairs_fit"):
            options.add_session_config_entry("session.x64quantprecision", "1")
        self._session = onnxruntime.InferenceSession(str(self.folder / graph["file"]), options, providers=["CPUExecutionProvider"])
        self._inputs: list[str] = graph["inputs"]

    def logits(self, rows: Sequence[tokenizers.Encoding]) -> list[list[float]]:
        """In one run."""
        columns = {
            "input_ids": [row.ids for row in rows],
            "attention_mask": [row.attention_mask for row in rows],
            "token_type_ids": [row.type_ids for row in rows],
        }
        (logits,) = self._session.run(["logits"], {name: np.array(columns[name], dtype=np.int64) for name in self._inputs})
        values: list[list[float]] = logits.tolist()
        return values
