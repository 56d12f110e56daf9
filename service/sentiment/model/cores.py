"""How many cores this process may use. A container's CPU quota counts; the number of cores of the host does not."""

import os
from pathlib import Path


def cores_granted(root: Path = Path("/")) -> int:
    """Whole cores granted by CPU affinity and by the cgroup quota (v2 cpu.max or v1 cpu.cfs_quota_us), at least 1.

    A quota of 2.5 cores counts as 2: a third runner would be throttled in the middle of a batch.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quotas = [quota for quota in (_quota_v2(root), _quota_v1(root)) if quota is not None]
    return max(1, min([affinity, *(int(quota) for quota in quotas)]))


def _quota_v2(root: Path) -> float | None:
    found = []
    for folder in _folders(root / "sys/fs/cgroup", _own_group(root, "0::")):
        fields = _read(folder / "cpu.max").split()
        if len(fields) == 2 and fields[0].isdigit():
            found.append(int(fields[0]) / int(fields[1]))
    return min(found, default=None)


def _quota_v1(root: Path) -> float | None:
    found = []
    for folder in _folders(root / "sys/fs/cgroup/cpu", _own_group(root, "cpu,", ":cpu:", "cpuacct,cpu")):
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():
            found.append(int(quota) / int(period))
    return min(found, default=None)


def _folders(base: Path, group: str) -> list[Path]:
    """The cgroup of this process and its ancestors. The smallest of their quotas applies."""
    own = base / group.lstrip("/")
    return [folder for folder in (own, *own.parents) if folder == base or base in folder.parents]


def _own_group(root: Path, *marks: str) -> str:
    for line in _read(root / "proc/self/cgroup").splitlines():
        if any(line.startswith(mark) or mark in line for mark in marks):
            return line.rsplit(":", 1)[-1]
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
