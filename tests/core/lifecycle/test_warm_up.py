"""Warm-up: every shape is run and priced. Kept tables save measurements, and file errors never stop the startup."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog

from sentiment.batching.cost import CostTable, Shape
from sentiment.batching.plan import BatchLimits
from sentiment.errors import BadBundle, BadSettings, OutOfMemory
from sentiment.lifecycle import warm_up as module
from sentiment.lifecycle.warm_up import ROUNDS_MAX, first_runs, keep_costs, warm_up
from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.execute import Execute, here
from sentiment.model.runner import Ran
from sentiment.model.tokenizer import Row
from tests.tiny import make_bundle

LIMITS = BatchLimits(rows=8, tokens=128, scores_bytes=2**30, heads=2)
# The tiny bundle reads 32 tokens, and 128 tokens are 4 rows of them.
IMPOSSIBLE_COSTS = (b"0.0", b"-1.0", b"NaN", b"Infinity")
SHAPES = [(4, 32), (8, 8), (2, 32), (1, 32), (2, 8), (1, 8)]


@dataclass
class Machine:
    """Stands for ``run_batch``: records the shapes and returns times that a test sets."""

    ran: list[Shape] = field(default_factory=list)
    takes: Callable[[Shape], float] = lambda shape: 1e-3 * shape[0] * shape[1]

    # What remains of the time on several cores.
    wide: float = 1.0

    fails_wide: Exception | None = None

    def __call__(self, classifier: Classifier, rows: Sequence[Row], wide: bool = False) -> Ran:
        shape = len(rows), rows[0].tokens
        self.ran.append(shape)
        if wide and self.fails_wide is not None:
            raise self.fails_wide
        seconds = self.takes(shape) * (self.wide if wide else 1.0)
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


def raising(error: Exception, fits: Callable[[Shape], bool] = lambda _: False) -> Callable[[Shape], float]:
    """Runs that raise, except those of shapes that fit."""

    def take(shape: Shape) -> float:
        if fits(shape):
            return 1e-3
        raise error

    return take


def test_every_shape_of_a_real_bundle_is_run_and_priced(classifier: Classifier) -> None:
    table = warm_up(classifier, LIMITS, measure_s=0.0)

    assert set(table.points()) == set(SHAPES)
    assert all(0 < seconds < 10 for seconds in table.points().values())


def test_every_shape_is_run_once_the_largest_first_however_long_that_takes(classifier: Classifier, machine: Machine) -> None:
    table = warm_up(classifier, LIMITS, measure_s=0.0)

    sizes = [rows * length for rows, length in machine.ran]
    assert sizes == [128, 64, 64, 32, 16, 8]
    assert set(machine.ran) == set(SHAPES)
    # The sum of padding and running.
    assert table.points() == pytest.approx({shape: 1e-3 * shape[0] * shape[1] for shape in SHAPES})


def test_shapes_are_repeated_while_time_is_left_and_the_shortest_time_counts(classifier: Classifier, machine: Machine) -> None:
    machine.takes = lambda shape: 1e-3 / machine.ran.count(shape)

    table = warm_up(classifier, LIMITS, measure_s=1e9)

    assert {shape: machine.ran.count(shape) for shape in SHAPES} == dict.fromkeys(SHAPES, ROUNDS_MAX)
    assert table.points() == pytest.approx(dict.fromkeys(SHAPES, 1e-3 / ROUNDS_MAX))


def test_a_run_longer_than_the_time_left_is_not_repeated(classifier: Classifier, machine: Machine) -> None:
    machine.takes = lambda shape: 1e6 if shape == (4, 32) else 1e-9

    warm_up(classifier, LIMITS, measure_s=1e3)

    assert machine.ran.count((4, 32)) == 1
    assert machine.ran.count((8, 8)) == ROUNDS_MAX


def test_a_graph_that_cannot_run_a_shape_stops_the_startup_and_names_the_shape(classifier: Classifier, machine: Machine) -> None:
    machine.takes = raising(RuntimeError("no kernel"))

    with pytest.raises(BadBundle, match=r"cannot run \d+ rows of \d+ tokens: no kernel"):
        warm_up(classifier, LIMITS)


def test_nothing_is_kept_unless_a_folder_is_given(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    warm_up(classifier, LIMITS, measure_s=0.0)
    assert list(tmp_path.iterdir()) == []

    warm_up(classifier, LIMITS, tmp_path / "new" / "folder", measure_s=0.0)

    path = kept_file(tmp_path / "new" / "folder")
    kept = json.loads(path.read_text())
    assert path.name.startswith("cost-")
    assert set(kept) == {"key", "points"}
    assert set(kept["key"]) == {"digest", "graph", "device", "runtime"}


def test_a_kept_table_is_read_back_and_only_the_largest_shape_is_run(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    measured = warm_up(classifier, LIMITS, tmp_path, measure_s=0.0)
    machine.ran.clear()

    read = warm_up(classifier, LIMITS, tmp_path, measure_s=1e9)

    assert len(machine.ran) == 1
    assert machine.ran[0][0] * machine.ran[0][1] == 128
    assert read.points() == pytest.approx(measured.points(), rel=1e-12)


def test_costs_learned_from_batches_are_used_after_a_restart(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    table = warm_up(classifier, LIMITS, tmp_path, measure_s=0.0)
    for _ in range(250):
        table.observe(1, 8, 1.0)

    keep_costs(tmp_path, classifier, table)

    read = warm_up(classifier, LIMITS, tmp_path, measure_s=0.0)
    assert read.points()[(1, 8)] == pytest.approx(table.points()[(1, 8)])
    assert read.points()[(1, 8)] > 2 * 8e-3


def measured_again(classifier: Classifier, machine: Machine, cache: Path, limits: BatchLimits = LIMITS) -> bool:
    """Whether the next startup measures. It must measure everything or read the table."""
    machine.ran.clear()
    warm_up(classifier, limits, cache, measure_s=0.0)
    assert len(machine.ran) == 1 or len(machine.ran) > 4
    return len(machine.ran) > 1


def test_each_bundle_has_a_table_of_its_own(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    other = load_classifier(make_bundle(tmp_path / "other", version=2))
    assert measured_again(classifier, machine, cache)

    assert measured_again(other, machine, cache)

    assert not measured_again(classifier, machine, cache)
    assert not measured_again(other, machine, cache)


@pytest.mark.parametrize(("what", "value"), [("RUNTIME_VERSION", "0.0.1"), ("_processor", lambda: 99), ("cores_granted", lambda: 99)])
def test_another_runtime_or_machine_is_measured(
    what: str, value: object, classifier: Classifier, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_again(classifier, machine, tmp_path)

    monkeypatch.setattr(module, what, value)

    assert measured_again(classifier, machine, tmp_path)


def test_other_limits_have_other_shapes_and_are_measured(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    measured_again(classifier, machine, tmp_path)

    assert measured_again(classifier, machine, tmp_path, BatchLimits(rows=8, tokens=256, scores_bytes=2**30, heads=2))


def test_a_table_with_another_key_under_its_name_is_not_used(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    measured_again(classifier, machine, tmp_path)

    kept = json.loads(kept_file(tmp_path).read_text())
    kept_file(tmp_path).write_text(json.dumps(kept | {"key": kept["key"] | {"digest": "another"}}))

    assert measured_again(classifier, machine, tmp_path)


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
        *(pytest.param(b'{"key": KEY, "points": [[4, 32, %s], OTHERS]}' % cost, id=f"a cost of {cost!r}") for cost in IMPOSSIBLE_COSTS),
    ],
)
def test_a_file_that_cannot_be_read_is_logged_and_replaced(text: bytes, classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    measured_again(classifier, machine, tmp_path)
    path = kept_file(tmp_path)
    kept = json.loads(path.read_text())
    others = [point for point in kept["points"] if point[:2] != [4, 32]]
    path.write_bytes(text.replace(b"KEY", json.dumps(kept["key"]).encode()).replace(b"OTHERS", json.dumps(others)[1:-1].encode()))

    with structlog.testing.capture_logs() as logs:
        assert measured_again(classifier, machine, tmp_path)

    assert [(log["event"], log["log_level"], log["path"]) for log in logs] == [("cost_table_unreadable", "warning", str(path))]
    assert not measured_again(classifier, machine, tmp_path)


def test_a_missing_table_is_not_logged(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        warm_up(classifier, LIMITS, tmp_path / "none yet", measure_s=0.0)

    assert logs == []


def test_a_folder_that_cannot_be_written_is_logged_and_does_not_stop_the_startup(
    classifier: Classifier, machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")

    with structlog.testing.capture_logs() as logs:
        table = warm_up(classifier, LIMITS, tmp_path / "file", measure_s=0.0)

    assert set(table.points()) == set(SHAPES)
    assert [log["event"] for log in logs if log["event"] == "cost_table_not_kept"] == ["cost_table_not_kept"]
    assert (tmp_path / "file").read_text() == "not a folder"


def test_a_failed_write_leaves_the_last_table_and_no_other_file(
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


@pytest.fixture
def widened(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifier.session, "width", 2)


@pytest.mark.usefixtures("widened")
def test_what_several_cores_save_is_measured_and_kept(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    machine.wide = 0.6

    measured = warm_up(classifier, LIMITS, tmp_path, measure_s=0.0)
    machine.ran.clear()
    read = warm_up(classifier, LIMITS, tmp_path)

    assert machine.ran == SHAPES[:1]
    for table in (measured, read):
        assert table.wide is not None
        assert table.wide.table_s(3, 20) == pytest.approx(0.6 * table.table_s(3, 20))


@pytest.mark.usefixtures("widened")
def test_beside_other_models_what_several_cores_save_is_a_ratio_of_run_times(classifier: Classifier, machine: Machine) -> None:
    machine.wide = 0.6

    table = warm_up(classifier, LIMITS, measure_s=0.0, execute=lambda run: run())

    assert table.wide is not None
    for rows, length in SHAPES:
        assert table.wide.table_s(rows, length) == pytest.approx(0.6 * table.table_s(rows, length))


@pytest.mark.usefixtures("widened")
@pytest.mark.parametrize("execute", [here, lambda run: run()], ids=["alone", "beside other models"])
def test_a_model_whose_wide_runs_fail_is_served_without_them(
    classifier: Classifier, machine: Machine, tmp_path: Path, execute: Execute
) -> None:
    machine.fails_wide = OutOfMemory("Failed to allocate memory")

    with structlog.testing.capture_logs() as logs:
        table = warm_up(classifier, LIMITS, tmp_path, measure_s=0.0, execute=execute)

    assert (classifier.session.width, table.wide) == (1, None)
    assert [(log["event"], log["model"], log["reason"]) for log in logs] == [("not_wide", "tiny/1", "Failed to allocate memory")]
    # Kept for the model as it is served.
    machine.ran.clear()
    assert warm_up(classifier, LIMITS, tmp_path).wide is None
    assert machine.ran == SHAPES[:1]


def test_a_stored_table_without_wide_costs_is_measured_again_where_they_are_needed(
    classifier: Classifier, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_up(classifier, LIMITS, tmp_path, measure_s=0.0)
    monkeypatch.setattr(classifier.session, "width", 2)

    assert warm_up(classifier, LIMITS, tmp_path, measure_s=0.0).wide is not None


def test_on_one_core_there_are_no_wide_costs(classifier: Classifier, machine: Machine) -> None:
    assert warm_up(classifier, LIMITS, measure_s=0.0).wide is None


def test_a_kept_table_predicts_the_same_after_a_restart(classifier: Classifier, machine: Machine, tmp_path: Path) -> None:
    table = CostTable({shape: 0.1 * shape[0] for shape in SHAPES})

    keep_costs(tmp_path, classifier, table)

    read = warm_up(classifier, LIMITS, tmp_path, measure_s=0.0)
    assert read.run_s(3, 20) == pytest.approx(table.run_s(3, 20), rel=1e-12)


@pytest.mark.parametrize(
    ("tokens_that_fit", "says"),
    [
        (40, "; 1 do: set batch_tokens_max to 32 or batch_rows_max to 1"),
        (0, ", nor does one row"),
    ],
)
def test_a_shape_that_does_not_fit_in_memory_stops_the_startup_and_says_what_fits(
    classifier: Classifier, machine: Machine, tokens_that_fit: int, says: str
) -> None:
    machine.takes = raising(OutOfMemory("no more"), lambda shape: shape[0] * shape[1] <= tokens_that_fit)

    with pytest.raises(BadSettings) as caught:
        warm_up(classifier, LIMITS)

    assert str(caught.value) == f"4 rows of 32 tokens do not fit in the memory of this machine{says}"


def test_the_batches_that_take_most_memory_run_first(classifier: Classifier, machine: Machine) -> None:
    first_runs(classifier, LIMITS, [[32, 1, 1], [16, 2]], lambda: None)

    assert machine.ran == [(3, 32), (2, 16), *SHAPES]


def test_a_mixed_batch_that_does_not_fit_says_how_many_rows_do(classifier: Classifier, machine: Machine) -> None:
    machine.takes = raising(OutOfMemory("too large"), lambda shape: shape[0] <= 16)

    with pytest.raises(BadSettings) as caught:
        first_runs(classifier, LIMITS, [[32, *[1] * 63]], lambda: None)

    assert str(caught.value) == "64 rows of at most 32 tokens do not fit in the memory of this machine; 16 do: set batch_rows_max to 16"


def test_two_processes_may_write_the_same_table_at_once(classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As two containers that share the folder and have the same process ids."""
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
