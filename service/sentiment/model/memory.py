"""How much memory the container of this process may use, and uses."""

from pathlib import Path

from sentiment.model.cgroup import ROOT, settings_of

# Version 1 writes no limit as a huge number.
NO_LIMIT_BYTES = 2**60


def memory_granted(root: Path = ROOT) -> int | None:
    """Bytes of the cgroup's limit (v2 memory.max or v1 memory.limit_in_bytes), beyond which the kernel ends a process; None without one."""
    found = [*settings_of(root, "memory.max"), *settings_of(root, "memory.limit_in_bytes", "memory")]
    return min((int(limit) for limit in found if limit.isdigit() and int(limit) < NO_LIMIT_BYTES), default=None)


def memory_used(root: Path = ROOT) -> int:
    """Bytes that count against the limit and cannot be dropped, as a kubelet counts them: without files that were not read lately."""
    for used, stat, controller in (("memory.current", "inactive_file", ""), ("memory.usage_in_bytes", "total_inactive_file", "memory")):
        # Of the innermost group that can be seen.
        current, fields = (next(filter(None, settings_of(root, file, controller)), "") for file in (used, "memory.stat"))
        if current.isdigit():
            unread = [line.split()[1] for line in fields.splitlines() if line.startswith(f"{stat} ")]
            return max(0, int(current) - sum(map(int, unread)))
    return 0
