"""The memory that a container grants and uses, from files as the kernel writes them."""

from pathlib import Path

import pytest

from sentiment.model.memory import memory_granted, memory_used
from tests.core.model.test_cores import machine

STAT = "anon 300\nfile 500\ninactive_file 200\nactive_file 300"
STAT_V1 = "cache 500\nrss 300\ninactive_file 1\ntotal_inactive_file 200\ntotal_active_file 300"


def v2(root: Path, **limits: str) -> Path:
    """The process is in /pod/container; a group's limit by its name."""
    folders = {"top": "", "pod": "pod/", "container": "pod/container/"}
    files = {f"sys/fs/cgroup/{folders[name]}memory.max": limit for name, limit in limits.items()}
    return machine(root, {"proc/self/cgroup": "0::/pod/container", **files})


@pytest.mark.parametrize(
    ("limits", "granted"),
    [
        ({}, None),
        ({"container": "max", "pod": "max"}, None),
        ({"container": "536870912", "pod": "max"}, 2**29),
        ({"container": "max", "pod": "1073741824"}, 2**30),
        ({"container": "536870912", "pod": "1000"}, 1000),
        ({"top": "4096"}, 4096),
        ({"container": ""}, None),
    ],
)
def test_of_nested_v2_groups_the_least_limit_wins(tmp_path: Path, limits: dict[str, str], granted: int | None) -> None:
    assert memory_granted(v2(tmp_path, **limits)) == granted


@pytest.mark.parametrize(("limit", "granted"), [("1610612736", 1536 * 2**20), ("9223372036854771712", None)])
def test_of_v1_a_huge_number_stands_for_no_limit(tmp_path: Path, limit: str, granted: int | None) -> None:
    files = {"proc/self/cgroup": "4:memory:/pod\n0::/", "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": limit}

    assert memory_granted(machine(tmp_path, files)) == granted


def test_files_that_can_be_dropped_do_not_count_as_used(tmp_path: Path) -> None:
    of_v2 = {"sys/fs/cgroup/memory.current": "1000", "sys/fs/cgroup/memory.stat": STAT}
    of_v1 = {"sys/fs/cgroup/memory/memory.usage_in_bytes": "1000", "sys/fs/cgroup/memory/memory.stat": STAT_V1}

    assert memory_used(machine(tmp_path / "v2", {"proc/self/cgroup": "0::/not/seen", **of_v2})) == 800
    assert memory_used(machine(tmp_path / "v1", {"proc/self/cgroup": "4:memory:/", **of_v1})) == 800
    assert memory_used(tmp_path / "none") == 0
