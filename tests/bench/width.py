"""What idle cores gain: our server beside one whose batches have one thread, in turns."""

import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack

from sentiment_tools.loadtest.drivers import Target
from sentiment_tools.loadtest.fleet import Fleet
from sentiment_tools.loadtest.mix import Mix
from tests.bench.processes import start_server
from tests.bench.slo import CALLERS, OBJECTIVE_S, PATIENT

SERVERS: dict[str, tuple[str, ...]] = {"wide": (), "narrow": ("--batch-threads-max", "1")}


async def measure_width(model: str, long_texts: Sequence[str], mixed_texts: Sequence[str], seconds: float, rounds: int) -> dict[str, float]:
    """Hold one caller with long texts, then CALLERS with mixed ones, on each server in turn.

    Returns:
        Medians of the rounds: ``p50_wide`` and ``p50_narrow`` (seconds, one caller), ``texts_wide`` and ``texts_narrow`` (a second).
    """
    seen: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        fleets: dict[tuple[str, int], Fleet] = {}
        for name, flags in SERVERS.items():
            started = start_server(model, "", *flags)
            stack.callback(started.end)
            for callers, texts in ((1, long_texts), (CALLERS, mixed_texts)):
                fleet = Fleet(Target(started.grpc), Mix(PATIENT), texts, OBJECTIVE_S, processes=1)
                fleets[name, callers] = await stack.enter_async_context(fleet)
        for _ in range(rounds):
            for (name, callers), fleet in fleets.items():
                point = await fleet.measure(callers, seconds)
                key, value = ("p50", point.percentile(50)) if callers == 1 else ("texts", point.texts_per_s)
                seen.setdefault(f"{key}_{name}", []).append(value)
    return {name: statistics.median(values) for name, values in seen.items()}
