"""How many cores this process may use. A container's CPU quota counts; the number of cores of the host does not."""

import os
from pathlib import Path

from sentiment.model.cgroup import ROOT, settings_of


def cores_granted(root: Path = ROOT) -> int:
    """Whole cores granted by CPU affinity and by the cgroup quota (v2 cpu.max or v1 cpu.cfs_quota_us), at least 1.

    A quota of 2.5 cores counts as 2: a third runner would be throttled in the middle of a batch.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    of_v1 = zip(settings_of(root, "cpu.cfs_quota_us", "cpu"), settings_of(root, "cpu.cfs_period_us", "cpu"), strict=True)
    quotas = [*(tuple(found.split()) for found in settings_of(root, "cpu.max")), *of_v1]
    cores = [int(fields[0]) // int(fields[1]) for fields in quotas if len(fields) == 2 and all(map(str.isdigit, fields))]
    return max(1, min([affinity, *cores]))
