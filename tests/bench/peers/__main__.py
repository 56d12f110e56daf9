"""``make bench-peers``: other servers beside ours on the same graph, tokenizer and texts, in one run; writes one table."""

import argparse
import asyncio
import datetime
import os
import platform
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sentiment.model.bundle import bundle_roots, find_bundle
from sentiment.model.cores import cores_granted
from tests.bench.peers import rows
from tests.bench.peers.bench import Bench, Found
from tests.bench.peers.environments import FOLDER, NOT_MEASURED, PEERS, Peer, PeerFailed, find, install, version
from tests.bench.peers.in_process import InProcess
from tests.bench.peers.processes import start, start_ours
from tests.bench.peers.table import OURS, Row, to_markdown, write
from tests.bench.peers.tune import tune
from tests.bench.processes import idle_share

IDLE_MIN = 0.9


async def run(peers: list[Peer], model: str, seconds: float) -> tuple[list[Row], dict[str, Any]]:
    """Measure the rows of short texts with servers tuned for them, then the others; ours is started anew, and as it was."""
    bundle, cores = str(find_bundle(model, bundle_roots([])).resolve()), cores_granted()
    meta = {
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{cores} cores of {_processor()}, {platform.system()}, Python {platform.python_version()}",
        "idle": round(idle_share(), 3),
        "seconds": seconds,
        "peers": {peer.name: {"version": version(peer), "short": asdict(peer.short), "mixed": asdict(peer.mixed)} for peer in peers},
        "not_measured": NOT_MEASURED,
    }
    found = Found(seconds)
    servers = [peer for peer in peers if peer.protocol != "in-process"]
    for tunings, measure in (
        ({peer.name: peer.short for peer in servers}, rows.short),
        ({peer.name: peer.mixed for peer in servers}, rows.mixed),
    ):
        bench = Bench(found)
        try:
            await bench.join(OURS, start_ours(model), rows.SHORT_TEXTS)
            for peer in servers:
                await bench.join(peer.name, start(peer, tunings[peer.name], bundle, cores), rows.SHORT_TEXTS)
            await measure(bench)
        finally:
            await bench.end()
    for peer in peers:
        if peer.protocol == "in-process":
            running = start(peer, peer.short, bundle, cores)
            try:
                rows.in_process(found, peer, InProcess(running))
            finally:
                running.end()
    return found.rows(), {**meta, "notes": found.notes}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def main() -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    parser.add_argument("--only", help="peers, by commas", default=",".join(peer.name for peer in PEERS))
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each load is held")
    parser.add_argument("--model", default="english", help="the bundle")
    parser.add_argument("--tune", action="store_true", help="try batches and waits of the peers instead, and show them")
    parser.add_argument("--output", type=Path, default=FOLDER.with_suffix(".json"))
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # As Ctrl-C does: servers that are held still would stay for ever.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        peers = [find(name) for name in options.only.split(",") if name]
        for peer in peers:
            install(peer)
        if options.tune:
            bundle = str(find_bundle(options.model, bundle_roots([])).resolve())
            for peer in peers:
                asyncio.run(tune(peer, bundle, cores_granted(), options.seconds))
            return 0
        found, meta = asyncio.run(run(peers, options.model, options.seconds))
    except PeerFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if meta["idle"] < IDLE_MIN:
        print(f"warning: the machine was only {meta['idle']:.0%} idle before the run")
    write(options.output, found, meta)
    table = to_markdown(found, [OURS, *(peer.name for peer in peers)])
    options.output.with_suffix(".md").write_text(table)
    print(table)
    for line in [*meta["notes"], *(f"not measured: {name}: {why}" for name, why in NOT_MEASURED.items())]:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
