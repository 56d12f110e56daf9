"""A bag of embeddings whose words are weighed by weights from elsewhere: the diagnostic of Wiegreffe and Pinter 2019, section 3.4.

Each word is its embedding, put through one layer with tanh that sees no other word; the text is their weighted sum, and one linear layer
answers from it. What the weights tell of a text is all that the bag knows beyond the words themselves.
"""

import numpy as np
import torch

from sentiment_models.evaluation.metrics import Probabilities
from sentiment_models.explanations.small_encoder import Batch, Course, Texts, Weights, fit, in_order, padded

UNIFORM, LEARNED, ATTENTION, ADVERSARY = "uniform", "learned", "attention", "adversary"
"""Whose weights: none's, the bag's own, the encoder's of its seed, the adversary's."""


class Bag(torch.nn.Module):
    """``weights`` None: the bag learns a score of each word and weighs by its softmax over the text."""

    def __init__(self, vocabulary: int, width: int, labels: int, dropout: float, seed: int) -> None:
        """Make an untrained one; equal seeds give equal weights."""
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(vocabulary, width)
        torch.nn.init.normal_(self.embedding.weight, std=0.1)
        self.hidden = torch.nn.Linear(width, width)
        self.dropout = torch.nn.Dropout(dropout)
        self.score = torch.nn.Linear(width, 1)
        self.output = torch.nn.Linear(width, labels)

    def forward(self, ids: torch.Tensor, words: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """Return logits, [rows, labels].

        Args:
            ids: tokens, [rows, tokens].
            words: of which word each token is a piece, from 1; 0 for special tokens and padding. A word is the mean of its pieces.
            weights: of the words, [rows, words or more], None: learned.
        """
        most = int(words.max())
        pieces = torch.nn.functional.one_hot(words, most + 1)[:, :, 1:].float()
        pieces_of_word = pieces.sum(1)
        means = torch.einsum("rtw,rtd->rwd", pieces, self.embedding(ids)) / pieces_of_word.clamp(min=1)[:, :, None]
        states = torch.tanh(self.hidden(self.dropout(means)))
        if weights is None:
            scores = self.score(states).squeeze(-1).masked_fill(pieces_of_word == 0, -torch.inf)
            weights = scores.softmax(-1)
        logits: torch.Tensor = self.output(self.dropout(torch.einsum("rw,rwd->rd", weights[:, :most], states)))
        return logits


def uniform_weights(texts: Texts) -> Weights:
    """Weigh all words of a text alike."""
    counts = texts.counts()[:, None]
    weights: Weights = ((np.arange(counts.max()) < counts) / counts).astype(np.float32)
    return weights


def train_bag(bag: Bag, texts: Texts, weights: Weights | None, course: Course, title: str) -> None:
    """Train a bag under given weights, [texts, words], or, None, under its own."""

    def loss(batch: Batch) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(bag(batch.ids, batch.words, _of(weights, batch)), batch.labels)

    fit(bag, texts, loss, course, title)


@torch.no_grad()
def read_bag(bag: Bag, texts: Texts, weights: Weights | None) -> Probabilities:
    """Return the probabilities of a trained bag, [texts, labels]."""
    found = np.zeros((len(texts.ids), bag.output.out_features), np.float64)
    for index in in_order(texts):
        batch = padded(texts, index)
        found[index] = bag(batch.ids, batch.words, _of(weights, batch)).softmax(-1).numpy()
    return found


def _of(weights: Weights | None, batch: Batch) -> torch.Tensor | None:
    return None if weights is None else torch.from_numpy(weights[batch.index.numpy()])
