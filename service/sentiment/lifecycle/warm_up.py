"""Warm-up: runs the shapes of batches before the first request and measures their costs.

The cost table may be kept across restarts, in one file for each bundle, device and runtime.
"""

import contextlib
import hashlib
import json
import math
import platform
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sentiment.batching.cost import GPU_STEPS, CostTable, Shape, shapes_to_measure
from sentiment.batching.plan import BatchLimits
from sentiment.errors import BadBundle, BadSettings, DeviceLost, OutOfMemory
from sentiment.model.classifier import Classifier
from sentiment.model.cores import cores_granted
from sentiment.model.execute import Execute, here, result_of
from sentiment.model.runner import run_batch
from sentiment.model.session import RUNTIME_VERSION
from sentiment.model.tokenizer import Row
from sentiment.observability.logs import logger

# Lengths at which costs are measured, each with three numbers of rows. Costs between them are interpolated.
LENGTHS = (8, 32, 128, 1024)
# Every shape is run once, however long that takes, and repeated within this time; the shortest time counts.
MEASURE_S = 1.5
ROUNDS_MAX = 4
# Runs of each shape on several cores; the shortest counts.
WIDE_ROUNDS = 2


def warm_up(
    classifier: Classifier, limits: BatchLimits, cache: Path | None = None, measure_s: float = MEASURE_S, execute: Execute = here
) -> CostTable:
    """Run the classifier's shapes, the largest first, and return their costs. On a device, call it in the thread that will run batches.

    Args:
        classifier: the classifier to run; on a device, after ``first_runs``.
        limits: limits of a batch.
        cache: folder of cost tables; None to keep none. If it has a table, only the largest shape is run.
        measure_s: seconds for repeated runs.
        execute: does the runs at low priority while other models serve. Then the thread's CPU time is measured, because the time
            that it waits for a core is not the model's cost.

    Raises:
        BadBundle: the graph cannot run one of them.
        BadSettings: one is too large for the memory; the message says what would fit.
        DeviceLost: the device is lost.
    """
    shapes = _measured(classifier, limits)
    run = partial(_run_shape, classifier) if execute is here else partial(_core_s, classifier, execute)
    kept = None if cache is None else Kept.of(cache, classifier)
    if kept is not None and (found := kept.read(shapes)) is not None:
        run(shapes[0])
        return found
    begun = time.monotonic()
    seconds = {shape: run(shape) for shape in shapes}
    for _ in range(ROUNDS_MAX - 1):
        # The cheapest first: a single disturbance distorts them most.
        for shape in reversed(shapes):
            if time.monotonic() + seconds[shape] - begun < measure_s:
                seconds[shape] = min(seconds[shape], run(shape))
    table = CostTable(seconds, _wide(classifier, seconds, execute))
    if cache is not None:
        keep_costs(cache, classifier, table)
    return table


def _wide(classifier: Classifier, seconds: Mapping[Shape, float], execute: Execute) -> dict[Shape, float] | None:
    """The costs of the shapes on several cores; None if the session has no wide runs. ``seconds``: on one core.

    A session whose wide runs fail is narrowed; the log says why.
    """
    if classifier.session.width < 2:
        return None

    def shortest(shape: Shape, wide: bool) -> float:
        run = partial(run_batch, classifier, _rows(classifier, [shape[1]] * shape[0]), wide)
        # Each run by itself, so that the requests of other models come between two of them.
        return min(result_of(execute, run).total_s for _ in range(WIDE_ROUNDS))

    try:
        if execute is here:
            return {shape: shortest(shape, wide=True) for shape in seconds}
        # While other models serve, only the ratio of two runs tells what further cores save.
        return {shape: once_s * shortest(shape, wide=True) / shortest(shape, wide=False) for shape, once_s in seconds.items()}
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        classifier.session.use_one_thread()
        logger().warning("not_wide", model=classifier.bundle.id, reason=str(error) or repr(error))
        return None


def first_runs(classifier: Classifier, limits: BatchLimits, mixtures: Sequence[Sequence[int]], check: Callable[[], None]) -> None:
    """Run a device's shapes for the first time, the largest first: this loads kernels, allocates memory and captures the cells.

    Runs the mixtures, all measured shapes and all cells. Call it in the thread that will run batches, for one device of the process at a
    time: capturing fails while another session allocates memory.

    Args:
        classifier: the classifier to run.
        limits: limits of a batch.
        mixtures: row lengths of the batches that take most memory, each with the longest first.
        check: called before each run; an exception from it ends the warm-up.

    Raises:
        BadBundle: the graph cannot run one of them.
        BadSettings: one is too large for the memory; the message says what would fit.
        DeviceLost: the device is lost.
    """
    session = classifier.session
    session.within(limits.rows_at)
    shapes = {*_measured(classifier, limits), *session.cells}
    for lengths in [*mixtures, *([length] * rows for rows, length in sorted(shapes, key=math.prod, reverse=True))]:
        check()
        _run(classifier, lengths)


def _measured(classifier: Classifier, limits: BatchLimits) -> list[Shape]:
    longest = classifier.manifest.max_tokens
    lengths = [*(length for length in LENGTHS if length < longest), longest]
    steps = {"steps": GPU_STEPS} if classifier.session.hardware else {}
    return shapes_to_measure([(length, limits.rows_at(length)) for length in lengths], **steps)


def keep_costs(folder: Path, classifier: Classifier, table: CostTable) -> None:
    """Write the costs learned from the batches that ran."""
    Kept.of(folder, classifier).write(table)


def _run_shape(classifier: Classifier, shape: Shape) -> float:
    rows, length = shape
    return _run(classifier, [length] * rows)


def _core_s(classifier: Classifier, execute: Execute, shape: Shape) -> float:
    """CPU seconds of a run of the shape. A run uses only the thread that it runs in."""

    def work() -> float:
        begun = time.thread_time()
        _run_shape(classifier, shape)
        return time.thread_time() - begun

    return result_of(execute, work)


def _run(classifier: Classifier, lengths: Sequence[int]) -> float:
    try:
        ran = run_batch(classifier, _rows(classifier, lengths))
    except OutOfMemory as error:
        raise BadSettings(_what_fits(classifier, lengths)) from error
    except DeviceLost:
        # Not the bundle's fault: it has passed its golden set on the device.
        raise
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise BadBundle(f"{classifier.bundle.path}: cannot run {_named(lengths)}: {error}") from error
    return ran.total_s


def _rows(classifier: Classifier, lengths: Sequence[int]) -> list[Row]:
    return [Row([classifier.tokenizer.pad_id] * length, None, False) for length in lengths]


def _named(lengths: Sequence[int]) -> str:
    return f"{len(lengths)} rows of {'' if lengths[0] == lengths[-1] else 'at most '}{lengths[0]} tokens"


def _what_fits(classifier: Classifier, lengths: Sequence[int]) -> str:
    """The message for a batch that is too large for the memory; says how many of its rows fit."""
    fact = f"{_named(lengths)} do not fit in the memory of {classifier.session.hardware or 'this machine'}"
    alike = lengths[0] == lengths[-1]
    while len(lengths) > 1:
        lengths = lengths[: len(lengths) // 2]
        with contextlib.suppress(OutOfMemory):
            run_batch(classifier, _rows(classifier, lengths))
            tokens = f"batch_tokens_max to {len(lengths) * lengths[0]} or " if alike else ""
            return f"{fact}; {len(lengths)} do: set {tokens}batch_rows_max to {len(lengths)}"
    return f"{fact}, nor does one row"


@dataclass(frozen=True, slots=True)
class Kept:
    """A cost table on disk. File errors are logged and only cost a new measurement, never the startup."""

    path: Path
    key: dict[str, str]

    @classmethod
    def of(cls, folder: Path, classifier: Classifier) -> "Kept":
        """The file for this classifier on this machine."""
        key = {
            "digest": classifier.bundle.digest,
            "graph": classifier.graph.file,
            "device": f"{classifier.session.provider} {classifier.session.hardware or f'{_processor()}, {cores_granted()} cores'}",
            "runtime": RUNTIME_VERSION,
        }
        if classifier.session.rows_alone:
            key["rows"] = "alone"
        if classifier.session.width > 1:
            key["width"] = str(classifier.session.width)
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
        return cls(folder / f"cost-{name}.json", key)

    def read(self, shapes: Sequence[Shape]) -> CostTable | None:
        """The kept table; None if there is none for these shapes."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            names = ("points", "wide") if "width" in self.key else ("points",)
            tables = [{(int(rows), int(length)): float(seconds) for rows, length, seconds in kept[name]} for name in names]
            if kept["key"] != self.key or any(set(table) != set(shapes) for table in tables):
                return None
            return CostTable(*tables)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            logger().warning("cost_table_unreadable", path=str(self.path), reason=str(error))
            return None

    def write(self, table: CostTable) -> None:
        """Write a table atomically."""
        # Not named by process id: machines that share the folder may have the same ids.
        part = self.path.with_suffix(f".{uuid.uuid4().hex}.part")
        found = {"points": table, **({} if table.wide is None else {"wide": table.wide})}
        costs = {name: [[*shape, seconds] for shape, seconds in one.points().items()] for name, one in found.items()}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({"key": self.key, **costs}, indent=1) + "\n", encoding="utf-8")
            part.replace(self.path)
        except OSError as error:
            logger().warning("cost_table_not_kept", path=str(self.path), reason=str(error))
            with contextlib.suppress(OSError):
                part.unlink()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
