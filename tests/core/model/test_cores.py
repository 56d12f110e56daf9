"""The cores that a container grants, from files as the kernel writes them."""

import os
from pathlib import Path

import pytest

from sentiment.model.cores import cores_granted


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Affinity grants eight, so that the quota decides."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root


def v2(root: Path, group: str, **quotas: str) -> Path:
    """Version 2: the process is in ``group``. Quotas by group: _ separates the levels, ``top`` is the root."""
    files = {"proc/self/cgroup": f"0::{group}"}
    for name, quota in quotas.items():
        folder = "" if name == "top" else name.replace("_", "/") + "/"
        files[f"sys/fs/cgroup/{folder}cpu.max"] = quota
    return machine(root, files)


def v1(root: Path, quota: str, period: str = "100000", folder: str = "", group: str = "/") -> Path:
    return machine(
        root,
        {
            "proc/self/cgroup": f"11:memory:{group}\n4:cpu,cpuacct:{group}\n3:cpuset:/elsewhere\n1:name=systemd:/elsewhere",
            f"sys/fs/cgroup/cpu{folder}/cpu.cfs_quota_us": quota,
            f"sys/fs/cgroup/cpu{folder}/cpu.cfs_period_us": period,
        },
    )


def test_without_a_quota_affinity_decides(tmp_path: Path) -> None:
    assert cores_granted(tmp_path) == 8


def test_affinity_is_respected_under_a_larger_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    v2(tmp_path, "/", top="600000 100000")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})

    assert cores_granted(tmp_path) == 2


def test_without_affinity_the_cores_of_the_system_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)

    assert cores_granted(tmp_path) == 5


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("250000 100000", 2),
        ("299999 100000", 2),
        ("100000 100000", 1),
        ("50000 100000", 1),
        ("1000 100000", 1),
        ("30000 10000", 3),
        ("6400000 100000", 8),
        ("", 8),
        ("nonsense", 8),
    ],
)
def test_a_v2_quota_grants_whole_cores_and_at_least_one(tmp_path: Path, quota: str, cores: int) -> None:
    assert cores_granted(v2(tmp_path, "/", top=quota)) == cores


@pytest.mark.parametrize(
    ("quotas", "cores"),
    [
        ({"pod": "400000 100000", "pod_container": "200000 100000"}, 2),
        ({"pod": "200000 100000", "pod_container": "400000 100000"}, 2),
        ({"pod": "300000 100000", "pod_container": "max 100000"}, 3),
        ({"pod": "max 100000", "pod_container": "max 100000"}, 8),
        ({"top": "200000 100000", "pod": "max 100000", "pod_container": "500000 100000"}, 2),
        ({"pod_container": "300000 100000"}, 3),
        ({"other": "100000 100000", "pod_container_inner": "100000 100000"}, 8),
    ],
)
def test_of_nested_v2_groups_the_smallest_quota_wins(tmp_path: Path, quotas: dict[str, str], cores: int) -> None:
    assert cores_granted(v2(tmp_path, "/pod/container", **quotas)) == cores


def test_of_an_invisible_v2_group_the_visible_quota_counts(tmp_path: Path) -> None:
    assert cores_granted(v2(tmp_path, "/host/path/of/the/container", top="200000 100000")) == 2
    assert cores_granted(v2(tmp_path, "/../../outside", top="300000 100000")) == 3


@pytest.mark.parametrize(
    ("quota", "period", "cores"),
    [("200000", "100000", 2), ("250000", "100000", 2), ("50000", "100000", 1), ("-1", "100000", 8), ("90000", "30000", 3)],
)
def test_a_v1_quota_grants_whole_cores_and_at_least_one(tmp_path: Path, quota: str, period: str, cores: int) -> None:
    assert cores_granted(v1(tmp_path, quota, period)) == cores


def test_the_v1_quota_of_the_processes_own_group_counts(tmp_path: Path) -> None:
    v1(tmp_path, "500000", group="/docker/abc")
    v1(tmp_path, "200000", folder="/docker/abc", group="/docker/abc")

    assert cores_granted(tmp_path) == 2


def test_of_an_invisible_v1_group_the_top_quota_counts(tmp_path: Path) -> None:
    assert cores_granted(v1(tmp_path, "200000", group="/kubepods/pod1/abc")) == 2


@pytest.mark.parametrize(("outer", "inner"), [("200000", "-1"), ("200000", "500000"), ("500000", "200000")])
def test_of_nested_v1_groups_the_smallest_quota_wins(tmp_path: Path, outer: str, inner: str) -> None:
    v1(tmp_path, outer, folder="/pod", group="/pod/container")
    v1(tmp_path, inner, folder="/pod/container", group="/pod/container")
    v1(tmp_path, "-1", group="/pod/container")

    assert cores_granted(tmp_path) == 2


def test_on_this_machine_it_is_at_least_one_core() -> None:
    assert cores_granted() >= 1
