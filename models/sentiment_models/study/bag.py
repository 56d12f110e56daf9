"""A bag of embeddings with given word weights: the diagnostic model of Wiegreffe and Pinter 2019, section 3.4.

Each word's embedding passes one tanh layer that sees no other word. The text is the weighted sum of the results, which one linear
layer classifies. Besides the words themselves, the weights are the bag's only information on a text.
"""

import numpy as np
import torch

from sentiment_models.evaluation.metrics import Probabilities
from sentiment_models.study.small_encoder import Batch, Course, Texts, Weights, fit, in_order, padded


class Bag(torch.nn.Module):
    """The model. Without given weights it learns a score per word, and the weights are the softmax of the scores over the text."""

    def __init__(self, vocabulary: int, width: int, labels: int, dropout: float, seed: int) -> None:
        """Initialise an untrained bag; equal seeds give equal parameters."""
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
            words: the word that each token belongs to, from 1; 0 for special tokens and padding. A word is the mean of its tokens.
            weights: word weights, [rows, words or more]; None: learned.
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
    """Return equal weights for all words of a text."""
    counts = texts.counts()[:, None]
    weights: Weights = ((np.arange(counts.max()) < counts) / counts).astype(np.float32)
    return weights


def train_bag(bag: Bag, texts: Texts, weights: Weights | None, course: Course, title: str) -> None:
    """Train a bag with given weights, [texts, words]; None: with its own."""

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
