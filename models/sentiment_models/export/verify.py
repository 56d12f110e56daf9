"""The checks of a graph before it goes into a bundle: parity with torch, and answers that do not depend on batch mates."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentiment.model.session import ExplainSession
from sentiment.model.tensors import Feeds, pad
from sentiment.model.tokenizer import Row, Tokenizer
from sentiment_models.errors import ParityFailed
from sentiment_models.evaluation.metrics import Logits, probabilities
from sentiment_models.export.inference import Graph

Reference = Callable[[Feeds], Logits]
"""Computes the logits of the same feeds in torch."""


@dataclass(frozen=True, slots=True)
class Explained:
    """The outputs of an explain graph.

    ``logits``: [rows, labels]. ``attentions`` and ``attention_gradients``: per layer, attention and the gradient of the chosen logits by
    it, [rows, heads, tokens, tokens]. ``hidden``: what each layer reads, and what the last one gives, [rows, tokens, width]. ``dots``: the
    gradient by the word embeddings times the embeddings of the text and of the baseline, [rows, tokens, 2].
    """

    logits: Logits
    attentions: list[NDArray[np.float32]]
    attention_gradients: list[NDArray[np.float32]]
    hidden: list[NDArray[np.float32]]
    dots: NDArray[np.float32]


ExplainReference = Callable[[Feeds, NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]], Explained]
"""Computes the same in torch from feeds, labels, alphas and baseline ids."""

# fp32 differs from torch only by the order of sums.
FP32_LOGIT_ERROR_MAX = 1e-4
EXPLAIN_ERROR_MAX = 1e-4
# int8 rounds. On MiniLM-L6 the mean error of probabilities is 0.005 to 0.007; three times that is an error of the graph.
INT8_PROBABILITY_ERROR_MEAN_MAX = 0.02
# Maximum change of a probability by the row's batch mates, in fp32 and int8 on a CPU.
INVARIANCE = 1e-4
MIXED_ROWS = (1, 3, 8)
SHUFFLED_ROWS = (4, 16)
# Attention weights in a batch of the explain graph: half a GiB. Intermediate results take several times that, in torch too. For a large
# BERT the limit is one row of 512 tokens.
EXPLAIN_NUMBERS_MAX = 2**27
# A shuffled batch is padded by up to this many tokens beyond its longest row.
EXTRA_TOKENS_MAX = 32


@dataclass(frozen=True, slots=True)
class Parity:
    """The difference between a graph and torch on the same weights."""

    rows: int
    logit_error_max: float
    probability_error_mean: float
    labels_changed: int


@dataclass(frozen=True, slots=True)
class Movement:
    """The change of answers when rows run in batches instead of alone."""

    rows: int
    probability_max: float
    labels_changed: int


def parity(graph: Graph, reference: Reference, rows: Sequence[Row]) -> Parity:
    """Compare a graph with torch on the same feeds: batches of 1, 3 and 8 rows of mixed length, most of them padded."""
    found: list[Logits] = []
    wanted: list[Logits] = []
    for batch in _mixed(rows):
        found.append(graph.logits(batch))
        wanted.append(reference(graph.feeds(batch)))
    ours, theirs = np.concatenate(found), np.concatenate(wanted)
    return Parity(
        rows=len(rows),
        logit_error_max=float(np.abs(ours - theirs).max()),
        probability_error_mean=float(np.abs(probabilities(ours) - probabilities(theirs)).mean()),
        labels_changed=int((ours.argmax(1) != theirs.argmax(1)).sum()),
    )


def check_parity(precision: str, measured: Parity) -> None:
    """Check that a graph computes what torch computes.

    Raises:
        ParityFailed: it does not. Names the measured error and the limit of this precision.
    """
    # Written so that NaN fails.
    if precision == "fp32" and not measured.logit_error_max <= FP32_LOGIT_ERROR_MAX:
        raise ParityFailed(
            f"logits of the fp32 graph differ from torch by {measured.logit_error_max:.2e}; the limit is {FP32_LOGIT_ERROR_MAX:.0e}"
        )
    if not measured.probability_error_mean <= INT8_PROBABILITY_ERROR_MEAN_MAX:
        raise ParityFailed(
            f"probabilities of the {precision} graph differ from torch by {measured.probability_error_mean:.4f} on average; "
            f"the limit is {INT8_PROBABILITY_ERROR_MEAN_MAX}"
        )


def movement(graph: Graph, rows: Sequence[Row], seed: int = 1) -> Movement:
    """Run each row alone, then all rows shuffled into batches of 4 and of 16, padded by up to 32 tokens more than needed."""
    rng = random.Random(seed)  # noqa: S311 - it shuffles rows
    alone = probabilities(np.concatenate([graph.logits([row]) for row in rows]))
    moved, changed = 0.0, 0
    for size in SHUFFLED_ROWS:
        order = rng.sample(range(len(rows)), len(rows))
        for start in range(0, len(order), size):
            group = order[start : start + size]
            length = max(rows[index].tokens for index in group) + rng.randint(0, EXTRA_TOKENS_MAX)
            together = probabilities(graph.logits([rows[index] for index in group], min(length, graph.tokenizer.max_tokens)))
            # Unlike Python's max, numpy's keeps NaN.
            moved = float(np.max([moved, np.abs(together - alone[group]).max()]))
            changed += int((together.argmax(1) != alone[group].argmax(1)).sum())
    return Movement(len(rows), moved, changed)


def check_movement(precision: str, measured: Movement) -> None:
    """Check that a graph's answers do not depend on batch mates.

    Raises:
        ParityFailed: they do. Names the measured change and the limit.
    """
    if not measured.probability_max <= INVARIANCE:
        raise ParityFailed(
            f"batch mates change a probability of the {precision} graph by {measured.probability_max:.1e}; the limit is {INVARIANCE:.0e}"
        )


def explain_parity(session: ExplainSession, tokenizer: Tokenizer, reference: ExplainReference, rows: Sequence[Row], seed: int = 1) -> float:
    """Compare an explain graph with torch, with random labels and alphas and a baseline of mostly [PAD], in batches of up to 8 rows.

    Return the largest error of any output, relative to the largest absolute value of that output if that is over 1.
    """
    rng = np.random.default_rng(seed)
    names = [f"{kind}.{layer}" for kind in ("attention", "attention_gradient") for layer in range(session.layers)]
    states = [f"hidden.{index}" for index in range(session.layers + 1)] if session.hidden else []
    worst = 0.0
    for batch in _mixed(rows, EXPLAIN_NUMBERS_MAX / (session.layers * session.heads)):
        feeds = pad(batch, session.inputs, tokenizer.pad_id, left=False)
        baseline = np.where(rng.random(feeds["input_ids"].shape) < 0.1, feeds["input_ids"], tokenizer.pad_id)
        label, alpha = rng.integers(0, session.labels, len(batch)), rng.random(len(batch), np.float32)
        found = session.run(feeds, ["logits", "embedding_dots", *names, *states], label, alpha, baseline)
        wanted = reference(feeds, label, alpha, baseline)
        read = feeds["attention_mask"].astype(bool)
        # Rows of padding are ignored: nothing reads their attention.
        layers = zip(names, [*wanted.attentions, *wanted.attention_gradients], strict=True)
        pairs = [(found[name].transpose(0, 2, 1, 3)[read], one.transpose(0, 2, 1, 3)[read]) for name, one in layers]
        pairs += [(found[name][read], one[read]) for name, one in zip(states, wanted.hidden, strict=session.hidden)]
        pairs += [(found["logits"], wanted.logits), (found["embedding_dots"][read][:, :2], wanted.dots[read])]
        # Unlike Python's max, numpy's keeps NaN.
        worst = float(np.max([worst, *(np.abs(ours - theirs).max() / np.maximum(1.0, np.abs(theirs).max()) for ours, theirs in pairs)]))
    return worst


def check_explain_parity(measured: float) -> None:
    """Check that an explain graph computes what torch computes.

    Raises:
        ParityFailed: it does not. Names the measured error and the limit.
    """
    if not measured <= EXPLAIN_ERROR_MAX:
        raise ParityFailed(f"the explain graph differs from torch by {measured:.2e}; the limit is {EXPLAIN_ERROR_MAX:.0e}")


def interleave(rows: Sequence[Row]) -> list[Row]:
    """Alternate short and long rows, so that batches are padded."""
    ordered = sorted(rows, key=lambda row: row.tokens)
    return [row for pair in zip(ordered, reversed(ordered), strict=True) for row in pair][: len(ordered)]


def spread(rows: Sequence[Row], count: int) -> list[Row]:
    """Choose ``count`` rows spread evenly over the lengths, the longest included."""
    ordered = sorted(rows, key=lambda row: row.tokens)
    if len(ordered) <= count:
        return ordered
    return [ordered[round(index * (len(ordered) - 1) / (count - 1))] for index in range(count)]


def _mixed(rows: Sequence[Row], squares_max: float = math.inf) -> Iterator[Sequence[Row]]:
    """Yield batches of 1, 3 and 8 rows in turn, fewer where rows x tokens x tokens would be over ``squares_max``."""
    start = number = 0
    while start < len(rows):
        batch = rows[start : start + MIXED_ROWS[number % len(MIXED_ROWS)]]
        while len(batch) > 1 and len(batch) * max(row.tokens for row in batch) ** 2 > squares_max:
            batch = batch[:-1]
        yield batch
        start, number = start + len(batch), number + 1
