"""How much memory the container of this process may use, and uses."""

import math
from collections.abc import Iterator
from pathlib import Path

from sentiment.model.cgroup import ROOT, settings_of

# Version 1 writes no limit as a huge number.
NO_LIMIT_BYTES = 2**60


def memory_granted(root: Path = ROOT) -> int | None:
    """Bytes of the cgroup's limit (v2 memory.max or v1 memory.limit_in_bytes), beyond which the kernel ends a process; None without one."""
    least = min((_limit(limit) for limit, _, _ in _groups(root)), default=math.inf)
    return None if math.isinf(least) else int(least)


def memory_used(root: Path = ROOT) -> int:
    """Bytes that count against the limit, of its group, as a kubelet counts them: without files that were not read lately."""
    found = [(limit, current, stat) for limit, current, stat in _groups(root) if current.isdigit()]
    _, current, stat = min(found, key=lambda group: _limit(group[0]), default=("", "0", ""))
    unread = [line.split()[1] for line in stat.splitlines() if line.startswith(("inactive_file ", "total_inactive_file "))]
    # Version 1 has both, of the group alone and of those within.
    return max(0, int(current) - max(map(int, unread), default=0))


def _groups(root: Path) -> Iterator[tuple[str, str, str]]:
    """The limit, use and statistics of the process's groups, from the inside to the outside."""
    for names, controller in ((("memory.max", "memory.current"), ""), (("memory.limit_in_bytes", "memory.usage_in_bytes"), "memory")):
        yield from zip(*(settings_of(root, name, controller) for name in (*names, "memory.stat")), strict=True)


def _limit(written: str) -> float:
    return int(written) if written.isdigit() and int(written) < NO_LIMIT_BYTES else math.inf
