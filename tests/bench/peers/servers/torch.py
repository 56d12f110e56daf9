"""What transformers and sentence-transformers do in process: torch, fp32, texts sorted by length, batches of 32. No server.

fp32 is what the bundle's weights are read as; 32 is ``encode``'s default (sbert.net, "Speeding up Inference"). Answers lines of
JSON: ``{"texts": [...], "rows": n}`` with ``{"answers": [[label, score], ...], "seconds", "core_s"}``.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from tests.bench.peers.servers.options import Options


class Classifier:
    """The bundle's weights."""

    def __init__(self, bundle: str, threads: int) -> None:
        torch.set_num_threads(threads)
        manifest = json.loads((Path(bundle) / "manifest.json").read_text())
        self._labels: list[str] = manifest["labels"]
        self._temperature: float = manifest["calibration"]["temperature"]
        self._tokens_max: int = manifest["max_tokens"]
        self._tokenizer = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_file=str(Path(bundle) / "tokenizer.json"), pad_token="[PAD]"
        )
        self._model = transformers.AutoModelForSequenceClassification.from_pretrained(bundle, dtype=torch.float32).eval()

    def classify(self, texts: Sequence[str], rows: int) -> list[tuple[str, float]]:
        """The label of each text and its probability."""
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        answers: dict[int, tuple[str, float]] = {}
        for start in range(0, len(order), rows):
            places = order[start : start + rows]
            batch = self._tokenizer(
                [texts[place] for place in places], padding=True, truncation=True, max_length=self._tokens_max, return_tensors="pt"
            )
            with torch.inference_mode():
                scores = torch.softmax(self._model(**batch).logits / self._temperature, dim=-1)
            best = scores.max(dim=-1)
            for place, score, index in zip(places, best.values.tolist(), best.indices.tolist(), strict=True):
                answers[place] = (self._labels[index], score)
        return [answers[place] for place in range(len(texts))]


def main() -> None:
    """Answer until the input ends."""
    options = Options.read()
    classifier = Classifier(options.bundle, options.instances)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        begun, core = time.perf_counter(), time.process_time()
        answers = classifier.classify(command["texts"], command["rows"])
        spent = {"seconds": time.perf_counter() - begun, "core_s": time.process_time() - core}
        print(json.dumps({"answers": answers, **spent}), flush=True)


if __name__ == "__main__":
    main()
