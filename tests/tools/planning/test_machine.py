"""A replica's performance model: measured with a real model, kept in files, and read from a server's cost file."""

import json
import math
import random
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from sentiment.batching.layout import Packed
from sentiment.errors import BadSettings
from sentiment.lifecycle.loading import load
from sentiment.lifecycle.warm_up import keep_costs
from sentiment.settings import Settings
from sentiment_tools.planning import measuring
from sentiment_tools.planning.machine import Machine, read_machine
from sentiment_tools.planning.measuring import measure, measure_loaded
from tests.tiny import make_bundle


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "SLICE_S", 0.02)


def test_a_measurement_has_every_shape_of_the_warm_up_and_can_be_kept(settings: Settings, tmp_path: Path) -> None:
    loaded = load(settings.model_copy(update={"runners": 2}), measure_s=0.0)
    try:
        machine = measure_loaded(loaded, 0.3)
    finally:
        for runner in loaded.runners:
            runner.close(5.0)
    kept = tmp_path / "machine.json"

    kept.write_text(machine.to_json())

    assert set(machine.points) == set(loaded.cost.points()) and all(run_s > 0 for run_s in machine.points.values())
    assert machine.runners == 2 and machine.crowding >= 1 and machine.noise > 0 and machine.token_s >= 0 and machine.pace
    assert 0 <= machine.rested_s < 1
    assert machine.limits.rows == loaded.limits.rows
    assert read_machine(kept) == machine
    assert machine.key["digest"] == loaded.classifier.bundle.digest and machine.key["device"].startswith("CPUExecutionProvider ")


def test_a_bundle_is_measured_with_the_settings_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_bundle(tmp_path, "other")
    monkeypatch.setenv("SENTIMENT_BUNDLES", str(tmp_path))
    monkeypatch.setenv("SENTIMENT_BATCH_ROWS_MAX", "4")

    monkeypatch.setattr("os.getloadavg", lambda: (3.0, 2.0, 1.0))
    monkeypatch.setattr("os.cpu_count", lambda: 4)

    machine = measure("other", 0.1, runners=1)

    assert machine.runners == 1 and machine.limits.rows == 4
    assert machine.others_load == 0.75


def test_where_the_system_tells_no_load_average_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.getloadavg")

    assert measuring._load() == 0.0


def test_a_servers_own_cost_file_is_read(settings: Settings, tmp_path: Path) -> None:
    loaded = load(settings, measure_s=0.0)
    keep_costs(tmp_path, loaded.classifier, loaded.cost)
    for runner in loaded.runners:
        runner.close(5.0)
    (path,) = tmp_path.glob("cost-*.json")

    machine = read_machine(path)

    assert machine == Machine(pytest.approx(loaded.cost.points()), key=machine.key)  # type: ignore[arg-type]  # compares like a dict
    assert machine.key["digest"] == loaded.classifier.bundle.digest


def test_a_devices_cost_file_means_packed_batches_and_one_more_core(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps({"key": {"device": "CUDAExecutionProvider NVIDIA H200"}, "points": [[1, 8, 1e-3], [256, 8, 2e-3]]}))

    machine = read_machine(path)

    assert isinstance(machine.layout, Packed) and machine.shared_cores == machine.runners + 1
    assert replace(machine, front_ends=4).shared_cores == machine.runners + 5
    assert machine.limits.tokens == 2048


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "[" * 100_000,
        '{"points": []}',
        '{"points": [[1, 8]]}',
        *(f'{{"points": [{point}]}}' for point in ("[1, 8, -1]", "[1e999, 8, 1]", "[1, 1000000000, 1]", "[1, 8, 4000]")),
        *(
            f'{{"points": [[1, 8, 1]], {field}}}'
            for field in (
                *('"runners": 0', '"runners": 1.5', '"crowding": NaN', '"packed": "no"', '"pace": [0]', '"cores": 1e99'),
                *('"front_ends": 65', '"front_end_s": -1', '"row_s": "3"'),
                *('"callers": -1', '"others_load": -1', '"key": {"digest": 5}', '"key": 5'),
            )
        ),
    ],
)
def test_an_invalid_cost_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)

    with pytest.raises(BadSettings, match="not a cost file"):
        read_machine(path)


def test_runners_beyond_the_cores_share_them() -> None:
    machine = Machine({(1, 8): 1.0}, runners=4, cores=2, crowding=1.3)

    assert [machine.slowed(running) for running in (1, 2, 4)] == pytest.approx([1.0, 1.1, 2 * 1.3])
    assert replace(machine, cores=0).work_s(8) == pytest.approx(1.3)
    assert replace(machine, packed=True).slowed(4) == pytest.approx(1.3)


def test_the_range_of_the_cost_is_where_another_measurement_would_lie() -> None:
    rng = random.Random(1)
    print("seed 1")
    inside = []

    for _ in range(2000):
        first, second = ([math.exp(rng.gauss(0, 0.2)) for _ in range(7)] for _ in range(2))
        low, high = Machine({(1, 8): 1.0}, pace=tuple(first)).cost_range
        inside.append(low <= statistics.geometric_mean(second) / statistics.geometric_mean(first) <= high)

    assert statistics.fmean(inside) == pytest.approx(0.95, abs=0.015)


def test_without_two_intervals_the_range_of_the_cost_is_not_known() -> None:
    machine = Machine({(1, 8): 1.0}, noise=0.3, pace=(1.2,))

    assert machine.cost_range == (1.0, 1.0) and machine.spread == 0.3
    assert replace(machine, pace=(1.0, 1.0, 1.0)).cost_range == (1.0, 1.0)
    assert replace(machine, pace=(math.exp(0.4), math.exp(-0.4), 1.0)).spread == pytest.approx(0.5)
