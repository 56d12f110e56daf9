"""What a replica's speed is made of: costs of batches, noise, cores, and what a request takes beside its run. Pure but for its file."""

import json
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sentiment.batching.cost import CostTable, Shape
from sentiment.batching.layout import Layout, Packed, Padded
from sentiment.batching.plan import BatchLimits
from sentiment.errors import BadSettings

# Core seconds of the event loop: of a call with one text, whose batch is its own, beside reading the text; and for each of its tokens.
LOOP_S, TOKEN_S = 1.6e-3, 2.7e-6
# What of the first is spent before the text waits, once for its batch, and after the run: in batches of five texts a call costs 0.45 of it.
ASKED, BATCHED, ANSWERED = 0.2, 0.65, 0.15
PACE_S = 2.0
# A run after a pause takes longer, the longer it was: after so long by 1 - 1/e of the most. Of pauses from 1 to 100 ms this fits all.
RESTED_S = 0.012
# What limits batches is known from what was measured, and no cost is known beyond.
HEADS, SCORES_BYTES = 1, 2**62
# Of what a file may hold: its largest shape, the longest run in seconds, and runners and cores as the command takes them.
ROWS_MAX, LENGTH_MAX, RUN_S_MAX = 65_536, 100_000, 3600.0
RUNNERS_MAX, CORES_MAX = 1024, 4096


@dataclass(frozen=True, slots=True)
class Machine:
    """One replica.

    Args:
        points: mean seconds of a batch that runs alone, by rows and length.
        runners: batches at a time.
        cores: what runners, event loop and all else there share; 0: one for each runner, as the server takes them; on a device one more.
        noise: standard deviation of the logarithm of a run's time.
        pace: how much longer all runs take in each PACE_S seconds, over and over: a shared machine's speed wanders. Empty: it does not.
        crowding: how much longer a run takes while all the other runners run as well.
        rested_s: how much longer a run takes after a long pause, whose core has slept and whose weights have left the caches.
        loop_s: core seconds of the event loop for a call with one text, whose batch is its own, beside reading the text.
        token_s: the same for each token of its text, those that are cut off among them.
        beside_s: core seconds a request that something else on the same cores takes, such as a load generator in a test.
        packed: the graph reads rows without padding, as on a GPU.
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

    @property
    def limits(self) -> BatchLimits:
        """What a batch may be: as many rows and tokens as the largest that were measured."""
        rows = max(rows for rows, _ in self.points)
        return BatchLimits(rows, max(rows * length for rows, length in self.points), SCORES_BYTES, HEADS)

    @property
    def length_max(self) -> int:
        """The longest row, in tokens; longer texts are cut."""
        return max(length for _, length in self.points)

    @property
    def shared_cores(self) -> int:
        """``cores``, or how many they are unless it is given."""
        return self.cores or self.runners + self.packed

    @property
    def layout(self) -> Layout:
        """How the graph takes the rows of a batch."""
        return Packed() if self.packed else Padded()

    def __str__(self) -> str:
        pace = f" and by a pace from {min(self.pace):.2f} to {max(self.pace):.2f}" if self.pace else ""
        return (
            f"{counted(self.runners, 'runner')} on {counted(self.shared_cores, 'core')}; "
            f"runs vary by {self.noise:.1%}{pace}, in company they take {self.crowding:.2f} times as long, "
            f"after a pause up to {1e3 * self.rested_s:.2f} ms longer; "
            f"event loop {1e3 * self.loop_s:.2f} ms a call and {1e6 * self.token_s:.1f} us a token; "
            f"beside {1e3 * self.beside_s:.2f} ms a call"
        )

    def slowed(self, running: int) -> float:
        """How much longer a run takes while ``running`` runners run than it takes alone."""
        crowded = 1 + (self.crowding - 1) * (running - 1) / max(1, self.runners - 1)
        return crowded * max(1.0, running / self.shared_cores)

    def after_pause_s(self, pause_s: float) -> float:
        """How many seconds longer a run takes that begins so long after all others have ended."""
        return self.rested_s * -math.expm1(-pause_s / RESTED_S)

    def work_s(self, length: int) -> float:
        """Seconds of one of its runners that a row of this length takes alone when all are busy, on average."""
        return CostTable(self.points).table_s(1, min(length, self.length_max)) * self.slowed(self.runners)

    def to_json(self) -> str:
        """The text of a file that ``read_machine`` reads."""
        kept = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "points"}
        points = [[rows, length, seconds] for (rows, length), seconds in self.points.items()]
        return json.dumps({**kept, "points": points}, indent=1) + "\n"


def counted(count: int, name: str) -> str:
    """``1 replica``, ``2 replicas``."""
    return f"{count} {name}{'s' * (count != 1)}"


def read_machine(path: Path) -> Machine:
    """Read the costs that a server keeps in its cache_dir, or what ``Machine.to_json`` has written.

    Raises:
        BadSettings: it cannot be read, or has no usable points.
    """
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        points = {(int(rows), int(length)): float(seconds) for rows, length, seconds in kept["points"]}
        CostTable(points)
        if not str(kept.get("key", {}).get("device", "CPU")).startswith("CPU"):
            # A GPU, whose graphs that pay are packed.
            kept["packed"] = True
        machine = Machine(**{field.name: kept[field.name] for field in fields(Machine) if field.name in kept} | {"points": points})
        machine = replace(machine, pace=tuple(map(float, machine.pace)))
        _check(machine)
        return machine
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise BadSettings(f"{path} is no file of costs, as of a server's cache_dir or of --save: {error}") from error


def changed(machine: Machine, **given: Any) -> Machine:  # its fields, of several types
    """The machine with some fields changed; those that are None stay."""
    return replace(machine, **{name: value for name, value in given.items() if value is not None})


def _check(machine: Machine) -> None:
    """Refuse what would end in an error, a NaN or an endless simulation later. NaN is in no range."""
    for name, least, most in (("runners", 1, RUNNERS_MAX), ("cores", 0, CORES_MAX), ("packed", 0, 1)):
        value = getattr(machine, name)
        if not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{name} is {value!r}; wanted is a whole number from {least} to {most}")
    times = ((name, 0, 10) for name in ("noise", "rested_s", "loop_s", "token_s", "beside_s"))
    for name, low, high in (*times, ("crowding", 0.01, 100)):
        number = getattr(machine, name)
        if not low <= number <= high:
            raise ValueError(f"{name} is {number!r}; wanted is a number from {low} to {high}")
    for pace in machine.pace:
        if not 0.01 <= pace <= 100:
            raise ValueError(f"a pace is {pace!r}; wanted is a number from 0.01 to 100")
    for (rows, length), run_s in machine.points.items():
        if rows > ROWS_MAX or length > LENGTH_MAX or run_s > RUN_S_MAX:
            raise ValueError(f"a point is {rows} x {length} in {run_s:g} s; the limits are {ROWS_MAX} x {LENGTH_MAX} and {RUN_S_MAX:g} s")
