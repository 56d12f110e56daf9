"""Finds the best largest batch and wait of a peer on this machine. The documentation of the peers leaves both to experiment."""

from collections.abc import Iterator

from sentiment_tools.traffic.arrivals import Poisson
from tests.bench.peers import rows
from tests.bench.peers.bench import Bench, Found
from tests.bench.peers.environments import Peer, Tuning
from tests.bench.peers.figures import CONCURRENCY
from tests.bench.peers.processes import start

ROWS = (1, 2, 4, 8)
# Of peers that wait for a batch; the others have a single value.
DELAYS_MS = {"litserve": (1.0, 5.0)}
# The load of the second measurement, relative to the throughput of mixed texts. Above 1, so that bad batching shows.
LOAD = 1.1


def variants(peer: Peer) -> Iterator[Tuning]:
    """Each batch size with each wait; without batches there is no wait."""
    for most in ROWS:
        for delay_ms in DELAYS_MS.get(peer.name, (0.0,)) if most > 1 else (0.0,):
            yield Tuning(most, delay_ms)


async def tune(peer: Peer, bundle: str, instances: int, seconds: float) -> None:
    """Measure all variants, and print them and the best: by throughput (short texts), or throughput times answers in time (mixed texts)."""
    short: dict[Tuning, float] = {}
    mixed: dict[Tuning, float] = {}
    capacity = 0.0
    for tuning in variants(peer):
        bench = Bench(Found(seconds))
        try:
            await bench.join(peer.name, start(peer, tuning, bundle, instances), rows.CHECKED)
            async with bench.fleets(rows.SHORT_TEXTS, rows.PATIENT) as fleets:
                short[tuning] = (await bench.hold(fleets[peer.name], peer.name, CONCURRENCY))[0].texts_per_s
            async with bench.fleets(rows.MIXED_TEXTS, rows.PATIENT) as fleets:
                throughput = (await bench.hold(fleets[peer.name], peer.name, CONCURRENCY))[0].texts_per_s
                capacity = capacity or throughput
            async with bench.fleets(rows.MIXED_TEXTS, rows.HURRIED) as fleets:
                loaded, _ = await bench.hold(fleets[peer.name], peer.name, Poisson(LOAD * capacity))
        finally:
            await bench.end()
        mixed[tuning] = throughput * loaded.goodput_per_s
        print(
            f"{peer.name}, at most {tuning.rows} rows, {tuning.delay_ms:g} ms: short {short[tuning]:.0f}, mixed {throughput:.1f}, "
            f"in time {loaded.goodput_per_s:.1f} of {loaded.offered_per_s:.0f} texts/s",
            flush=True,
        )
    for name, found in (("short", short), ("mixed", mixed)):
        best = max(found, key=found.__getitem__)
        print(f"{peer.name}, {name}: at most {best.rows} rows, {best.delay_ms:g} ms")
