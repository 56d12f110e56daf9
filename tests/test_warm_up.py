"""Warm-up: every shape is run and priced, and what was measured is kept without ever costing a start."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog

from sentiment.batching.cost import REMEMBERED, CostTable, Shape
from sentiment.batching.plan import BatchLimits
from sentiment.errors import BadBundle, BadSettings, OutOfMemory
from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.runner import Ran
from sentiment.model.tokenizer import Row
from sentiment.serving.lifecycle import warm_up as module
from sentiment.serving.lifecycle.warm_up import ROUNDS_MAX, first_runs, keep_costs, warm_up
from tests.tiny import make_bundle

LIMITS = BatchLimits(rows=8, tokens=128, scores_bytes=2**30, heads=2)
# The tiny bundle reads 32 tokens, and 128 tokens are 4 rows of them.
SHAPES = [(4, 32), (8, 8), (2, 32), (1, 32), (2, 8), (1, 8)]


@dataclass
class Machine:
    """In the place of ``run_batch``: notes what is run and says what it took."""

    ran: list[Shape] = field(default_factory=list)
    takes: Callable[[Shape], float] = lambda shape: 1e-3 * shape[0] * shape[1]

    def __call__(self, classifier: Classifier, rows: Sequence[Row]) -> Ran:
        shape = len(rows), rows[0].tokens
        self.ran.append(shape)
        seconds = self.takes(shape)
        return Ran([[0.0, 0.0]] * len(rows), seconds / 4, seconds * 3 / 4)


@pytest.fixture(scope="module")
def classifier(bundles: Path) -> Classifier:
    return load_classifier(bundles / "tiny" / "1")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(module, "run_batch", machine)
    return machine


def kept_file(cache: Path) -> Path:
    (path,) = cache.iterdir()
    return path


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:  # Any: parsed JSON
    kept = json.loads(path.read_text())
    edit(kept)
    path.write_text(json.dumps(kept))


def test_every_shape_of_a_real_bundle_is_run_and_priced(classifier: Classifier) -> None:
    table = warm_up(classifier, LIMITS, measure_s=0.0)

    assert set(table.points()) == set(SHAPES)
    assert all(0 < seconds < 10 for seconds in table.points().values())


def test_every_shape_is_run_once_the_largest_first_however_long_that_takes(classifier: Classifier, machine: Machine) -> None:
    table = warm_up(classifier, LIMITS, measure_s=0.0)

    sizes = [rows * length for rows, length in machine.ran]
    assert sizes == [128, 64, 64, 32, 16, 8]
    assert set(machine.ran) == set(SHAPES)
    # Padding and running together.
    assert table.points() == pytest.approx({shape: 1e-3 * shape[0] * shape[1] for shape in SHAPES})


def test_while_time_is_left_shapes_are_run_again_and_the_least_of_their_times_counts(classifier: Classifier, machine: Machine) -> None:
    machine.takes = lambda shape: 1e-3 / machine.ran.count(shape)

    table = warm_up(classifier, LIMITS, measure_s=1e9)

    assert {shape: machine.ran.count(shape) for shape in SHAPES} == dict.fromkeys(SHAPES, ROUNDS_MAX)
    assert table.points() == pytest.approx(dict.fromkeys(SHAPES, 1e-3 / ROUNDS_MAX))


def test_no_run_is_repeated_that_would_take_longer_than_is_left(classifier: Classifier, machine: Machine) -> None:
    machine.takes = lambda shape: 1e6 if shape == (4, 32) else 1e-9

    warm_up(classifier, LIMITS, measure_s=1e3)

    assert machine.ran.count((4, 32)) == 1
    assert machine.ran.count((8, 8)) == ROUNDS_MAX


def test_a_graph_that_cannot_run_a_shape_stops_the_start_and_the_shape_is_named(classifier: Classifier, machine: Machine) -> None:
    def fail(shape: Shape) -> float:
        raise RuntimeError("no kernel")

    machine.takes = fail

    with pytest.raises(BadBundle, match=r"cannot run \d+ rows of \d+ tokens: no kernel"):
        warm_up(classifier, LIMITS)


def test_nothing_is_kept_unless_a_folder_is_given(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    warm_up(classifier, LIMITS, measure_s=0.0)
    assert list(tmp_path.iterdir()) == []

    warm_up(classifier, LIMITS, tmp_path / "new" / "folder", measure_s=0.0)

    assert kept_file(tmp_path / "new" / "folder").name.startswith("cost-")


def test_a_kept_table_is_read_back_and_only_the_largest_shape_is_run(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    measured = warm_up(classifier, LIMITS, tmp_path, measure_s=0.0)
    machine.ran.clear()

    read = warm_up(classifier, LIMITS, tmp_path, measure_s=1e9)

    assert len(machine.ran) == 1
    assert machine.ran[0][0] * machine.ran[0][1] == 128
    assert read.points() == pytest.approx(measured.points(), rel=1e-12)


def test_what_batches_have_taught_is_there_at_the_next_start(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    table = warm_up(classifier, LIMITS, tmp_path, measure_s=0.0)
    for _ in range(REMEMBERED):
        table.observe(1, 8, 1.0)

    keep_costs(tmp_path, classifier, table)

    read = warm_up(classifier, LIMITS, tmp_path, measure_s=0.0)
    assert read.points()[(1, 8)] == pytest.approx(table.points()[(1, 8)])
    assert read.points()[(1, 8)] > 2 * 8e-3


def measured_anew(classifier: Classifier, machine: Machine, cache: Path, limits: BatchLimits = LIMITS) -> bool:
    """Whether the next start measures; it must measure or read, and nothing between."""
    machine.ran.clear()
    warm_up(classifier, limits, cache, measure_s=0.0)
    assert len(machine.ran) == 1 or len(machine.ran) > 4
    return len(machine.ran) > 1


def test_another_bundle_is_measured_and_the_first_ones_table_stays(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    other = load_classifier(make_bundle(tmp_path / "other", version=2))
    assert measured_anew(classifier, machine, cache)

    assert measured_anew(other, machine, cache)

    assert not measured_anew(classifier, machine, cache)
    assert not measured_anew(other, machine, cache)


def test_another_runtime_is_measured(classifier: Classifier, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured_anew(classifier, machine, tmp_path)

    monkeypatch.setattr(module, "RUNTIME_VERSION", "0.0.1")

    assert measured_anew(classifier, machine, tmp_path)


@pytest.mark.parametrize("what", ["_processor", "cores_granted"])
def test_another_machine_is_measured(
    what: str, classifier: Classifier, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_anew(classifier, machine, tmp_path)

    monkeypatch.setattr(module, what, lambda: 99)

    assert measured_anew(classifier, machine, tmp_path)


def test_other_limits_have_other_shapes_and_are_measured(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    measured_anew(classifier, machine, tmp_path)

    assert measured_anew(classifier, machine, tmp_path, BatchLimits(rows=8, tokens=256, scores_bytes=2**30, heads=2))


def test_a_table_under_the_name_of_another_key_is_not_believed(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    measured_anew(classifier, machine, tmp_path)

    change(kept_file(tmp_path), lambda kept: kept["key"].update(digest="another"))

    assert measured_anew(classifier, machine, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"key": {"digest": "ab', id="half-written"),
        pytest.param(b"\xff\xfe\x00", id="not text"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'"text"', id="a string"),
        pytest.param(b"{}", id="without points"),
        pytest.param(b'{"key": KEY, "points": [[1, 8]]}', id="a point without seconds"),
        pytest.param(b'{"key": KEY, "points": [[1, 8, null]]}', id="a point that is null"),
        pytest.param(b'{"key": KEY, "points": [[Infinity, 8, 1.0]]}', id="infinitely many rows"),
        pytest.param(b'{"key": KEY, "points": {"rows": 1}}', id="points by name"),
    ],
)
def test_a_file_that_cannot_be_read_is_logged_and_replaced(text: bytes, classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    measured_anew(classifier, machine, tmp_path)
    path = kept_file(tmp_path)
    key = json.dumps(json.loads(path.read_text())["key"])
    path.write_bytes(text.replace(b"KEY", key.encode()))

    with structlog.testing.capture_logs() as logs:
        assert measured_anew(classifier, machine, tmp_path)

    assert [(log["event"], log["log_level"], log["path"]) for log in logs] == [("cost_table_unreadable", "warning", str(path))]
    assert not measured_anew(classifier, machine, tmp_path)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_kept_cost_that_no_run_can_have_is_logged_and_replaced(
    seconds: float, classifier: Classifier, machine: Machine, tmp_path: Path
) -> None:
    measured_anew(classifier, machine, tmp_path)
    change(kept_file(tmp_path), lambda kept: kept["points"][0].__setitem__(2, seconds))

    with structlog.testing.capture_logs() as logs:
        assert measured_anew(classifier, machine, tmp_path)

    assert [log["event"] for log in logs] == ["cost_table_unreadable"]


def test_no_kept_table_is_nothing_to_log(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        warm_up(classifier, LIMITS, tmp_path / "none yet", measure_s=0.0)

    assert logs == []


def test_a_folder_that_cannot_be_written_is_logged_and_the_start_goes_on(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")

    with structlog.testing.capture_logs() as logs:
        table = warm_up(classifier, LIMITS, tmp_path / "file", measure_s=0.0)

    assert set(table.points()) == set(SHAPES)
    assert [log["event"] for log in logs if log["event"] == "cost_table_not_kept"] == ["cost_table_not_kept"]
    assert (tmp_path / "file").read_text() == "not a folder"


def test_a_disk_that_fails_half_way_leaves_the_last_table_and_no_rest(
    classifier: Classifier, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = warm_up(classifier, LIMITS, tmp_path, measure_s=0.0)
    before = kept_file(tmp_path).read_text()
    table.observe(1, 8, 1.0)

    def full(self: Path, text: str, **_: object) -> int:
        with self.open("w") as file:
            file.write(text[:20])
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with structlog.testing.capture_logs() as logs:
        keep_costs(tmp_path, classifier, table)

    assert [log["event"] for log in logs] == ["cost_table_not_kept"]
    assert kept_file(tmp_path).read_text() == before


def test_the_file_holds_key_and_points_and_nothing_else(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    warm_up(classifier, LIMITS, tmp_path, measure_s=0.0)

    kept = json.loads(kept_file(tmp_path).read_text())

    assert set(kept) == {"key", "points"}
    assert set(kept["key"]) == {"digest", "graph", "device", "runtime"}
    assert all(isinstance(value, str) for value in kept["key"].values())
    assert {(rows, length): seconds for rows, length, seconds in kept["points"]} == pytest.approx(
        {shape: 1e-3 * shape[0] * shape[1] for shape in SHAPES}
    )


def test_a_table_that_was_kept_predicts_what_it_predicted(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    table = CostTable({shape: 0.1 * shape[0] for shape in SHAPES})

    keep_costs(tmp_path, classifier, table)

    read = warm_up(classifier, LIMITS, tmp_path, measure_s=0.0)
    assert read.run_s(3, 20) == pytest.approx(table.run_s(3, 20), rel=1e-12)


def test_a_shape_that_does_not_fit_in_the_memory_stops_the_start_and_what_fits_is_told(classifier: Classifier, machine: Machine) -> None:
    def fail(shape: Shape) -> float:
        if shape[0] * shape[1] > 40:
            raise OutOfMemory("no more")
        return 1e-3

    machine.takes = fail

    with pytest.raises(BadSettings) as caught:
        warm_up(classifier, LIMITS)

    says = "4 rows of 32 tokens do not fit in the memory of this machine; 1 do: set batch_tokens_max to 32 or batch_rows_max to 1"
    assert str(caught.value) == says


def test_what_takes_most_memory_runs_first(classifier: Classifier, machine: Machine) -> None:
    first_runs(classifier, LIMITS, [[32, 1, 1], [16, 2]], lambda: None)

    assert machine.ran == [(3, 32), (2, 16), *SHAPES]


def test_an_unlike_batch_that_does_not_fit_is_told_with_the_rows_that_do(classifier: Classifier, machine: Machine) -> None:
    def fail(shape: Shape) -> float:
        if shape[0] > 16:
            raise OutOfMemory("too large")
        return 0.01

    machine.takes = fail

    with pytest.raises(BadSettings) as caught:
        first_runs(classifier, LIMITS, [[32, *[1] * 63]], lambda: None)

    assert str(caught.value) == "64 rows of at most 32 tokens do not fit in the memory of this machine; 16 do: set batch_rows_max to 16"


def test_two_that_keep_costs_at_once_do_not_disturb_each_other(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two containers that share the folder: their processes have the same number."""
    replace = Path.replace
    turns = iter([True, False])

    def meet(self: Path, target: Path) -> Path:
        if next(turns):
            keep_costs(tmp_path, classifier, CostTable({(1, 8): 0.02}))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", meet)

    with structlog.testing.capture_logs() as logs:
        keep_costs(tmp_path, classifier, CostTable({(1, 8): 0.01}))

    assert logs == []
    assert json.loads(kept_file(tmp_path).read_text())["points"] == [[1, 8, pytest.approx(0.01)]]


def test_a_memory_in_which_nothing_fits_is_told_too(classifier: Classifier, machine: Machine) -> None:
    def fail(shape: Shape) -> float:
        raise OutOfMemory("no more")

    machine.takes = fail

    with pytest.raises(BadSettings, match="4 rows of 32 tokens do not fit in the memory of this machine, nor does one"):
        warm_up(classifier, LIMITS)
