"""Encoders small enough to be trained for a test: how they are made and trained, and what is read off them.

The attention that is read is the first token's in the last layer, which the classifier answers from: the mean of the heads, summed over
the pieces of each word, and as shares of what goes to words at all.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm
from transformers import BertForSequenceClassification, BertTokenizerFast

from sentiment_models.data.labelled import Example, batches
from sentiment_models.evaluation.metrics import Labels
from sentiment_models.training.optimizer import make_optimizer
from sentiment_models.training.scratch import Shape

# Below it a weight has no logarithm worth having; padded words have exactly 0.
WEIGHT_MIN = 1e-9
# Rows of a batch that is only read.
READ_ROWS = 128

Weights = NDArray[np.float32]
"""Word weights of texts, [texts, most words]; those of a text sum to 1, and behind its words stand zeros."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Tokenized texts.

    ``ids``: the tokens of each with the special ones. ``words``: the number of the word that each token is a piece of, from 1; 0 for a
    special token. ``labels``: [texts].
    """

    ids: list[list[int]]
    words: list[list[int]]
    labels: Labels

    def counts(self) -> NDArray[np.int64]:
        """How many words of each text are read, [texts]."""
        return np.array([max(one) for one in self.words], np.int64)


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded rows of texts: ``index`` [rows] says which, ``ids``, ``mask`` and ``words`` are [rows, tokens], ``labels`` [rows]."""

    index: torch.Tensor
    ids: torch.Tensor
    mask: torch.Tensor
    words: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True, slots=True)
class Course:
    """How a model is trained; ``seed``: of the order of the texts and of dropout."""

    epochs: int
    learning_rate: float
    batch_rows: int
    seed: int
    warmup_fraction: float = 0.1
    weight_decay: float = 0.01


class Read(NamedTuple):
    """What a model makes of texts: ``probabilities`` [texts, labels], ``weights`` of words, and the share of attention that words get."""

    probabilities: NDArray[np.float32]
    weights: Weights
    on_words: float


def encode(tokenizer: BertTokenizerFast, examples: Sequence[Example], tokens_max: int) -> Texts:
    """Tokenize texts, cut to ``tokens_max`` tokens; those without a word are left out."""
    found = tokenizer([example.text for example in examples], truncation=True, max_length=tokens_max)
    words = [[0 if word is None else word + 1 for word in found.word_ids(row)] for row in range(len(examples))]
    kept = [row for row in range(len(examples)) if any(words[row])]
    labels = np.array([examples[row].label for row in kept], np.int64)
    return Texts([found["input_ids"][row] for row in kept], [words[row] for row in kept], labels)


def make_encoder(shape: Shape, vocabulary: int, tokens_max: int, labels: int, dropout: float, seed: int) -> BertForSequenceClassification:
    """Make an untrained BERT whose attention can be read; equal seeds give equal weights."""
    torch.manual_seed(seed)
    config = shape.config(vocabulary, tokens_max, dropout)
    config.num_labels = labels
    # Fused attention hands out no weights.
    config._attn_implementation = "eager"
    return BertForSequenceClassification(config)  # type: ignore[no-untyped-call]  # transformers leaves it untyped


def freeze_uniform(model: BertForSequenceClassification, layers: Sequence[int]) -> None:
    """Make every token of these layers attend to all tokens of its text alike, and keep it so while the model is trained.

    A query of zeros scores all keys alike, and softmax leaves padding out as ever.
    """
    queries = tuple(f"bert.encoder.layer.{layer}.attention.self.query." for layer in layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(queries):
                parameter.zero_()
                parameter.requires_grad_(False)


def fit(
    model: torch.nn.Module, texts: Texts, loss: Callable[[Batch], torch.Tensor], course: Course, title: str, tokens_max: int = 2**14
) -> None:
    """Minimise ``loss``, the mean of a batch, over the texts.

    Args:
        model: what is trained, in place.
        texts: what it is shown.
        loss: of the model on a batch.
        course: how.
        title: stands before the progress bar.
        tokens_max: most tokens of a batch, padding included.
    """
    lengths = [len(ids) for ids in texts.ids]
    orders = (random.Random(f"{course.seed}/{epoch}") for epoch in range(course.epochs))  # noqa: S311 - an order
    plan = [batch for order in orders for batch in batches(lengths, course.batch_rows, tokens_max, order)]
    optimizer, schedule = make_optimizer(model, course, len(plan))
    torch.manual_seed(course.seed)
    model.train()
    for index in tqdm(plan, desc=title, unit="batch", mininterval=5):
        found = loss(padded(texts, index))
        found.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()


def padded(texts: Texts, index: Sequence[int]) -> Batch:
    """Pad texts to the longest of them."""
    length = max(len(texts.ids[one]) for one in index)
    ids, words = (torch.tensor([one[i] + [0] * (length - len(one[i])) for i in index]) for one in (texts.ids, texts.words))
    mask = torch.tensor([[1] * len(texts.ids[i]) + [0] * (length - len(texts.ids[i])) for i in index])
    return Batch(torch.tensor(index), ids, mask, words, torch.from_numpy(texts.labels[list(index)]))


def answer(model: BertForSequenceClassification, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits, [rows, labels], and the attention that is read, [rows, tokens]."""
    found = model(input_ids=batch.ids, attention_mask=batch.mask, output_attentions=True)
    return found.logits, found.attentions[-1][:, :, 0].mean(1)


def over_words(weights: torch.Tensor, words: torch.Tensor, most: int) -> torch.Tensor:
    """Sum weights of tokens by word and make those of each text sum to 1, [rows, most words]."""
    sums = weights.new_zeros(len(weights), most + 1).scatter_add(1, words, weights)[:, 1:]
    return sums / sums.sum(1, keepdim=True).clamp(min=WEIGHT_MIN)


@torch.no_grad()
def read(model: BertForSequenceClassification, texts: Texts) -> Read:
    """Run a trained model over texts."""
    model.eval()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    most = int(texts.counts().max())
    probabilities = np.zeros((len(texts.ids), model.config.num_labels), np.float32)
    weights = np.zeros((len(texts.ids), most), np.float32)
    on_words = 0.0
    for index in in_order(texts):
        batch = padded(texts, index)
        logits, attention = answer(model, batch)
        probabilities[index] = logits.softmax(-1).numpy()
        weights[index] = over_words(attention, batch.words, most).numpy()
        on_words += float(attention[batch.words > 0].sum())
    return Read(probabilities, weights, on_words / len(texts.ids))


def in_order(texts: Texts) -> Iterator[list[int]]:
    """Yield the indices of texts of like length."""
    order = sorted(range(len(texts.ids)), key=lambda index: len(texts.ids[index]))
    return (order[start : start + READ_ROWS] for start in range(0, len(order), READ_ROWS))
