"""What watching the model costs: ``python -m tests.bench.journal [--rounds 5] [--seconds 5] [--lines 10000000]``.

1. A journal of ``--lines`` answers: how fast they are written, how long ``sentiment watch`` takes to read them and with how much memory,
   and how long the first search for a request id takes that the journal does not have, how long the next, and how much memory.
2. Servers in turns, 32 callers with short texts: one that keeps nothing, one with a journal, one whose journal has the texts too, one
   that scores a tenth of the texts with a second version (``shadow_share``), and one that compares the hidden states of a tenth
   (``hidden_drift_share``). Medians of the rounds.
"""

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
from prometheus_client.parser import text_string_to_metric_families

from sentiment.loadtest.drivers import Target
from sentiment.loadtest.fleet import Fleet
from sentiment.loadtest.mix import Mix
from sentiment.model.bundle import MANIFEST, bundle_roots, find_bundle
from sentiment.observability.journal import Answered, Journal
from sentiment.observability.journal_files import JournalFiles
from sentiment.observability.journal_index import Asked, JournalIndex
from sentiment.serving.feedback import READ_BYTES
from sentiment.traffic.lengths import SST2
from sentiment.traffic.texts import make_texts
from tests.bench.processes import cpu_s, start_server

CALLERS, TEXTS = 32, 512
PATIENT = (60.0, 60.0)
# Of all rounds.
COUNTED = {
    "lines": "sentiment_journal_lines_total",
    "texts compared": "sentiment_shadow_texts_total",
    "hidden states": "sentiment_hidden_drift_texts",
}
FILE_BYTES = 2**24
# Lines between two looks at how far the disk is.
BURST = 4096


async def measure_servers(bundle: Path, folder: Path, seconds: float, rounds: int) -> dict[str, dict[str, float]]:
    """Load each server in turn; returns texts a second, p50 and p99 in ms, core-ms a text, and what was kept or compared, by server."""
    for version in (1, 2):
        copy = folder / f"bundles/english/{version}"
        shutil.copytree(bundle, copy)
        manifest = json.loads((copy / MANIFEST).read_text())
        (copy / MANIFEST).write_text(json.dumps({**manifest, "version": version}))
    common = ("--bundles", str(folder / "bundles"))
    servers = {
        "plain": (),
        "journal": ("--journal", str(folder / "journal")),
        "journal with texts": ("--journal", str(folder / "texts"), "--journal-texts"),
        "shadow": ("--models", "english/2", "--shadow-share", "0.1"),
        "hidden states": ("--hidden-drift-share", "0.1"),
    }
    seen: dict[str, dict[str, list[float]]] = {}
    async with AsyncExitStack() as stack:
        fleets = {}
        for name, flags in servers.items():
            started = start_server("english/1", "", *common, *flags)
            stack.callback(started.end)
            fleet = Fleet(Target(started.grpc), Mix(PATIENT), make_texts(SST2, TEXTS), PATIENT[0], processes=1)
            fleets[name] = await stack.enter_async_context(fleet), started
        # The first round warms up.
        for turn in range(rounds + 1):
            for name, (fleet, server) in fleets.items():
                begun = cpu_s(server.process.pid)
                point = await fleet.measure(CALLERS, seconds, warm_up_s=0)
                core_ms = 1e3 * (cpu_s(server.process.pid) - begun) / point.texts_ok
                figures = {
                    "texts/s": point.texts_per_s,
                    "p50 ms": 1e3 * point.percentile(50),
                    "p99 ms": 1e3 * point.percentile(99),
                    "core-ms a text": core_ms,
                }
                for what, value in figures.items() if turn else ():
                    seen.setdefault(name, {}).setdefault(what, []).append(value)
        found = {name: {what: statistics.median(values) for what, values in of.items()} for name, of in seen.items()}
        for name, (_, server) in fleets.items():
            found[name] |= counted(server.http)
        return found


def counted(http: str) -> dict[str, float]:
    """What a server has kept and compared since its start."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as response:
        families = text_string_to_metric_families(response.read().decode())
        samples = [sample for family in families for sample in family.samples]
    return {what: sum(sample.value for sample in samples if sample.name == counter) for what, counter in COUNTED.items()}


def write_lines(folder: Path, lines: int) -> None:
    """Write a journal of so many answers, as fast as its thread takes them, and print the speed."""
    files = JournalFiles(folder, "bench", 1, 2**40, FILE_BYTES)
    journal = Journal(files, 1.0, texts=False)
    scores = {"negative": 0.03, "positive": 0.97}
    begun, cpu = time.perf_counter(), time.process_time()
    for number in range(lines):
        at, request_id = 1.8e9 + number / 100, f"{number:032x}"
        journal.add(Answered(at, "english/1", "0" * 64, request_id, 0, "interactive", 25, False, "positive", False, scores, None, None))
        while number % BURST == 0 and number - journal.written > BURST:
            time.sleep(1e-3)
    journal.close()
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(
        f"{journal.written:,} lines written, {journal.dropped:,} dropped, {size / 2**20:,.0f} MiB in {len([*folder.iterdir()])} files: "
        f"{lines / seconds:,.0f} lines/s, {1e6 * cpu / lines:.1f} core-us a line, the making of the answers included"
    )


def read_lines(folder: Path) -> None:
    """Let ``sentiment watch`` read a journal, then search it for what it does not have; print seconds and memory."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "sentiment", "watch", "--input", str(folder)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seconds = time.perf_counter() - begun
    texts = next(line for line in output.splitlines() if line.startswith("texts"))
    # Of the largest child until now: there was no other.
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"sentiment watch: {' '.join(texts.split())}, {seconds:.1f} s, {memory:,.0f} MiB at most")
    index, before = JournalIndex(folder), psutil.Process().memory_info().rss
    searches: list[float] = []
    for _ in range(2):
        begun = time.perf_counter()
        while not index.find([Asked("nobody", 0)], READ_BYTES)[1]:
            pass
        searches.append(time.perf_counter() - begun)
    memory = (psutil.Process().memory_info().rss - before) / 2**20
    print(f"a request id that it does not have: {searches[0]:.2f} s, then {1e3 * searches[1]:.2f} ms, {memory:,.0f} MiB")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of the servers; 0: none (default: 5)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load (default: 5)")
    parser.add_argument("--lines", type=int, default=10_000_000, help="of the journal; 0: none (default: 10,000,000)")
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if options.lines:
        with tempfile.TemporaryDirectory() as folder:
            write_lines(Path(folder), options.lines)
            read_lines(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        bundle = find_bundle("english", bundle_roots([]))
        found = asyncio.run(measure_servers(bundle, Path(folder), options.seconds, options.rounds)) if options.rounds else {}
    for name, figures in found.items():
        print(f"{name:20} " + ", ".join(f"{value:,.4g} {what}" for what, value in figures.items()))


if __name__ == "__main__":
    main()
