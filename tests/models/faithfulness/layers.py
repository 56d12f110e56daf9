"""Last layers for tests: of tiny random classifiers, and one whose tokens vote, so that its answers can be counted by hand."""

from collections.abc import Sequence
from pathlib import Path

import torch

from sentiment.model.tokenizer import Row, Tokenizer
from sentiment_models.study.last_layer import Below, LastLayer, load_last_layer
from tests.models.tiny_families import MAX_TOKENS, TINY, save_tiny

TEXTS = ("the film was not good at all , but i liked the end", "dull", "It was not good. I liked the good end.", "a great story !")


def tiny_layer(folder: Path, family: str) -> tuple[LastLayer, list[Row]]:
    """A tiny model's last layer, and TEXTS as it reads them."""
    save_tiny(folder, TINY[family])
    tokenizer = Tokenizer(folder / "tokenizer.json", MAX_TOKENS)
    layer = load_last_layer(folder, tokenizer.pad_id)
    assert layer is not None
    return layer, tokenizer.encode_many(list(TEXTS))


class Votes:
    """In the place of a LastLayer: one text; the logits are 0 and the weighted mean of what its tokens say, beside what the state says."""

    def __init__(self, attention: Sequence[Sequence[float]], votes: Sequence[float], state: float = 0.0) -> None:
        self.votes, self.state = torch.tensor(votes), state
        own = torch.tensor([attention])
        empty = Below(torch.zeros(1, own.shape[1], own.shape[2], 1), torch.zeros(1, 1), own, torch.ones(1, own.shape[2]).bool(), own[:, 0])
        self._below = Below(empty.values, empty.state, own, empty.real, self.logits(empty, own))
        self.calls = 0

    def below(self, rows: Sequence[Row]) -> Below:
        return self._below

    def logits(self, below: Below, weights: torch.Tensor) -> torch.Tensor:
        said = (weights.mean(-2) * self.votes).sum(-1) + self.state
        return torch.stack([torch.zeros_like(said), said], -1)

    def whole(self, rows: Sequence[Row], weights: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.logits(self._below, weights)
