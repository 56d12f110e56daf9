"""The rows to compute (fixed lengths, the lengths of SST-2 and IMDB, and both mixed), and how they are split into batches."""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from sentiment.model.tokenizer import Row
from sentiment_tools.traffic.lengths import Lengths, parse_built_in
from tests.bench.gpu.bert import SIZES, Size

# Distributions of token counts, limited to the model's length; "mixed" is half SST-2 and half IMDB, a number is one length. The most
# important first, since the last ones are skipped if time is short.
MIXES = ("128", "mixed", "sst2", "imdb", "32", "512")
# Batches of one measurement.
BATCHES = 4
CLS, SEP, FIRST_WORD = 101, 102, 1000
# How the names of variants with padding begin.
PADDED = ("padded", "unfused", "torch_sdpa", "torch_compiled")
# No limit of rows.
ANY_ROWS = 2**20

Logits = npt.NDArray[np.float32]
Run = Callable[[Sequence[Row]], tuple[int, Logits]]
"""Runs a batch. Returns the number of computed tokens, padding included, and the logits of its rows."""


def lengths_of(mix: str) -> Lengths:
    """The distribution of a mix, or of one length."""
    found = parse_built_in(mix)
    assert found is not None, mix
    return found


def draw_rows(mix: str, tokens: int, size: Size, seed: int = 1) -> list[Row]:
    """Rows of random ids with the lengths of a mix, about ``tokens`` tokens in all."""
    rng, ids = random.Random(seed), np.random.default_rng(seed)
    law = lengths_of(mix)
    drawn = [min(length, size.positions) for length in law.spread(max(1, round(tokens / law.mean)), rng)]
    words = [ids.integers(min(FIRST_WORD, size.vocabulary - 1), size.vocabulary, length).tolist() for length in drawn]
    return [Row([CLS, *own[2:], SEP], None, False) for own in words]


def padded_batches(rows: Sequence[Row], tokens: int) -> Iterator[list[Row]]:
    """Batches of rows sorted by length, with at most ``tokens`` tokens each, padding included."""
    batch: list[Row] = []
    for row in sorted(rows, key=lambda row: row.tokens):
        if batch and (len(batch) + 1) * row.tokens > tokens:
            yield batch
            batch = []
        batch.append(row)
    yield batch


def packed_batches(rows: Sequence[Row], tokens: int, rows_max: int = ANY_ROWS) -> Iterator[list[Row]]:
    """Batches of rows in their order, with at most ``tokens`` tokens and ``rows_max`` rows each."""
    batch: list[Row] = []
    used = 0
    for row in rows:
        if batch and (used + row.tokens > tokens or len(batch) == rows_max):
            yield batch
            batch, used = [], 0
        batch.append(row)
        used += row.tokens
    yield batch


def measure(run: Run, batches: Sequence[Sequence[Row]], size: Size, seconds: float) -> dict[str, float]:
    """Run all batches once to warm up, then as often as possible within ``seconds``.

    Returns:
        ``texts_per_s``, ``tflops`` (of real tokens only), ``real_over_processed``, ``seconds``, and the mean ``rows`` of a batch.
    """
    for batch in batches:
        run(batch)
    processed = passes = 0
    begun = time.perf_counter()
    while not passes or time.perf_counter() - begun < seconds:
        processed += sum(run(batch)[0] for batch in batches)
        passes += 1
    took_s = time.perf_counter() - begun
    counts = [row.tokens for batch in batches for row in batch]
    return {
        "texts_per_s": passes * len(counts) / took_s,
        "tflops": passes * sum(map(size.flop, counts)) / took_s / 1e12,
        "real_over_processed": passes * sum(counts) / processed,
        "rows": len(counts) / len(batches),
        "seconds": took_s,
    }


class Peer:
    """Requests of the processes that run BERT. A run from rows to logits on the host is made once for each model and variant."""

    def __init__(self) -> None:
        self.run_of = cache(self.make_run)

    def make_run(self, model: str, variant: str) -> Run:
        """The function that runs a batch."""
        raise NotImplementedError

    def measure(self, model: str, variant: str, mix: str, tokens: int, seconds: float, rows_max: int = ANY_ROWS) -> dict[str, float]:
        """See ``measure``; ``rows_max``: of a batch without padding."""
        rows = draw_rows(mix, BATCHES * tokens, SIZES[model])
        batches = padded_batches(rows, tokens) if variant.startswith(PADDED) else packed_batches(rows, tokens, rows_max)
        return measure(self.run_of(model, variant), list(batches), SIZES[model], seconds)

    def cell(self, model: str, variant: str, rows: int, length: int, seconds: float) -> dict[str, float]:
        """Median milliseconds of a batch of ``rows`` rows of ``length`` tokens, from ids to logits on the host."""
        batch = draw_rows(str(length), rows * length, SIZES[model])
        run = self.run_of(model, variant)
        return {"ms": statistics.median(timed(lambda: run(batch), seconds)) * 1e3}


def draw_trial(size: Size) -> list[Row]:
    """A batch of many lengths, on which the variants are compared."""
    return [*draw_rows("sst2", 200, size, seed=3), *draw_rows("128", 256, size, seed=4)]


def timed(act: Callable[[], object], seconds: float, runs_min: int = 5, runs_max: int = 2000) -> list[float]:
    """The seconds of each call, repeated for ``seconds`` and at least ``runs_min`` times, after two calls to warm up."""
    act()
    act()
    spent: list[float] = []
    until = time.perf_counter() + seconds
    while len(spent) < runs_min or (len(spent) < runs_max and time.perf_counter() < until):
        begun = time.perf_counter()
        act()
        spent.append(time.perf_counter() - begun)
    return spent
