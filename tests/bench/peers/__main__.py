"""``make bench-peers``: other servers beside ours on the same graph, tokenizer and texts, in one run; writes one table."""

import argparse
import asyncio
import datetime
import json
import os
import platform
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sentiment.errors import BadSettings
from sentiment.model.bundle import MANIFEST, bundle_roots, find_bundle
from sentiment.model.cores import cores_granted
from tests.bench.peers import rows
from tests.bench.peers.bench import FAILED, Bench, Found
from tests.bench.peers.environments import (
    FOLDER,
    NOT_MEASURED,
    PEERS,
    SHARED,
    Peer,
    PeerFailed,
    find,
    install,
    version,
)
from tests.bench.peers.figures import KEYS, SHORT_KEYS, ZIPF_KEYS
from tests.bench.peers.in_process import InProcess
from tests.bench.peers.processes import Running, start, start_ours
from tests.bench.peers.rows import LATENCY_TIMES
from tests.bench.peers.table import ADAPTIVE, CACHED, OURS, to_section, write
from tests.bench.peers.texts import texts_of
from tests.bench.processes import idle_share, processor

IDLE_MIN = 0.9
# Ours with other settings, by name.
FLAGS = {ADAPTIVE: ("--effort", "adaptive"), CACHED: ("--answer-cache-bytes", str(2**26))}


async def run(found: Found, ours: list[str], peers: list[Peer], bundle: Path, turn: int) -> None:
    """Measure the rows of short texts with servers tuned for them, then the others; ours is restarted with the same options.

    Texts that repeat are for ours alone, with and without a cache of answers.

    Args:
        found: what was found until now.
        ours: the names of FLAGS to measure too.
        peers: the servers beside ours.
        bundle: its folder.
        turn: the number of the round, from 0. Another server is the first of each row in the next one.

    Raises:
        PeerFailed: ours has failed; what was found until then stands in ``found``. A peer that fails is noted there and left out.
    """
    for measure, keys in ((rows.short, SHORT_KEYS), (rows.mixed, KEYS - SHORT_KEYS - ZIPF_KEYS), (rows.zipf, ZIPF_KEYS)):
        if not found.wants(*keys) or (measure is rows.zipf and CACHED not in ours):
            continue
        servers: list[tuple[str, Callable[[], Running], str]] = [(OURS, partial(start_ours, OURS, bundle), "")]
        name = CACHED if measure is rows.zipf else ADAPTIVE
        if name in ours:
            servers.append((name, partial(start_ours, name, bundle, *FLAGS[name]), "adaptive effort" * (name == ADAPTIVE)))
        if measure is not rows.zipf:
            for peer in peers:
                most = peer.short if measure is rows.short else peer.mixed
                servers.append((peer.name, partial(_start, peer, most, bundle), peer.weights and f"{peer.weights} weights"))
        first = turn % len(servers)
        bench = Bench(found)
        try:
            for name, launch, differs in (*servers[first:], *servers[:first]):
                try:
                    await bench.join(name, launch(), found.texts.checked, differs)
                except FAILED as error:
                    await bench.leave_out(name, error)
            await measure(bench)
        finally:
            await bench.end()


def _start(peer: Peer, most: int, bundle: Path) -> Running:
    return start(peer, most, str(bundle), cores_granted())


def reading_heads(bundle: Path) -> Path:
    """A copy of a bundle that reads the first tokens of texts that are too long, as the peers' tokenizer does; returns its folder."""
    folder = FOLDER.resolve() / "bundles" / bundle.parent.name / bundle.name
    shutil.copytree(bundle, folder, dirs_exist_ok=True)
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "default_truncation": "head"}))
    return folder


def run_in_process(found: Found, peer: Peer, bundle: Path) -> None:
    """Measure a library. A failure is recorded, not raised."""
    running = _start(peer, peer.short, bundle)
    try:
        rows.in_process(found, peer, InProcess(running))
    except FAILED as error:
        found.note(f"{peer.name}: left out: {error}")
    finally:
        running.end()


def run_all(found: Found, ours: list[str], peers: list[Peer], bundle: Path, rounds: int) -> bool:
    """Measure all peers that can be installed. Returns whether ours was measured completely; ``found`` has the results in any case."""
    installed = []
    for peer in peers:
        try:
            install(peer)
            installed.append(peer)
        except PeerFailed as error:
            found.note(f"left out: {error}")
    for turn in range(rounds):
        print(f"round {turn + 1} of {rounds}", flush=True)
        try:
            asyncio.run(run(found, ours, [peer for peer in installed if peer.protocol != "in-process"], bundle, turn))
        except FAILED as error:
            found.note(f"the run ended here, in round {turn + 1}: {error}")
            return False
        for peer in installed:
            if peer.protocol == "in-process":
                run_in_process(found, peer, bundle)
    return True


def about(ours: list[str], peers: list[Peer], seconds: float, rounds: int) -> dict[str, Any]:
    """The versions, the time and the machine of the measurement."""
    return {
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{cores_granted()} cores of {processor()}, {platform.system()}, Python {platform.python_version()}",
        "idle": round(idle_share(), 3),
        "seconds": seconds,
        "rounds": rounds,
        "shared": SHARED,
        "ours": {name: " ".join(FLAGS[name]) for name in ours},
        "peers": {peer.name: {"version": version(peer), "rows_short": peer.short, "rows_mixed": peer.mixed} for peer in peers},
        "not_measured": NOT_MEASURED,
    }


def report(output: Path, found: Found, meta: dict[str, Any]) -> None:
    """Write the JSON file and the tables beside it, and print these. Both have the notes, which explain missing figures."""
    meta = {**meta, "notes": found.notes}
    write(output, found.rows(), meta)
    text = to_section(found.rows(), meta)
    output.with_suffix(".md").write_text(text)
    print(text)


def main() -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    servers = ",".join((*FLAGS, *(peer.name for peer in PEERS)))
    parser.add_argument("--only", default=servers, help=f"what to measure beside ours, by commas (default: {servers})")
    parser.add_argument("--rows", default=",".join(sorted(KEYS)), help="keys of the rows to measure, by commas (default: all)")
    parser.add_argument("--seconds", type=float, default=8.0, help=f"how long a load is held; for latencies {LATENCY_TIMES:g} times that")
    parser.add_argument("--rounds", type=int, default=3, help="how often all is measured; the table has the medians and the spread")
    parser.add_argument("--long-texts", type=Path, help="file with reviews in place of the long texts that are made (default: none)")
    parser.add_argument("--model", default="english", help="the bundle")
    parser.add_argument("--output", type=Path, default=FOLDER.with_suffix(".json"))
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # Both signals must end the servers: suspended ones would stay for ever. In the background of a shell SIGINT is ignored by default.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    bundle = reading_heads(find_bundle(options.model, bundle_roots([])))
    names, keys = [name for name in options.only.split(",") if name], frozenset(options.rows.split(","))
    try:
        texts = texts_of(options.long_texts)
        peers = [find(name) for name in names if name not in FLAGS]
    except (PeerFailed, BadSettings) as error:
        parser.error(str(error))
    if wrong := keys - KEYS:
        parser.error(f"rows {', '.join(sorted(wrong))} are unknown; the rows are {', '.join(sorted(KEYS))}")
    found, ours = Found(options.seconds, texts, keys), [name for name in FLAGS if name in names]
    if ADAPTIVE in ours and not json.loads((bundle / MANIFEST).read_text()).get("effort"):
        ours.remove(ADAPTIVE)
        found.note(f"left out: {ADAPTIVE}: the bundle has no rule of adaptive effort")
    if options.long_texts:
        found.note(f"long texts from a file, {len(found.texts.long)} of them")
    meta, whole = about(ours, peers, options.seconds, options.rounds), False
    if meta["idle"] < IDLE_MIN:
        found.note(f"the machine was only {meta['idle']:.0%} idle before the run")
    try:
        whole = run_all(found, ours, peers, bundle, options.rounds)
    except KeyboardInterrupt:
        found.note("the run was interrupted here")
    finally:
        # Also after a failure, since the run takes hours.
        if found.values:
            report(options.output, found, meta)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
