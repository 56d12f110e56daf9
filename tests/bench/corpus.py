"""``sentiment-batch`` compared with a plain loop over the same texts: python -m tests.bench.corpus [ROUNDS] [ROWS] [JSON].

Interleaved in one run, on all cores. The loop tokenizes, sorts by length, pads, runs and scores, with the best of two batch sizes, once in
one process with a thread a core and once in a process a core, which share no GIL; it neither reads nor writes a file. The command's rate is
that between its first parts and its last, taken from the times of their files; what it takes to start Ray and the workers is told apart.
"""

import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import tokenizers
from pyarrow import parquet

from sentiment.model.bundle import bundle_roots, find_bundle
from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.cores import cores_granted
from sentiment.traffic.lengths import SHORT
from tests.bench.processes import idle_share
from tests.bench.texts import make_texts

LOOP_ROWS = (4, 16)
CHUNK = 1024
# Of some seconds each; without the option they would be larger.
PARTS = 16
# While the first parts are scored the last worker may still load its bundle.
PARTS_BEFORE = 2


def loop_rate(classifier: Classifier, texts: Sequence[str], rows: int, spread: Callable[..., Iterable[list[list[float]]]]) -> float:
    """Texts a second of the plain loop; ``spread`` is map, or that of a pool."""
    begun = time.perf_counter()
    for first in range(0, len(texts), CHUNK):
        encoded = sorted(classifier.tokenizer.encode_many(texts[first : first + CHUNK]), key=lambda row: row.tokens)
        for logits in spread(classifier.run, [encoded[start : start + rows] for start in range(0, len(encoded), rows)]):
            for row in logits:
                classifier.score(row)
    return len(texts) / (time.perf_counter() - begun)


def processes_rate(texts: Sequence[str], processes: int) -> float:
    """Texts a second of the plain loop in so many processes, each with its share of the texts."""
    context = multiprocessing.get_context("spawn")
    ready, found = context.Barrier(processes), context.Queue()
    started = [context.Process(target=_one_of, args=(texts[number::processes], ready, found)) for number in range(processes)]
    for process in started:
        process.start()
    rates = [found.get(timeout=600) for _ in started]
    for process in started:
        process.join()
    return max(map(sum, zip(*rates, strict=True)))


def _one_of(texts: Sequence[str], ready: Barrier, found: "Queue[list[float]]") -> None:
    classifier = load_classifier(find_bundle("english", bundle_roots(())))
    rates = []
    for rows in LOOP_ROWS:
        ready.wait(60)
        rates.append(loop_rate(classifier, texts, rows, map))
    found.put(rates)


def batch_rate(corpus: Path, texts: int) -> tuple[float, float]:
    """Texts a second of the command, and the seconds that it took beside."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        begun = time.time()
        step = str(corpus.stat().st_size // PARTS + 1)
        command = [sys.executable, "-m", "sentiment.corpus", str(corpus), str(out), "--part-bytes", step]
        subprocess.run(command, check=True, timeout=600, stderr=subprocess.DEVNULL)
        whole_s = time.time() - begun
        parts = sorted((path.stat().st_mtime, parquet.read_metadata(path).num_rows) for path in out.glob("part-*.parquet"))
    assert sum(rows for _, rows in parts) == texts
    rate = sum(rows for _, rows in parts[PARTS_BEFORE:]) / (parts[-1][0] - parts[PARTS_BEFORE - 1][0])
    return rate, whole_s - texts / rate


def main() -> None:
    """Measure, print, and write the file that is named."""
    rounds, count = int(sys.argv[1] if sys.argv[1:] else 3), int(sys.argv[2] if sys.argv[2:] else 40_000)
    bundle = find_bundle("english", bundle_roots(()))
    classifier = load_classifier(bundle)
    texts = make_texts(SHORT, count, tokenizers.Tokenizer.from_file(str(bundle / "tokenizer.json")))
    pool = ThreadPoolExecutor(cores_granted())
    found = []
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "texts.txt"
        corpus.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
        for number in range(rounds):
            idle = idle_share()
            loop = max(loop_rate(classifier, texts[: count // 4], rows, pool.map) for rows in LOOP_ROWS)
            apart = processes_rate(texts[: count // 4], cores_granted())
            batch, start_s = batch_rate(corpus, count)
            rates = {"loop_per_s": loop, "processes_per_s": apart, "batch_per_s": batch}
            found.append({"idle_before": idle, **rates, "ratio": batch / loop, "of_processes": batch / apart, "start_s": start_s})
            print(number, {name: round(value, 3) for name, value in found[-1].items()}, flush=True)
    ratio, apart = (statistics.median(entry[name] for entry in found) for name in ("ratio", "of_processes"))
    print(f"sentiment-batch on {cores_granted()} cores, median of {rounds}: {ratio:.3f} of the loop in one process (aimed at: 0.90)")
    print(f"and {apart:.3f} of the loop in a process a core")
    if sys.argv[3:]:
        Path(sys.argv[3]).write_text(json.dumps({"ratio": ratio, "of_processes": apart, "rounds": found}, indent=1))


if __name__ == "__main__":
    main()
