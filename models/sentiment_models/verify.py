"""What a graph must prove before it may stand in a bundle: parity with torch, and indifference to batch mates."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sentiment.model.tensors import Feeds
from sentiment.model.tokenizer import Row
from sentiment_models.errors import ParityFailed
from sentiment_models.inference import Graph
from sentiment_models.metrics import Logits, probabilities

Reference = Callable[[Feeds], Logits]
"""The same computation in torch."""

# fp32 differs from torch by the order of sums only.
FP32_LOGIT_ERROR_MAX = 1e-4
# int8 rounds. On MiniLM-L6 the mean distance of probabilities is 0.005 to 0.007; three times that is another model.
INT8_PROBABILITY_ERROR_MEAN_MAX = 0.02
# The most that a probability may move with the row's batch mates, in fp32 and int8 on a CPU.
INVARIANCE = 1e-4
MIXED_ROWS = (1, 3, 8)
SHUFFLED_ROWS = (4, 16)
# A shuffled batch is padded by up to this many tokens beyond its longest row.
EXTRA_TOKENS_MAX = 32


@dataclass(frozen=True, slots=True)
class Parity:
    """How far a graph is from torch on the same weights."""

    rows: int
    logit_error_max: float
    probability_error_mean: float
    labels_changed: int


@dataclass(frozen=True, slots=True)
class Movement:
    """How far a row's answer moves when it is run with others instead of alone."""

    rows: int
    probability_max: float
    labels_changed: int


def parity(graph: Graph, reference: Reference, rows: Sequence[Row]) -> Parity:
    """Compare a graph with torch on the same feeds: batches of 1, 3 and 8 rows of mixed length, so mostly padded."""
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
    """Refuse a graph that does not compute what torch computes.

    Raises:
        ParityFailed: gives what was measured and the bound of this precision.
    """
    # Written so that NaN fails.
    if precision == "fp32" and not measured.logit_error_max <= FP32_LOGIT_ERROR_MAX:
        raise ParityFailed(f"the fp32 graph has logits {measured.logit_error_max:.2e} off torch's; the bound is {FP32_LOGIT_ERROR_MAX:.0e}")
    if not measured.probability_error_mean <= INT8_PROBABILITY_ERROR_MEAN_MAX:
        raise ParityFailed(
            f"the {precision} graph has probabilities {measured.probability_error_mean:.4f} off torch's in the mean; "
            f"the bound is {INT8_PROBABILITY_ERROR_MEAN_MAX}"
        )


def movement(graph: Graph, rows: Sequence[Row], seed: int = 1) -> Movement:
    """Run each row alone, then all shuffled into batches of 4 and of 16 that are padded up to 32 tokens longer than needed."""
    rng = random.Random(seed)  # noqa: S311 - it shuffles rows
    alone = probabilities(np.concatenate([graph.logits([row]) for row in rows]))
    moved, changed = 0.0, 0
    for size in SHUFFLED_ROWS:
        order = rng.sample(range(len(rows)), len(rows))
        for start in range(0, len(order), size):
            group = order[start : start + size]
            length = max(rows[index].tokens for index in group) + rng.randint(0, EXTRA_TOKENS_MAX)
            together = probabilities(graph.logits([rows[index] for index in group], min(length, graph.tokenizer.max_tokens)))
            moved = max(moved, float(np.abs(together - alone[group]).max()))
            changed += int((together.argmax(1) != alone[group].argmax(1)).sum())
    return Movement(len(rows), moved, changed)


def check_movement(precision: str, measured: Movement) -> None:
    """Refuse a graph whose answers depend on batch mates.

    Raises:
        ParityFailed: gives what was measured and the bound.
    """
    if not measured.probability_max <= INVARIANCE:
        raise ParityFailed(
            f"in the {precision} graph a row's probability moves by {measured.probability_max:.1e} with its batch mates; "
            f"the bound is {INVARIANCE:.0e}"
        )


def interleave(rows: Sequence[Row]) -> list[Row]:
    """Put short beside long, so that batches are padded."""
    ordered = sorted(rows, key=lambda row: row.tokens)
    return [row for pair in zip(ordered, reversed(ordered), strict=True) for row in pair][: len(ordered)]


def spread(rows: Sequence[Row], count: int) -> list[Row]:
    """Choose ``count`` rows spread evenly over the lengths, the longest among them."""
    ordered = sorted(rows, key=lambda row: row.tokens)
    if len(ordered) <= count:
        return ordered
    return [ordered[round(index * (len(ordered) - 1) / (count - 1))] for index in range(count)]


def _mixed(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    start = number = 0
    while start < len(rows):
        size = MIXED_ROWS[number % len(MIXED_ROWS)]
        yield rows[start : start + size]
        start, number = start + size, number + 1
