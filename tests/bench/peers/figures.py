"""The rows of the table of peers."""

from tests.bench.peers.table import Figure

OBJECTIVE_S = 0.5
SHARES = (0.3, 0.6, 0.9)
OVERLOAD = 3.0
# At 1.6 times the capacity, when half of the clients cancel, the others need 0.8 of the capacity.
CANCELLED, CANCEL_LOAD = 0.5, 1.6
CONCURRENCY = 32
MATES_TEXTS = 200
# Of how many mixed texts calls repeat some, and by which law: the weight of the text at place r is 1/r**ZIPF.
ZIPF_TEXTS, ZIPF = 8192, 1.0
# Of each mix; every third of the mixed texts is truncated to the model's length.
CHECKED_TEXTS = 20


def at_load(of: str, share: float, percentile: int) -> str:
    """The key of a latency at a share of a capacity: ``own`` or ``ours``."""
    return f"p{percentile}_ms_at_{share:g}_of_{of}"


def _latencies(of: str, whose: str) -> tuple[Figure, ...]:
    return tuple(
        Figure(at_load(of, share, percentile), f"p{percentile} at {share:g} of {whose} capacity, mixed", "ms")
        for share in SHARES
        for percentile in (50, 99)
    )


FIGURES = (
    Figure("core_ms_short", "cost of a short text, 32 callers", "core-ms"),
    Figure("core_ms_mixed", "cost of a mixed text, 32 callers", "core-ms"),
    Figure("throughput_short", "throughput, short, 32 callers", "texts/s", True),
    Figure("throughput_mixed", "throughput, mixed, 32 callers", "texts/s", True),
    Figure("p50_ms_c1", "p50 of a short text, 1 caller", "ms"),
    Figure("p50_ms_c1_long", "p50 of a long text, 1 caller", "ms"),
    *_latencies("own", "its own"),
    *_latencies("ours", "our"),
    Figure("slo_load", "highest load with p99 within 500 ms, mixed", "texts/s", True),
    Figure("overload_goodput", "answered in time at 3x its capacity, mixed", "texts/s", True),
    Figure("overload_goodput_ratio", "the same, over its capacity", "", True),
    Figure("cancel_in_time", "half cancel at 1.6x its capacity: the others in time", "%", True),
    Figure("cancel_core_ms", "the same: cost of an answer in time", "core-ms"),
    Figure("moved", "answers of 200 moved by batch mates", ""),
    Figure("idle_cores", "idle", "cores"),
    Figure("core_ms_zipf", f"cost, mixed texts that repeat by Zipf's law with exponent {ZIPF:g}, 32 callers", "core-ms"),
    Figure("throughput_zipf", "throughput of the same", "texts/s", True),
    Figure("memory_mib", "memory after all this", "MiB"),
)
KEYS = frozenset(figure.key for figure in FIGURES)
# The rows of short texts and of texts that repeat; the others are of mixed texts.
SHORT_KEYS = frozenset({"core_ms_short", "throughput_short", "p50_ms_c1"})
ZIPF_KEYS = frozenset({"core_ms_zipf", "throughput_zipf"})
