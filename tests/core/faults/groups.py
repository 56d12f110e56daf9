"""Memory cgroups, v1 or v2, that limit the memory of a process."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import leave_out
from tests.core.faults.seen import MB

V1 = Path("/sys/fs/cgroup/memory")
ROOT = V1 if V1.exists() else Path("/sys/fs/cgroup")


class Group:
    """A cgroup. Memory that a process takes after it has entered counts against the limit; there is no swap."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def enter(self, pid: int, limit_mb: float) -> None:
        """Let this process take ``limit_mb`` more memory, and no more."""
        if ROOT == V1:
            self._write("memory.limit_in_bytes", limit_mb)
            with contextlib.suppress(OSError):
                # Absent if the kernel does not account for swap.
                self._write("memory.memsw.limit_in_bytes", limit_mb)
        else:
            self._write("memory.max", limit_mb)
            with contextlib.suppress(OSError):
                self._write("memory.swap.max", 0)
        (self._folder / "cgroup.procs").write_text(str(pid))

    @property
    def kills(self) -> int:
        """How many processes the kernel has killed for lack of memory."""
        lines = (self._folder / ("memory.oom_control" if ROOT == V1 else "memory.events")).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.split()[0] == "oom_kill")

    def _write(self, name: str, mb: float) -> None:
        (self._folder / name).write_text(str(int(mb * MB)))


@contextlib.contextmanager
def group(name: str) -> Iterator[Group]:
    """A new cgroup, removed afterwards. The test is skipped where none can be made."""
    # Named for this process: another run on the same machine has groups of its own.
    folder = ROOT / f"sentiment-{name}-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        leave_out("cgroup", f"cannot be made: {error}")
    try:
        if ROOT != V1 and not (folder / "memory.max").exists():
            leave_out("cgroup", "has no memory controller here")
        yield Group(folder)
    finally:
        for pid in (folder / "cgroup.procs").read_text().split():
            (ROOT / "cgroup.procs").write_text(pid)
        for _ in range(100):
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.05)
