"""A disk that is full"""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import dataset

from sentiment.observability.journal_files import files_of
from sentiment_models import cli as models_cli
from tests.conftest import leave_out
from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import Callers
from tests.core.faults.own_process import OwnProcess
from tests.core.servers import until
from tests.tools.corpus.pools import LOCAL, RAY, pool_of

Captured = pytest.CaptureFixture[str]
KIB = 2**10
# What every command reports: the fact, and what to do.
FULL = "No space left on device"
ADVICE = f"{FULL}; make room and repeat the command"


class Disk:
    """A file system in memory of this size. Once filled, it stays full until ``make_room``."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self._ballast = folder, folder / "ballast"
        if os.geteuid():
            leave_out("a full disk", "needs root to mount it")
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        mounted = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
        if mounted.returncode:
            leave_out("a full disk", f"cannot be mounted: {mounted.stderr.strip()}")

    def fill(self, left: int = 0) -> "Disk":
        """Take all space except ``left`` bytes."""
        with self._ballast.open("ab", buffering=0) as stream:
            try:
                while stream.write(bytes(4 * KIB)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC
            stream.truncate(max(0, stream.tell() - left))
        return self

    def make_room(self, size: int | None = None) -> None:
        """Free ``size`` bytes; by default, all that ``fill`` has taken."""
        os.truncate(self._ballast, 0 if size is None else self._ballast.stat().st_size - size)

    def names(self) -> list[str]:
        """The other files."""
        return sorted(path.name for path in self.folder.iterdir() if path != self._ballast)

    def unmount(self) -> None:
        # Lazily, because files on it may still be open.
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True, timeout=20)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Disk]]:
    disks: list[Disk] = []

    def mount(size: int) -> Disk:
        disks.append(Disk(tmp_path / "disk", size))
        return disks[-1]

    yield mount
    for one in disks:
        one.unmount()


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"a film w{number % 32} and the film {number}\n" for number in range(3000)))
    return path


def is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("front_ends", ["0", "2"], ids=["one process", "front ends"])
def test_a_server_whose_disk_is_full(
    disk: Callable[[int], Disk], spawn: Callable[..., OwnProcess], evidence: Evidence, front_ends: str
) -> None:
    """All calls are answered, and SIGTERM ends the server.

    The log (a line for every call), cache_dir and TMPDIR are on a disk that is full from the start. Under load, it twice gets 128 KiB of
    room, which the log fills each time. SIGTERM ends the server on the full disk.
    """
    full = disk(512 * KIB).fill()
    log = full.folder / "log"
    with log.open("ab") as stderr:
        flags = ("--log-level", "debug", "--cache-dir", str(full.folder / "cache"), "--front-ends", front_ends)
        server = spawn(*flags, stderr=stderr, env=os.environ | {"TMPDIR": str(full.folder)})

    def wait_dropped() -> None:
        before = server.total("log_lines_dropped_total")
        until(lambda: server.total("log_lines_dropped_total") >= before + 100, "100 lines are dropped")

    # Every call is answered, however slow the machine.
    with Callers(server.target, channels=4, timeout_s=30.0) as callers:
        wait_dropped()
        assert log.stat().st_size == 0
        for times in (1, 2):
            full.make_room(128 * KIB)
            until(lambda: log.stat().st_size == 128 * KIB * times, "the log fills the disk")  # noqa: B023  # at once
            wait_dropped()
        callers.wait(100)
    dropped = server.total("log_lines_dropped_total")
    server.process.terminate()
    assert server.finish() == 0

    evidence.judge(callers.fates)
    evidence.measured |= {
        "log lines dropped": int(dropped),
        "99 % of calls within, ms": round(callers.fates.seconds(0.99) * 1e3, 1),
    }
    lines = [line for line in log.read_text().splitlines() if line]
    whole = [line for line in lines if is_json(line)]
    assert {"call", "log_lines_lost"} <= {json.loads(line)["event"] for line in whole}
    # Lines are cut where the disk was full. The next line of the same process begins on a new line; that of another process may not.
    cut = [line for line in lines if line not in whole]
    assert len(cut) <= 2
    assert front_ends == "2" or all(line.count('{"') <= 1 for line in cut)
    assert set(full.names()) <= {"cache", "log"}
    assert not list(full.folder.glob("cache/*"))


def test_a_journal_whose_disk_is_full(
    disk: Callable[[int], Disk], spawn: Callable[..., OwnProcess], evidence: Evidence, capfd: pytest.CaptureFixture[str]
) -> None:
    """All calls are answered, and SIGTERM ends the server.

    The journal is on a disk that is full from the start. Under load, the disk twice gets 32 KiB of room, which the journal fills each
    time, and then as much as the journal may take. SIGTERM ends the server.
    """
    full = disk(512 * KIB).fill()
    folder = full.folder / "journal"
    folder.mkdir()
    flags = ("--journal", str(folder), "--journal-bytes-max", str(256 * KIB), "--journal-file-bytes-max", str(64 * KIB))
    server = spawn(*flags)

    def wait(metric: str, more: int = 100) -> None:
        before = server.total(metric)
        until(lambda: server.total(metric) >= before + more, f"{metric} grows by {more}")

    with Callers(server.target, channels=4) as callers:
        wait("journal_lines_dropped_total")
        assert server.total("journal_lines_total") == 0
        for _ in (1, 2):
            full.make_room(32 * KIB)
            until(lambda: sum(path.stat().st_size for path in files_of(folder)) % (32 * KIB) > 30 * KIB, "the journal fills the disk")
            wait("journal_lines_dropped_total")
        full.make_room()
        dropped = server.total("journal_lines_dropped_total")
        wait("journal_lines_total", 2000)
    server.process.terminate()
    assert server.finish() == 0

    evidence.judge(callers.fates)
    evidence.measured |= {
        "journal lines dropped": int(dropped),
        "99 % of calls within, ms": round(callers.fates.seconds(0.99) * 1e3, 1),
    }
    # No line is torn, and the journal says once in each spell that it cannot write.
    assert all(is_json(line) for path in files_of(folder) for line in path.read_text().splitlines())
    assert sum(path.stat().st_size for path in files_of(folder)) <= 256 * KIB
    logged = [json.loads(line) for line in capfd.readouterr().err.splitlines() if is_json(line)]
    reasons = [line["reason"] for line in logged if line["event"] == "journal_not_written"]
    assert 1 <= len(reasons) < 50
    assert set(reasons) == {FULL}
    assert "journal_lines_lost" in {line["event"] for line in logged}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [LOCAL, RAY])
def test_sentiment_batch_fills_the_disk_and_resumes(
    disk: Callable[[int], Disk], bundles: Path, texts: Path, tmp_path: Path, evidence: Evidence, kind: str
) -> None:
    """It ends with exit code 1; a repeat completes the rows.

    Two workers, of this machine or of a Ray cluster, score 3,000 texts in about 20 parts, on a disk with room for a few of them (32 KiB).
    The command ends with exit code 1 and a line that says which file, why and what to do; every part is complete or absent. After room is
    made, the repeated command gives the rows of an undisturbed run.
    """
    full = disk(4 * KIB * KIB).fill(left=32 * KIB)

    def rows(output: Path) -> list[dict[str, Any]]:
        return sorted(dataset.dataset(output, format="parquet").to_table().to_pylist(), key=lambda row: row["position"])

    with pool_of(kind) as pool:

        def run(output: Path) -> subprocess.CompletedProcess[str]:
            options = ["--model", "tiny", "--bundles", str(bundles), "--part-bytes", "5000", *pool.arguments]
            command = [sys.executable, "-m", "sentiment_tools.corpus", str(texts), str(output), *options]
            return subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)

        failed = run(full.folder / "out")
        assert failed.returncode == 1, failed.stderr
        assert "Traceback" not in failed.stderr
        message = failed.stderr.splitlines()[-1]
        assert f"{full.folder}/out/part-" in message
        assert message.endswith(f"cannot be written: {ADVICE}")
        kept = len(rows(full.folder / "out"))
        assert 0 < kept < 3000
        assert not (full.folder / "out" / "_report.json").exists()
        full.make_room()
        again = run(full.folder / "out")
        assert again.returncode == 0, again.stderr
        assert run(tmp_path / "whole").returncode == 0

    assert rows(full.folder / "out") == rows(tmp_path / "whole")
    evidence.measured |= {"rows before the disk was full": kept, "rows in the end": len(rows(full.folder / "out"))}


@pytest.mark.thorough
def test_sentiment_models_export_to_a_full_disk(disk: Callable[[int], Disk], tmp_path: Path, capsys: Captured, evidence: Evidence) -> None:
    """It ends with exit code 1 and leaves nothing.

    A checkpoint is exported to a disk with room for nothing, for the small files, for the weights, and for all but the last graph. Each
    export ends with exit code 1 and a line that says which file, why and what to do, and leaves nothing. With enough room, it succeeds.
    """
    from tests.models.tiny_bert import save_tiny_bert

    checkpoint = save_tiny_bert(tmp_path / "checkpoint")
    full = disk(4 * KIB * KIB)
    bundle = full.folder / "tiny" / "1"
    bundle.parent.mkdir()
    rooms = (0, 16 * KIB, 64 * KIB, 192 * KIB)
    for room in rooms:
        full.fill(left=room)
        assert models_cli.main(["export", str(checkpoint), "--out", str(bundle)]) == 1, room
        message = capsys.readouterr().err.splitlines()[-1]
        assert str(bundle.parent) in message
        assert message.endswith(f"cannot be written: {ADVICE}"), message
        assert list(bundle.parent.iterdir()) == []
        full.make_room()
    assert models_cli.main(["export", str(checkpoint), "--out", str(bundle)]) == 0
    assert (bundle / "manifest.json").exists()
    evidence.measured["exports that found the disk full"] = len(rooms)
