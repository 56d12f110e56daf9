"""How each row of the table of peers is measured."""

import asyncio
import statistics
import time
from collections.abc import Mapping

from sentiment.loadtest.fleet import Fleet
from sentiment.loadtest.mix import Mix
from sentiment.loadtest.search import Slo, Steps, steps
from sentiment.traffic.arrivals import Poisson
from sentiment.traffic.lengths import MIXED, SST2
from sentiment.traffic.texts import make_texts
from tests.bench.peers.answers import ANSWER_FAILED, ask_alone, ask_amid, differing
from tests.bench.peers.bench import Bench, Found, latency_s
from tests.bench.peers.environments import Peer
from tests.bench.peers.figures import CANCEL_LOAD, CANCELLED, CONCURRENCY, MATES_TEXTS, OBJECTIVE_S, OVERLOAD, SHARES, at_load
from tests.bench.peers.in_process import InProcess, Passed
from tests.bench.peers.table import OURS

SHORT_TEXTS, MIXED_TEXTS = make_texts(SST2, 512), make_texts(MIXED, 512)
# Clients that wait for their answer, clients for which an answer after the objective is none, and such of whom half give up before.
PATIENT = Mix((5.0, 5.0))
HURRIED = Mix((OBJECTIVE_S, OBJECTIVE_S))
FICKLE = Mix((OBJECTIVE_S, OBJECTIVE_S), cancel=CANCELLED)
# An answer that moves by more depends on who else is asked.
MOVED = 1e-4
SEARCH_POINTS_MAX, SEARCH_RESOLUTION = 12, 0.06
IDLE_S = 3.0
# A pass of a library in process: enough for it to sort by length.
PASS_TEXTS = 256


async def short(bench: Bench) -> None:
    """The rows of short texts."""
    async with bench.fleets(SHORT_TEXTS, PATIENT) as fleets:
        # Before the others: a batcher that learns would still wait for mates that do not come.
        for name, fleet in fleets.items():
            point, _ = await bench.hold(fleet, name, 1)
            bench.found.put("p50_ms_c1", name, latency_s(point, 50) * 1e3)
        await _closed_loop(bench, fleets, "short")


async def mixed(bench: Bench) -> None:
    """The rows of texts of mixed lengths. What callers that wait all the time get is a server's capacity in the others."""
    async with bench.fleets(MIXED_TEXTS, PATIENT) as fleets:
        await _closed_loop(bench, fleets, "mixed")
        capacities = bench.found.values["throughput_mixed"]
        for share in SHARES:
            await _latencies(bench, fleets, "own", share, {name: share * capacities[name] for name in fleets})
            await _latencies(bench, fleets, "ours", share, dict.fromkeys(fleets, share * capacities[OURS]))
    async with bench.fleets(MIXED_TEXTS, HURRIED) as fleets:
        await _search(bench, fleets, capacities)
        await _overload(bench, fleets, capacities)
    async with bench.fleets(MIXED_TEXTS, FICKLE) as fleets:
        await _cancels(bench, fleets, capacities)
    await _mates(bench)
    await _idle(bench)


async def _closed_loop(bench: Bench, fleets: Mapping[str, Fleet], mix: str) -> None:
    for name, fleet in fleets.items():
        point, core_s = await bench.hold(fleet, name, CONCURRENCY)
        bench.found.put(f"throughput_{mix}", name, point.texts_per_s)
        bench.found.put(f"core_ms_{mix}", name, core_s / max(1, point.texts_ok) * 1e3)


async def _latencies(bench: Bench, fleets: Mapping[str, Fleet], of: str, share: float, rates: Mapping[str, float]) -> None:
    for name, fleet in fleets.items():
        point, _ = await bench.hold(fleet, name, Poisson(rates[name]))
        for percentile in (50, 99):
            bench.found.put(at_load(of, share, percentile), name, latency_s(point, percentile) * 1e3)


async def _search(bench: Bench, fleets: Mapping[str, Fleet], capacities: Mapping[str, float]) -> None:
    """The highest load that meets the objective, by the load tester's own search, a step of each server in turn."""
    slo = Slo(OBJECTIVE_S)
    searches: dict[str, Steps] = {
        name: steps(capacities[name], slo, resolution=SEARCH_RESOLUTION, points_max=SEARCH_POINTS_MAX) for name in fleets
    }
    rates = {name: next(search) for name, search in searches.items()}
    while rates:
        for name, rate in list(rates.items()):
            point, _ = await bench.hold(fleets[name], name, Poisson(rate))
            try:
                rates[name] = searches[name].send(point)
            except StopIteration as end:
                del rates[name]
                bench.found.put("slo_load", name, end.value.slo_rate)
                bench.found.notes.append(f"{name}: {end.value.why[0]}")


async def _overload(bench: Bench, fleets: Mapping[str, Fleet], capacities: Mapping[str, float]) -> None:
    for name, fleet in fleets.items():
        point, _ = await bench.hold(fleet, name, Poisson(OVERLOAD * capacities[name]))
        bench.found.put("overload_goodput", name, point.goodput_per_s)
        bench.found.put("overload_goodput_ratio", name, point.goodput_per_s / capacities[name])


async def _cancels(bench: Bench, fleets: Mapping[str, Fleet], capacities: Mapping[str, float]) -> None:
    """What the clients that stay get while half give up, and what an answer costs then."""
    for name, fleet in fleets.items():
        point, core_s = await bench.hold(fleet, name, Poisson(CANCEL_LOAD * capacities[name]))
        bench.found.put("cancel_in_time", name, 100 * point.share_in_time)
        bench.found.put("cancel_core_ms", name, core_s / max(1, sum(group.in_time for group in point.by_class.values())) * 1e3)


async def _mates(bench: Bench) -> None:
    """Whose answers depend on who else is asked."""
    texts, others = MIXED_TEXTS[:MATES_TEXTS], MIXED_TEXTS[MATES_TEXTS:]
    for name, ask in list(bench.asks.items()):
        async with bench.alone(name):
            try:
                alone = await ask_alone(ask, texts)
                bench.found.put("moved", name, differing(alone, await ask_amid(ask, texts, others), MOVED))
            except ANSWER_FAILED as error:
                await bench.again(name, f"does not answer any more ({type(error).__name__})")


async def _idle(bench: Bench) -> None:
    """What a server costs while nobody asks it."""
    for name in bench.servers:
        async with bench.alone(name) as running:
            core_s, begun = running.core_s(), time.perf_counter()
            await asyncio.sleep(IDLE_S)
            bench.found.put("idle_cores", name, (running.core_s() - core_s) / (time.perf_counter() - begun))
            bench.found.put("memory_mib", name, running.memory_bytes() / 2**20)


def in_process(found: Found, peer: Peer, asked: InProcess) -> None:
    """The rows that a library without a server can have."""
    answers = asked.run(SHORT_TEXTS[: len(found.right)], 1).answers
    wrong = sum(one[0] != other[0] for one, other in zip(found.right, answers, strict=True))
    found.notes.append(f"{peer.name}: fp32 weights; of {len(answers)} texts {wrong} have another label than ours")
    for mix, texts, tuning in (("short", SHORT_TEXTS, peer.short), ("mixed", MIXED_TEXTS, peer.mixed)):
        passes: list[Passed] = []
        begun = time.perf_counter()
        while not passes or time.perf_counter() - begun < found.seconds:
            passes.append(asked.run(texts[:PASS_TEXTS], tuning.rows))
        found.put(f"throughput_{mix}", peer.name, PASS_TEXTS / statistics.median(each.seconds for each in passes))
        found.put(f"core_ms_{mix}", peer.name, statistics.median(each.core_s for each in passes) / PASS_TEXTS * 1e3)
    found.put("p50_ms_c1", peer.name, statistics.median(asked.run([text], 1).seconds for text in SHORT_TEXTS[:MATES_TEXTS]) * 1e3)
    texts = MIXED_TEXTS[:MATES_TEXTS]
    alone = [asked.run([text], 1).answers[0] for text in texts]
    amid = asked.run(MIXED_TEXTS, peer.mixed.rows).answers[:MATES_TEXTS]
    found.put("moved", peer.name, differing(alone, amid, MOVED))
