"""The default limits of a batch by where it runs, with their reasons, and what batch mates may change. The settings' help names them."""

from typing import TypedDict


class DefaultLimits(TypedDict):
    """The most rows, tokens (padding included) and bytes of attention scores of a batch."""

    rows: int
    tokens: int
    scores_bytes: int


# On a core, rows of about 280 tokens take 35 ms each alone and 40 ms in batches of 4 (make bench): long rows run better alone.
ON_CPU: DefaultLimits = {"rows": 16, "tokens": 512, "scores_bytes": 64 * 2**20}
# Without a server. Batches cut by measured costs were not faster, and measuring takes 2 s: 200 short texts took 0.82 s of a core with these
# limits and 0.98 s by costs, 40 long ones 2.5 s both ways (int8, AVX2).
ON_CPU_OFFLINE: DefaultLimits = {**ON_CPU, "tokens": 256}
# An H200 takes 7.0 ms for 16,384 tokens of BERT-base (measured). Fewer leave it idle between batches; more make all rows wait. Short
# texts (some 25 tokens) need 650 rows for as many. Fused attention keeps no scores.
ON_GPU: DefaultLimits = {"rows": 1024, "tokens": 16_384, "scores_bytes": 2**32}

# Of a probability, by the other rows of the batch: this much is rounding, because padding changes the order of sums, and on a GPU another
# shape may use another kernel.
EXACT = 1e-4
EXACT_IN_FP16 = 2e-3
# A float of the API has seven digits: 2e-3 comes as 0.0020000001.
DIGITS = 1e-6


def rounding(precision: str) -> float:
    """The greatest change of a probability by batch mates that is rounding in a graph of this precision, such as fp16."""
    return EXACT_IN_FP16 if precision == "fp16" else EXACT


def is_exact(precision: str, invariance: float) -> bool:
    """Whether answers of a graph depend on batch mates by rounding at most. ``invariance``: as its manifest or the API states it."""
    return invariance <= rounding(precision) * (1 + DIGITS)
