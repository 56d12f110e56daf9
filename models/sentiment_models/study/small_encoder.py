"""Small encoders for tests that train models: construction, training, answers and attention.

Attention here is that of the first token in the last layer, which the classifier reads: the mean over the heads, summed over the tokens of
each word, normalised over the words.
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
from sentiment_models.training import recipe
from sentiment_models.training.optimizer import make_optimizer
from sentiment_models.training.recipe import Shape
from sentiment_models.training.scratch import bert_config

# Smaller weights are clipped before a logarithm or a division; padded words have exactly 0.
WEIGHT_MIN = 1e-9
# Rows of a batch without training.
READ_ROWS = 128

Weights = NDArray[np.float32]
"""Word weights of texts, [texts, most words], padded with zeros; those of a text sum to 1."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Tokenized texts.

    ``ids``: the tokens of each text, with special ones. ``words``: the word that each token belongs to, from 1; 0 for special tokens.
    ``labels``: [texts].
    """

    ids: list[list[int]]
    words: list[list[int]]
    labels: Labels

    def counts(self) -> NDArray[np.int64]:
        """Return the number of words of each text after truncation, [texts]."""
        return np.array([max(one) for one in self.words], np.int64)


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded rows: ``index`` [rows] of the texts, ``ids``, ``mask`` and ``words`` [rows, tokens], ``labels`` [rows]."""

    index: torch.Tensor
    ids: torch.Tensor
    mask: torch.Tensor
    words: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Course(recipe.Course):
    """Training settings. Those that count here: epochs, learning rate, rows of a batch, seed, warm-up and weight decay."""

    warmup_fraction: float = 0.1


class Read(NamedTuple):
    """A model's results on texts: ``probabilities`` [texts, labels], word ``weights``, and the share of attention on words."""

    probabilities: NDArray[np.float32]
    weights: Weights
    on_words: float


def encode(tokenizer: BertTokenizerFast, examples: Sequence[Example], tokens_max: int) -> Texts:
    """Tokenize texts, truncated to ``tokens_max`` tokens; texts without a word are left out."""
    found = tokenizer([example.text for example in examples], truncation=True, max_length=tokens_max)
    words = [[0 if word is None else word + 1 for word in found.word_ids(row)] for row in range(len(examples))]
    kept = [row for row in range(len(examples)) if any(words[row])]
    labels = np.array([examples[row].label for row in kept], np.int64)
    return Texts([found["input_ids"][row] for row in kept], [words[row] for row in kept], labels)


def make_encoder(shape: Shape, vocabulary: int, tokens_max: int, labels: int, dropout: float, seed: int) -> BertForSequenceClassification:
    """Create an untrained BERT that returns its attention; equal seeds give equal parameters."""
    torch.manual_seed(seed)
    config = bert_config(shape, vocabulary, tokens_max, dropout)
    config.num_labels = labels
    # Fused attention does not return the weights.
    config._attn_implementation = "eager"
    return BertForSequenceClassification(config)  # type: ignore[no-untyped-call]  # transformers leaves it untyped


def freeze_uniform(model: BertForSequenceClassification, layers: Sequence[int]) -> None:
    """Make the attention of these layers uniform over the text and keep it so in training.

    A zero query scores all keys equally; the softmax still excludes padding.
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
    """Train a model in place.

    Args:
        model: the model.
        texts: the training texts.
        loss: the mean loss of a batch.
        course: training settings.
        title: title of the progress bar.
        tokens_max: the most tokens of a batch, including padding.
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
    """Make a batch of texts, padded to the longest."""
    length = max(len(texts.ids[one]) for one in index)
    ids, words = (torch.tensor([one[i] + [0] * (length - len(one[i])) for i in index]) for one in (texts.ids, texts.words))
    mask = torch.tensor([[1] * len(texts.ids[i]) + [0] * (length - len(texts.ids[i])) for i in index])
    return Batch(torch.tensor(index), ids, mask, words, torch.from_numpy(texts.labels[list(index)]))


def answer(model: BertForSequenceClassification, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits [rows, labels] and the first token's last-layer attention [rows, tokens]."""
    found = model(input_ids=batch.ids, attention_mask=batch.mask, output_attentions=True)
    return found.logits, found.attentions[-1][:, :, 0].mean(1)


def over_words(weights: torch.Tensor, words: torch.Tensor, most: int) -> torch.Tensor:
    """Sum token weights by word and normalise them per text, [rows, most words]."""
    sums = weights.new_zeros(len(weights), most + 1).scatter_add(1, words, weights)[:, 1:]
    return sums / sums.sum(1, keepdim=True).clamp(min=WEIGHT_MIN)


@torch.no_grad()
def read(model: BertForSequenceClassification, texts: Texts) -> Read:
    """Run a trained model on texts."""
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
    """Yield batches of indices of texts with similar length."""
    order = sorted(range(len(texts.ids)), key=lambda index: len(texts.ids[index]))
    return (order[start : start + READ_ROWS] for start in range(0, len(order), READ_ROWS))
