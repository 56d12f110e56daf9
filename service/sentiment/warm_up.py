"""Warm-up: runs the shapes that batches may have, so that the first request is not the first run, and measures what they cost.

The cost table may be kept across starts, in a file of its own for each bundle, device and runtime.
"""

import contextlib
import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sentiment.batching.cost import GPU_STEPS, CostTable, Shape, shapes_to_measure
from sentiment.batching.plan import BatchLimits
from sentiment.errors import BadBundle, BadSettings, OutOfMemory
from sentiment.logs import logger
from sentiment.model.classifier import Classifier
from sentiment.model.cores import cores_granted
from sentiment.model.runner import run_batch
from sentiment.model.session import RUNTIME_VERSION
from sentiment.model.tokenizer import Row

# Lengths at which costs are measured, with three numbers of rows each; between them they are interpolated.
LENGTHS = (8, 32, 128)
# Every shape is run once, however long that takes, and again, for the least of its times, while this lasts.
MEASURE_S = 1.5
ROUNDS_MAX = 4


def warm_up(classifier: Classifier, limits: BatchLimits, cache: Path | None = None, measure_s: float = MEASURE_S) -> CostTable:
    """Run the classifier's shapes, the largest first, and return what they cost. In the thread that will run them, if on a device.

    Args:
        classifier: what is run.
        limits: what a batch may be.
        cache: folder of kept cost tables, None to keep none. With a table in it only the largest shape is run, but on a device all.
        measure_s: seconds in which shapes are run again.

    Raises:
        BadBundle: the graph cannot run one of them.
        BadSettings: one is too large for the memory; says what would fit.
    """
    session = classifier.session
    longest = classifier.manifest.max_tokens
    lengths = [*(length for length in LENGTHS if length < longest), longest]
    steps = {"steps": GPU_STEPS} if session.hardware else {}
    shapes = shapes_to_measure([(length, limits.rows_at(length)) for length in lengths], **steps)
    # A device's first run of a shape is no measure: kernels are loaded, memory is taken, and a cell's run is captured.
    for shape in sorted({*shapes, *session.cells}, key=math.prod, reverse=True) if session.hardware else ():
        _run(classifier, shape)
    kept = None if cache is None else Kept.of(cache, classifier)
    if kept is not None and (found := kept.read(shapes)) is not None:
        _run(classifier, shapes[0])
        return found
    begun = time.monotonic()
    seconds = {shape: _run(classifier, shape) for shape in shapes}
    for _ in range(ROUNDS_MAX - 1):
        # The cheapest first: they are the ones that a single disturbance falsifies.
        for shape in reversed(shapes):
            if time.monotonic() + seconds[shape] - begun < measure_s:
                seconds[shape] = min(seconds[shape], _run(classifier, shape))
    table = CostTable(seconds)
    if kept is not None:
        kept.write(table)
    return table


def keep_costs(folder: Path, classifier: Classifier, table: CostTable) -> None:
    """Keep what the batches that ran have taught."""
    Kept.of(folder, classifier).write(table)


def _run(classifier: Classifier, shape: Shape) -> float:
    rows, length = shape
    try:
        ran = run_batch(classifier, [Row([classifier.tokenizer.pad_id] * length, None, False)] * rows)
    except OutOfMemory as error:
        raise BadSettings(_what_fits(classifier, shape)) from error
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise BadBundle(f"{classifier.bundle.path}: cannot run {rows} rows of {length} tokens: {error}") from error
    return ran.total_s


def _what_fits(classifier: Classifier, shape: Shape) -> str:
    """What to say of a shape that is too large for the memory: how many of its rows are not."""
    rows, length = shape
    said = f"{rows} rows of {length} tokens do not fit in the memory of {classifier.session.hardware or 'this machine'}"
    while rows := rows // 2:
        with contextlib.suppress(OutOfMemory):
            run_batch(classifier, [Row([classifier.tokenizer.pad_id] * length, None, False)] * rows)
            return f"{said}; {rows} do: set batch_tokens_max to {rows * length} or batch_rows_max to {rows}"
    return f"{said}, nor does one"


@dataclass(frozen=True, slots=True)
class Kept:
    """A cost table on disk. Trouble with the disk is logged and costs a measurement, never the start."""

    path: Path
    key: dict[str, str]

    @classmethod
    def of(cls, folder: Path, classifier: Classifier) -> "Kept":
        """Where the table of this classifier on this machine is kept."""
        key = {
            "digest": classifier.bundle.digest,
            "graph": classifier.graph.file,
            "device": f"{classifier.session.provider} {classifier.session.hardware or f'{_processor()}, {cores_granted()} cores'}",
            "runtime": RUNTIME_VERSION,
        }
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
        return cls(folder / f"cost-{name}.json", key)

    def read(self, shapes: Sequence[Shape]) -> CostTable | None:
        """The kept table, None if there is none for these shapes."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            points = {(int(rows), int(length)): float(seconds) for rows, length, seconds in kept["points"]}
            return CostTable(points) if kept["key"] == self.key and set(points) == set(shapes) else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
            logger().warning("cost_table_unreadable", path=str(self.path), reason=str(error))
            return None

    def write(self, table: CostTable) -> None:
        """Keep a table; whole or not at all."""
        part = self.path.with_suffix(f".{os.getpid()}.part")
        points = [[rows, length, seconds] for (rows, length), seconds in table.points().items()]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({"key": self.key, "points": points}, indent=1) + "\n", encoding="utf-8")
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
