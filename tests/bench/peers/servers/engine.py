"""What all peers share, whatever computes the logits: the bundle's tokenizer, its temperature and its labels.

Knows nothing of the service: it is what a user would write who has the bundle.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

Answer = tuple[str, float]


class Engine(ABC):
    """A bundle's classifier. ``classify`` may be called from several threads at once."""

    def __init__(self, bundle: str) -> None:
        self.folder = Path(bundle)
        self.manifest: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text())
        self._labels: list[str] = self.manifest["labels"]
        self._temperature: float = self.manifest["calibration"]["temperature"]
        self._tokenizer = tokenizers.Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(self.manifest["max_tokens"])
        pad_id = json.loads((self.folder / "config.json").read_text()).get("pad_token_id", 0)
        # To the longest of the batch, as the tokenizer's own documentation does.
        self._tokenizer.enable_padding(pad_id=pad_id, pad_token=self._tokenizer.id_to_token(pad_id))

    @abstractmethod
    def logits(self, rows: Sequence[tokenizers.Encoding]) -> list[list[float]]:
        """The logits of a batch [rows][labels]; all rows are padded to one length."""

    def classify(self, texts: Sequence[str]) -> list[Answer]:
        """The label of each text and its probability."""
        # A further logit, that of mixed texts, does not belong to a label.
        return [self._answer(row[: len(self._labels)]) for row in self.logits(self._tokenizer.encode_batch(list(texts)))]

    def _answer(self, logits: list[float]) -> Answer:
        best = max(range(len(logits)), key=logits.__getitem__)
        total = math.fsum(math.exp((logit - logits[best]) / self._temperature) for logit in logits)
        return self._labels[best], 1 / total
