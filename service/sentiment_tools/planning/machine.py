"""The performance model of a replica: costs of batches, noise, cores, and the event loops' time per call. Pure, except for its file."""

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import NamedTuple

from sentiment.batching.cost import CostTable, Shape
from sentiment.batching.layout import Layout, Packed, Padded
from sentiment.batching.plan import BatchLimits
from sentiment.errors import BadSettings

# Core seconds of the event loop: for a call with one text in a batch of its own, without reading the text; and for each token.
LOOP_S, TOKEN_S = 1.6e-3, 1.0e-6
# The parts of LOOP_S spent before the text is queued, once for its batch, and after the run. In batches of five texts a call
# costs about half of LOOP_S.
REQUEST_PART, BATCH_PART, ANSWER_PART = 0.2, 0.65, 0.15
# Core seconds of a front end for a call, without reading the text, and of the executor for a row besides its batch's part of LOOP_S.
# Measured on two cores that clients and other work shared (docs/internals/performance.md, "Front
# ends"): 457 and 520 us a call with one and two front ends; 27 us a row that is sent with many others. Rows that are sent
# one at a time took 33 to 36 us near the executor's limit, which is ROW_S and their part of a batch of 128, and up to 276 us where each
# had a turn of the loop and a batch to itself: a batch's part takes longer here, beside a model that drives the code out of the caches.
FRONT_END_S, ROW_S = 4.9e-4, 2.7e-5
PACE_S = 2.0
# Quantiles of 97.5 % of Student's t, by degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182}
# A run after a pause takes longer. The delay is 1 - exp(-pause / RESTED_S) of its maximum; this fits pauses from 1 to 100 ms.
RESTED_S = 0.012
# Only the measured shapes limit batches, because no cost is known beyond them.
HEADS, SCORES_BYTES = 1, 2**62
# Limits of a file's values: the largest shape, the longest run in seconds, and runners, cores and front ends as in the command.
ROWS_MAX, LENGTH_MAX, RUN_S_MAX = 65_536, 100_000, 3600.0
RUNNERS_MAX, CORES_MAX, FRONT_ENDS_MAX, CALLERS_MAX = 1024, 4096, 64, 65_536


# Of the rules that ``sentiment-models effort`` makes by default.
PART, PARTED_FROM = 96, 135


class Turns(NamedTuple):
    """Core seconds of the event loops for a call, in its order.

    Args:
        request_s: of the loop that takes the call, without reading the text.
        row_s: of the executor before the row is queued, and as much again after its run. 0 without front ends.
        batch_s: of the executor, or of the only loop, before a batch runs, and as much again after it.
        answer_s: of the loop that took the call.
    """

    request_s: float
    row_s: float
    batch_s: float
    answer_s: float


@dataclass(frozen=True, slots=True)
class Machine:
    """The performance model of one replica.

    Args:
        points: mean seconds of a batch that runs alone, by rows and length.
        runners: how many batches run at once.
        cores: cores that the runners, the event loops and everything else share. 0: one for each runner, as the server takes them, and
            on a device one more for each event loop.
        noise: standard deviation of the logarithm of a run's time.
        pace: factors on all run times, one for each PACE_S seconds, repeated: the speed of a shared machine varies. Empty: constant.
        crowding: factor on a run's time while all other runners run too.
        rested_s: additional seconds of a run after a long pause, when its core has slept and its weights have left the caches.
        loop_s: core seconds of the event loop for a call with one text in a batch of its own, without reading the text.
        token_s: core seconds of the event loop for each token of a text, including tokens that are cut off.
        beside_s: core seconds per request of something else on the same cores, such as a load generator in a test.
        packed: whether the graph reads rows without padding on a device, as on a GPU. Its runs take no core.
        front_ends: processes that take calls and read texts for one executor. 0: one process with one event loop does all.
        front_end_s: core seconds of a front end for a call, without reading the text. The executor takes the batch's part of ``loop_s``.
        row_s: core seconds of the executor for a row, besides that part.
        early: with adaptive effort, the share of the texts that are read in parts of which the part suffices. 0: all are read in full.
        part: tokens of a part.
        parted_from: tokens of the shortest text that is read in parts.
        known: the share of the texts whose answer is known. They take the event loops' time and no run.
        callers: how many callers, by name or address, send equal parts of the calls: the scheduler shares the runners among them. 0: many,
            none of which is over its share.
        others_load: load average per core just before the measurement.
        key: of which model, graph and device the costs are, as in a server's cost file. Empty: not known.
    """

    points: dict[Shape, float]
    runners: int = 1
    cores: int = 0
    noise: float = 0.0
    pace: tuple[float, ...] = ()
    crowding: float = 1.0
    rested_s: float = 0.0
    loop_s: float = LOOP_S
    token_s: float = TOKEN_S
    beside_s: float = 0.0
    packed: bool = False
    front_ends: int = 0
    front_end_s: float = FRONT_END_S
    row_s: float = ROW_S
    early: float = 0.0
    part: int = PART
    parted_from: int = PARTED_FROM
    known: float = 0.0
    callers: int = 1
    others_load: float = 0.0
    key: Mapping[str, str] = field(default_factory=dict)

    @property
    def limits(self) -> BatchLimits:
        """The limits of a batch: the most rows and tokens that were measured."""
        rows = max(rows for rows, _ in self.points)
        return BatchLimits(rows, max(rows * length for rows, length in self.points), SCORES_BYTES, HEADS)

    @property
    def length_max(self) -> int:
        """The longest row, in tokens; longer texts are truncated."""
        return max(length for _, length in self.points)

    @property
    def shared_cores(self) -> int:
        """``cores``, or its default."""
        return self.cores or self.runners + (1 + self.front_ends) * self.packed

    @property
    def turns(self) -> Turns:
        """What a call takes of the event loops."""
        batch_s = BATCH_PART / 2 * self.loop_s
        if not self.front_ends:
            return Turns(REQUEST_PART * self.loop_s, 0.0, batch_s, ANSWER_PART * self.loop_s)
        request_s = REQUEST_PART / (REQUEST_PART + ANSWER_PART) * self.front_end_s
        return Turns(request_s, self.row_s / 2, batch_s, self.front_end_s - request_s)

    @property
    def layout(self) -> Layout:
        """The layout of a batch."""
        return Packed() if self.packed else Padded()

    def __str__(self) -> str:
        pace = f" and by factors from {min(self.pace):.2f} to {max(self.pace):.2f} over time" if self.pace else ""
        loops = f"event loop {1e3 * self.loop_s:.2f} ms per call and {1e6 * self.token_s:.1f} us per token"
        if self.front_ends:
            loops = (
                f"{counted(self.front_ends, 'front end')}, {1e3 * self.front_end_s:.2f} ms per call and {1e6 * self.token_s:.1f} us per "
                f"token; executor {1e6 * self.row_s:.1f} us per text and {2e3 * self.turns.batch_s:.2f} ms per batch"
            )
        return (
            f"{counted(self.runners, 'runner')} {'of a device beside' if self.packed else 'on'} {counted(self.shared_cores, 'core')}; "
            f"run times vary by {self.noise:.1%}{pace}, are {self.crowding:.2f} times as long with all runners busy, "
            f"and up to {1e3 * self.rested_s:.2f} ms longer after a pause; "
            f"{loops}; other processes {1e3 * self.beside_s:.2f} ms per call"
            + (f"; of {self.early:.0%} of the texts from {self.parted_from} tokens on {self.part} tokens suffice" if self.early else "")
            + (f"; the answers to {self.known:.0%} of the texts are known" if self.known else "")
            + (f"; {self.callers} callers share it" if self.callers > 1 else "")
        )

    def scaled(self, factor: float) -> "Machine":
        """The machine with all run times multiplied by ``factor``."""
        return replace(self, points={shape: run_s * factor for shape, run_s in self.points.items()})

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of a run's time, with what the speed varied."""
        return math.hypot(self.noise, statistics.stdev(map(math.log, self.pace)) if len(self.pace) > 1 else 0.0)

    @property
    def cost_range(self) -> tuple[float, float]:
        """Factors on all run times: 95 % of further measurements as long as this one would find one between them. 1 if unknown.

        By Student's t of the logarithms of ``pace``, as if they were independent. A machine whose speed wanders slowly varies more.
        """
        if len(self.pace) < 2:
            return 1.0, 1.0
        freedom = len(self.pace) - 1
        # The quantile of 97.5 %, from 4 on by the first terms of its expansion at the normal one's, which are at most 2 % too low.
        student = STUDENT.get(freedom, 1.960 + 2.372 / freedom + 2.823 / freedom**2)
        error = student * statistics.stdev(map(math.log, self.pace)) * math.sqrt(2 / len(self.pace))
        return math.exp(-error), math.exp(error)

    def slowed(self, running: int) -> float:
        """The factor on a run's time while ``running`` runners run."""
        crowded = 1 + (self.crowding - 1) * (running - 1) / max(1, self.runners - 1)
        return crowded if self.packed else crowded * max(1.0, running / self.shared_cores)

    def after_pause_s(self, pause_s: float) -> float:
        """Additional seconds of a run that begins ``pause_s`` seconds after all others have ended."""
        return self.rested_s * -math.expm1(-pause_s / RESTED_S)

    def work_s(self, length: int) -> float:
        """Mean seconds of one runner for a text of this length, its row run alone while all runners are busy."""
        cost, length = CostTable(self.points), min(length, self.length_max)
        run_s = cost.table_s(1, length)
        if self.parts(length):
            run_s = cost.table_s(1, self.part) + (1 - self.early) * run_s
        return (1 - self.known) * run_s * self.slowed(self.runners)

    def parts(self, length: int) -> bool:
        """Whether a text of this length is read in parts."""
        return self.early > 0 and length >= self.parted_from

    def to_json(self) -> str:
        """The content of a file that ``read_machine`` reads."""
        kept = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "points"}
        points = [[rows, length, seconds] for (rows, length), seconds in self.points.items()]
        return json.dumps({**kept, "points": points}, indent=1) + "\n"


def counted(count: int, name: str) -> str:
    """``1 replica``, ``2 replicas``."""
    return f"{count} {name}{'s' * (count != 1)}"


def read_machine(path: Path) -> Machine:
    """Read a cost file: what a server keeps in its cache_dir, or what ``Machine.to_json`` returned.

    Raises:
        BadSettings: the file cannot be read, or its values are not usable.
    """
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        points = {(int(rows), int(length)): float(seconds) for rows, length, seconds in kept["points"]}
        CostTable(points)
        # A GPU's fastest graphs are packed. A server's file does not say so.
        kept.setdefault("packed", not str(kept.get("key", {}).get("device", "CPU")).startswith("CPU"))
        machine = Machine(**{field.name: kept[field.name] for field in fields(Machine) if field.name in kept} | {"points": points})
        machine = replace(machine, pace=tuple(map(float, machine.pace)))
        _check(machine)
        return machine
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise BadSettings(f"{path}: not a cost file from a server's cache_dir or from --save: {error}") from error


def _check(machine: Machine) -> None:
    """Refuse values that would cause an error, a NaN or an endless simulation later. NaN is in no range."""
    processes = (("runners", 1, RUNNERS_MAX), ("cores", 0, CORES_MAX), ("front_ends", 0, FRONT_ENDS_MAX), ("callers", 0, CALLERS_MAX))
    for name, least, most in (*processes, ("packed", 0, 1), ("part", 1, LENGTH_MAX), ("parted_from", machine.part + 1, LENGTH_MAX)):
        value = getattr(machine, name)
        if not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{name} must be a whole number from {least} to {most}, got {value!r}")
    times = ((name, 0, 10) for name in ("noise", "rested_s", "loop_s", "token_s", "beside_s", "front_end_s", "row_s"))
    for name, low, high in (*times, ("crowding", 0.01, 100), ("early", 0, 1), ("known", 0, 1), ("others_load", 0, 1e4)):
        number = getattr(machine, name)
        if not low <= number <= high:
            raise ValueError(f"{name} must be a number from {low} to {high}, got {number!r}")
    if not all(isinstance(value, str) for value in machine.key.values()):
        raise ValueError(f"key must have texts, got {dict(machine.key)!r}")
    for pace in machine.pace:
        if not 0.01 <= pace <= 100:
            raise ValueError(f"a pace must be a number from 0.01 to 100, got {pace!r}")
    for (rows, length), run_s in machine.points.items():
        if rows > ROWS_MAX or length > LENGTH_MAX or run_s > RUN_S_MAX:
            raise ValueError(f"a point has {rows} x {length} in {run_s:g} s; the limits are {ROWS_MAX} x {LENGTH_MAX} and {RUN_S_MAX:g} s")
