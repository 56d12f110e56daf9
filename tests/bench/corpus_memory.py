"""``sentiment-batch`` on a corpus larger than its memory: python -m tests.bench.corpus_memory [CORPUS_MB] [LIMIT_MB]. Needs root.

The command with its Ray and two workers runs in a memory cgroup (v1 or v2) of its own, without swap; half of the corpus is one file of JSON
lines, half one Parquet file of a single row group. The tiny bundle scores it, so that reading is what counts.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pyarrow
from pyarrow import parquet

from tests.tiny import make_bundle

TEXT = "good film " * 10_000
GROUP = (
    Path("/sys/fs/cgroup/memory/sentiment-corpus") if Path("/sys/fs/cgroup/memory").exists() else Path("/sys/fs/cgroup/sentiment-corpus")
)


def write_corpus(folder: Path, rows: int) -> int:
    """Two files of so many rows each; returns their bytes."""
    folder.mkdir()
    with (folder / "a.jsonl").open("w") as stream:
        stream.writelines(json.dumps({"text": f"{number} {TEXT}"}) + "\n" for number in range(rows))
    texts = pyarrow.array([f"{number} {TEXT}" for number in range(rows)], pyarrow.large_string())
    table = pyarrow.table({"text": texts})
    # Pages of 1 MB, as writers make them of shorter texts: they are counted in rows.
    parquet.write_table(table, folder / "b.parquet", compression="none", use_dictionary=False, row_group_size=rows, write_batch_size=10)
    return sum(path.stat().st_size for path in folder.iterdir())


def run_limited(command: Sequence[str], limit: int) -> tuple[int, int]:
    """Run in the group; returns the exit code and the peak of the processes' memory, what they share counted once (page cache not)."""
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.2):
            peak = max(peak, _anonymous(GROUP))

    GROUP.mkdir()
    try:
        (GROUP / ("memory.limit_in_bytes" if (GROUP / "memory.limit_in_bytes").exists() else "memory.max")).write_text(str(limit))
        thread = threading.Thread(target=watch)
        thread.start()
        code = subprocess.run(
            command, preexec_fn=lambda: (GROUP / "cgroup.procs").write_text(str(os.getpid())), timeout=900, check=False
        ).returncode
        done.set()
        thread.join()
    finally:
        for pid in map(int, (GROUP / "cgroup.procs").read_text().split()):
            psutil.Process(pid).kill()
        time.sleep(1)
        GROUP.rmdir()
    return code, peak


def _anonymous(group: Path) -> int:
    fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(fields.get("anon") or fields["total_rss"]) + int(fields.get("shmem", 0))


def main() -> None:
    """Measure and print."""
    corpus_mb, limit_mb = int(sys.argv[1] if sys.argv[1:] else 3000), int(sys.argv[2] if sys.argv[2:] else 1500)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_bundle(folder / "bundles")
        size = write_corpus(folder / "in", corpus_mb * 2**20 // 2 // len(TEXT))
        command = [sys.executable, "-m", "sentiment.corpus", str(folder / "in"), str(folder / "out"), "--workers", "2"]
        begun = time.monotonic()
        code, peak = run_limited([*command, "--model", "tiny", "--bundles", str(folder / "bundles")], limit_mb * 2**20)
        seconds = time.monotonic() - begun
        report = json.loads((folder / "out/_report.json").read_text()) if code == 0 else {}
    print(f"corpus {size / 2**20:,.0f} MB, limit {limit_mb:,} MB, peak {peak / 2**20:,.0f} MB, {seconds:.0f} s, exit {code}, {report}")


if __name__ == "__main__":
    main()
