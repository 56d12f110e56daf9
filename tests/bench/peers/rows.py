"""How each row of the table of peers is measured."""

import asyncio
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace

from sentiment_tools.loadtest.fleet import Fleet
from sentiment_tools.loadtest.mix import Mix
from sentiment_tools.loadtest.search import Slo, Steps, steps
from sentiment_tools.traffic.arrivals import Poisson
from tests.bench.peers.answers import ANSWER_FAILED, ask_alone, ask_amid, differing
from tests.bench.peers.bench import SAME, Bench, Found, latency_s
from tests.bench.peers.environments import Peer, PeerFailed
from tests.bench.peers.figures import (
    CANCEL_LOAD,
    CANCELLED,
    CONCURRENCY,
    MATES_TEXTS,
    OBJECTIVE_S,
    OVERLOAD,
    SHARES,
    ZIPF,
    at_load,
)
from tests.bench.peers.in_process import InProcess, Passed
from tests.bench.peers.table import OURS

# Clients that wait long, clients whose deadline is the objective, and the latter when half of them cancel.
PATIENT = Mix((5.0, 5.0))
HURRIED = Mix((OBJECTIVE_S, OBJECTIVE_S))
FICKLE = Mix((OBJECTIVE_S, OBJECTIVE_S), cancel=CANCELLED)
# An answer that changes by more depends on the other texts of its batch.
MOVED = 1e-4
SEARCH_POINTS_MAX, SEARCH_RESOLUTION = 12, 0.06
# Loads whose p99 is a row are held this many times as long as the others.
LATENCY_TIMES = 2.5
IDLE_S = 3.0
# The texts of one pass of an in-process library, enough for it to sort by length.
PASS_TEXTS = 256


async def short(bench: Bench) -> None:
    """The rows of short texts."""
    async with bench.fleets(bench.found.texts.short, PATIENT) as fleets:
        # First: after other loads, an adaptive batcher would still wait for more texts.
        if bench.found.wants("p50_ms_c1"):
            await _alone(bench, fleets, "p50_ms_c1")
        if bench.found.wants("core_ms_short", "throughput_short"):
            await _closed_loop(bench, fleets, "short")


async def mixed(bench: Bench) -> None:
    """The rows of texts of mixed lengths. The closed-loop throughput is the capacity for the other rows."""
    wants = bench.found.wants
    if wants("p50_ms_c1_long"):
        async with bench.fleets(bench.found.texts.long, PATIENT) as fleets:
            await _alone(bench, fleets, "p50_ms_c1_long")
    async with bench.fleets(bench.found.texts.mixed, PATIENT) as fleets:
        await _closed_loop(bench, fleets, "mixed")
        capacities = bench.found.last("throughput_mixed")
        for share in SHARES:
            await _latencies(bench, fleets, "own", share, {name: share * capacities[name] for name in bench.servers})
            await _latencies(bench, fleets, "ours", share, dict.fromkeys(bench.servers, share * capacities[OURS]))
    if wants("slo_load"):
        async with bench.fleets(bench.found.texts.mixed, HURRIED) as fleets:
            await _search(bench, fleets, capacities)
    # New clients: each load of a fleet has its own seed, and the searches differ in their number of loads.
    if wants("overload_goodput", "overload_goodput_ratio"):
        async with bench.fleets(bench.found.texts.mixed, HURRIED) as fleets:
            await _overload(bench, fleets, capacities)
    if wants("cancel_in_time", "cancel_core_ms"):
        async with bench.fleets(bench.found.texts.mixed, FICKLE) as fleets:
            await _cancels(bench, fleets, capacities)
    if wants("moved"):
        await _mates(bench)
    if wants("idle_cores", "memory_mib"):
        await _idle(bench)


async def zipf(bench: Bench) -> None:
    """The rows of texts of which some repeat."""
    async with bench.fleets(bench.found.texts.repeating, replace(PATIENT, zipf=ZIPF)) as fleets:
        await _closed_loop(bench, fleets, "zipf")


async def _alone(bench: Bench, fleets: Mapping[str, Fleet], key: str) -> None:
    async def measure(name: str) -> None:
        point, _ = await bench.hold(fleets[name], name, 1)
        bench.found.put(key, name, latency_s(point, 50) * 1e3)

    await bench.in_turn(measure)


async def _closed_loop(bench: Bench, fleets: Mapping[str, Fleet], mix: str) -> None:
    async def measure(name: str) -> None:
        point, core_s = await bench.hold(fleets[name], name, CONCURRENCY)
        bench.found.put(f"throughput_{mix}", name, point.texts_per_s)
        bench.found.put(f"core_ms_{mix}", name, _ms_each(core_s, point.texts_ok))
        if not point.texts_per_s:
            # The loads of the other rows are fractions of it.
            raise PeerFailed(f"answers none of {CONCURRENCY} callers: {dict(point.messages)}")
        if mix == "zipf":
            bench.found.note(f"{name}: {point.repeated_share:.0%} of the texts that repeat by Zipf's law had come before")

    await bench.in_turn(measure)


def _ms_each(seconds: float, count: int) -> float:
    return seconds / count * 1e3 if count else math.inf


async def _latencies(bench: Bench, fleets: Mapping[str, Fleet], of: str, share: float, rates: Mapping[str, float]) -> None:
    if not bench.found.wants(at_load(of, share, 50), at_load(of, share, 99)):
        return

    async def measure(name: str) -> None:
        point, _ = await bench.hold(fleets[name], name, Poisson(rates[name]), LATENCY_TIMES)
        for percentile in (50, 99):
            bench.found.put(at_load(of, share, percentile), name, latency_s(point, percentile) * 1e3)

    await bench.in_turn(measure)


async def _search(bench: Bench, fleets: Mapping[str, Fleet], capacities: Mapping[str, float]) -> None:
    """The highest load that meets the objective, by the load tester's own search, one step of each server in turn."""
    slo = Slo(OBJECTIVE_S)
    searches: dict[str, Steps] = {
        name: steps(capacities[name], slo, resolution=SEARCH_RESOLUTION, points_max=SEARCH_POINTS_MAX) for name in bench.servers
    }
    rates = {name: next(search) for name, search in searches.items()}

    async def step(name: str) -> None:
        if name not in rates:
            return
        point, _ = await bench.hold(fleets[name], name, Poisson(rates[name]))
        try:
            rates[name] = searches[name].send(point)
        except StopIteration as end:
            del rates[name]
            # If no load met or missed the objective, the figure is unknown, not 0.
            if end.value.slo_rate or end.value.missed_rate:
                bench.found.put("slo_load", name, end.value.slo_rate)
            # The reasons and doubts of the search; the last one is about the knee, which is not a row.
            bench.found.note(f"{name}: {'; '.join(end.value.why[:-1])}")

    while rates.keys() & bench.servers.keys():
        await bench.in_turn(step)


async def _overload(bench: Bench, fleets: Mapping[str, Fleet], capacities: Mapping[str, float]) -> None:
    async def measure(name: str) -> None:
        point, _ = await bench.hold(fleets[name], name, Poisson(OVERLOAD * capacities[name]))
        bench.found.put("overload_goodput", name, point.goodput_per_s)
        bench.found.put("overload_goodput_ratio", name, point.goodput_per_s / capacities[name])

    await bench.in_turn(measure)


async def _cancels(bench: Bench, fleets: Mapping[str, Fleet], capacities: Mapping[str, float]) -> None:
    """The results of the remaining clients while half of the clients cancel, and the cost of an answer."""

    async def measure(name: str) -> None:
        point, core_s = await bench.hold(fleets[name], name, Poisson(CANCEL_LOAD * capacities[name]))
        bench.found.put("cancel_in_time", name, 100 * point.share_in_time)
        bench.found.put("cancel_core_ms", name, _ms_each(core_s, sum(group.in_time for group in point.by_class.values())))

    await bench.in_turn(measure)


async def _mates(bench: Bench) -> None:
    """How many answers depend on the other texts of a batch."""
    mixed = bench.found.texts.mixed
    texts, others = mixed[:MATES_TEXTS], mixed[MATES_TEXTS:]

    async def measure(name: str) -> None:
        ask = bench.asks[name]
        async with bench.alone(name):
            try:
                alone = await ask_alone(ask, texts)
                bench.found.put("moved", name, differing(alone, await ask_amid(ask, texts, others), MOVED))
            except ANSWER_FAILED as error:
                await bench.again(name, f"has not answered all texts among batch mates ({type(error).__name__})")

    await bench.in_turn(measure)


async def _idle(bench: Bench) -> None:
    """The cost of an idle server."""

    async def measure(name: str) -> None:
        async with bench.alone(name) as running:
            core_s, begun = running.core_s(), time.perf_counter()
            await asyncio.sleep(IDLE_S)
            bench.found.put("idle_cores", name, (running.core_s() - core_s) / (time.perf_counter() - begun))
            bench.found.put("memory_mib", name, running.memory_bytes() / 2**20)

    await bench.in_turn(measure)


def in_process(found: Found, peer: Peer, asked: InProcess) -> None:
    """The rows of a library without a server."""
    answers = asked.run(found.texts.checked, 1).answers
    if peer.weights:
        found.note_labels(peer.name, f"{peer.weights} weights", answers)
    elif wrong := differing(found.right, answers, SAME):
        raise PeerFailed(f"{peer.name}: {wrong} of {len(answers)} answers differ from those of {OURS}")
    for mix, texts, rows in (("short", found.texts.short, peer.short), ("mixed", found.texts.mixed, peer.mixed)):
        passes: list[Passed] = []
        begun = time.perf_counter()
        while not passes or time.perf_counter() - begun < found.seconds:
            passes.append(asked.run(texts[:PASS_TEXTS], rows))
        found.put(f"throughput_{mix}", peer.name, PASS_TEXTS / statistics.median(each.seconds for each in passes))
        found.put(f"core_ms_{mix}", peer.name, statistics.median(each.core_s for each in passes) / PASS_TEXTS * 1e3)
    found.put("p50_ms_c1", peer.name, statistics.median(asked.run([text], 1).seconds for text in found.texts.short[:MATES_TEXTS]) * 1e3)
    texts = found.texts.mixed[:MATES_TEXTS]
    alone = [asked.run([text], 1).answers[0] for text in texts]
    amid = asked.run(found.texts.mixed, peer.mixed).answers[:MATES_TEXTS]
    found.put("moved", peer.name, differing(alone, amid, MOVED))
