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
from tests.bench.peers.bench import FAILED, Bench, Found
from tests.bench.peers.environments import FOLDER, NOT_MEASURED, PEERS, SHARED, Peer, PeerFailed, find, install, version
from tests.bench.peers.in_process import InProcess
from tests.bench.peers.processes import start, start_ours
from tests.bench.peers.table import OURS, to_markdown, write
from tests.bench.peers.tune import tune
from tests.bench.processes import idle_share

IDLE_MIN = 0.9


async def run(found: Found, peers: list[Peer], model: str) -> None:
    """Measure the rows of short texts with servers tuned for them, then the others; ours is started anew, and as it was.

    Raises:
        PeerFailed: ours has failed; what was found until then stands in ``found``. A peer that fails is noted there and left out.
    """
    bundle, cores = str(find_bundle(model, bundle_roots([])).resolve()), cores_granted()
    for tunings, measure in (
        ({peer.name: peer.short for peer in peers}, rows.short),
        ({peer.name: peer.mixed for peer in peers}, rows.mixed),
    ):
        bench = Bench(found)
        try:
            await bench.join(OURS, start_ours(model), rows.CHECKED)
            for peer in peers:
                try:
                    await bench.join(peer.name, start(peer, tunings[peer.name], bundle, cores), rows.CHECKED)
                except FAILED as error:
                    await bench.leave_out(peer.name, error)
            await measure(bench)
        finally:
            await bench.end()


def run_in_process(found: Found, peer: Peer, model: str) -> None:
    """Measure a library. A failure is recorded, not raised."""
    running = start(peer, peer.short, str(find_bundle(model, bundle_roots([])).resolve()), cores_granted())
    try:
        rows.in_process(found, peer, InProcess(running))
    except FAILED as error:
        found.note(f"{peer.name}: left out: {error}")
    finally:
        running.end()


def run_all(found: Found, peers: list[Peer], model: str) -> bool:
    """Measure all peers that can be installed. Returns whether ours was measured completely; ``found`` has the results in any case."""
    installed = []
    for peer in peers:
        try:
            install(peer)
            installed.append(peer)
        except PeerFailed as error:
            found.note(f"left out: {error}")
    try:
        asyncio.run(run(found, [peer for peer in installed if peer.protocol != "in-process"], model))
    except FAILED as error:
        found.note(f"the run ended here: {error}")
        return False
    for peer in installed:
        if peer.protocol == "in-process":
            run_in_process(found, peer, model)
    return True


def about(peers: list[Peer], seconds: float) -> dict[str, Any]:
    """The versions, the time and the machine of the measurement."""
    return {
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{cores_granted()} cores of {_processor()}, {platform.system()}, Python {platform.python_version()}",
        "idle": round(idle_share(), 3),
        "seconds": seconds,
        "shared": SHARED,
        "peers": {peer.name: {"version": version(peer), "short": asdict(peer.short), "mixed": asdict(peer.mixed)} for peer in peers},
        "not_measured": NOT_MEASURED,
    }


def report(output: Path, found: Found, meta: dict[str, Any], peers: list[Peer]) -> None:
    """Write the JSON file and the table beside it, and print the table. Both have the notes, which explain missing figures."""
    notes = [*found.notes, *(f"not measured: {name}: {why}" for name, why in NOT_MEASURED.items())]
    write(output, found.rows(), {**meta, "notes": found.notes})
    table = to_markdown(found.rows(), [OURS, *(peer.name for peer in peers)])
    text = "\n".join([table, *(f"- {' '.join(note.split())}" for note in notes)]) + "\n"
    output.with_suffix(".md").write_text(text)
    print(text)


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
    # Both signals must end the servers: suspended ones would stay for ever. In the background of a shell SIGINT is ignored by default.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        peers = [find(name) for name in options.only.split(",") if name]
        if options.tune:
            bundle = str(find_bundle(options.model, bundle_roots([])).resolve())
            for peer in peers:
                install(peer)
                asyncio.run(tune(peer, bundle, cores_granted(), options.seconds))
            return 0
    except PeerFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    found, meta, whole = Found(options.seconds), about(peers, options.seconds), False
    if meta["idle"] < IDLE_MIN:
        found.note(f"the machine was only {meta['idle']:.0%} idle before the run")
    try:
        whole = run_all(found, peers, options.model)
    except KeyboardInterrupt:
        found.note("the run was interrupted here")
    finally:
        # Also after a failure, since the run takes half an hour.
        if found.values:
            report(options.output, found, meta, peers)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
