"""How far answers depend on batch mates: measured on golden texts of each graph that is loaded.

A graph that quantizes activations with one scale for the whole batch, as ``quantize_dynamic`` of ONNX Runtime makes them, answers a text
otherwise beside a text with larger activations. Knows nothing of a runtime.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sentiment.model.tokenizer import Row

Inexact = Literal["alone", "batch", "refuse"]
"""What to do with a graph whose answers depend on batch mates: run each row by itself, batch its rows like others, or refuse it."""

# Each row runs twice, alone and in the batch. More rows, or other mates, find a little more, and a load takes longer.
ROWS_MAX = 8
TOKENS_MAX = 2048


@dataclass(frozen=True, slots=True)
class Moved:
    """The greatest change of a probability of ``rows`` rows in a batch, and the seconds that measuring it took."""

    probability: float
    rows: int
    seconds: float


def measure(state: Callable[[Sequence[Row]], Sequence[Sequence[float]]], rows: Sequence[Row]) -> Moved:
    """Run the shortest and the longest of the rows alone, and together in one batch.

    Args:
        state: runs rows as one batch and returns their probabilities.
        rows: any number. Those that would have no room beside another are left out.
    """
    begun = time.monotonic()
    batch = interleave([row for row in rows if 2 * row.tokens <= TOKENS_MAX])[:ROWS_MAX]
    while len(batch) * max((row.tokens for row in batch), default=0) > TOKENS_MAX:
        batch.pop()
    alone = [state([row])[0] for row in batch]
    # Unlike Python's max, numpy's keeps NaN.
    greatest = float(np.abs(np.subtract(state(batch), alone)).max()) if batch else 0.0
    return Moved(greatest, len(batch), time.monotonic() - begun)


def interleave(rows: Sequence[Row]) -> list[Row]:
    """Alternate short and long rows, so that batches are padded."""
    ordered = sorted(rows, key=lambda row: row.tokens)
    return [row for pair in zip(ordered, reversed(ordered), strict=True) for row in pair][: len(ordered)]
