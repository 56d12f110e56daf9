"""The progress of a training run, as event files for ``tensorboard --logdir``. Knows nothing of models or of torch.

TensorBoard comes with the models extra. Without it a run writes no log.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

try:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter
except ImportError:
    RecordWriter = None

LOGS = "logs"
"""The folder of event files in a run's folder."""

# From version 2 on, a reader drops the steps that a newer file repeats.
_VERSION = "brain.Event:2"


class Log:
    """Scalars by step. TensorBoard groups names such as ``dev/accuracy`` by the part before the slash.

    Each start of a run has its own file, named after the step it starts from. Files are read in the order of their names. torch's
    SummaryWriter names them by the second, and so mixes up two starts within one second.
    """

    def __init__(self, out: Path, step: int, wanted: bool = True) -> None:
        """Start or continue the log of the run in ``out``.

        Args:
            out: the run's folder.
            step: the last completed step. Later steps that a killed run recorded are shown once, as the new run records them.
            wanted: False writes nothing.
        """
        self._stream: IO[bytes] | None = None
        self._begun = time.monotonic()
        if RecordWriter is None or not wanted:
            return
        folder = out / LOGS
        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{step:010d}"
        for file in folder.glob("events.out.tfevents.*"):
            if file.name >= name:
                file.unlink()
        self._stream = (folder / name).open("wb")
        self._writer = RecordWriter(self._stream)
        self._write(Event(wall_time=time.time(), file_version=_VERSION))
        self._write(Event(wall_time=time.time(), step=step + 1, session_log=SessionLog(status=SessionLog.START)))
        self.flush()

    def step(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        """Record a step of the optimizer and the tokens it read. Tokens per second are counted from one step to the next."""
        now = time.monotonic()
        speed = tokens / max(now - self._begun, 1e-9)
        self._begun = now
        self.report(step, {**values, "train/tokens_per_second": speed})

    def resume_clock(self) -> None:
        """Leave the time since the last step out of the speed, because it was spent on evaluation or saving."""
        self._begun = time.monotonic()

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """Record values of a step."""
        if self._stream is not None:
            summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
            self._write(Event(wall_time=time.time(), step=step, summary=summary))

    def flush(self) -> None:
        """Write all records to the file, so that none is lost if the process is killed."""
        if self._stream is not None:
            self._stream.flush()

    def close(self) -> None:
        """Close the log."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _write(self, event: "Event") -> None:
        self._writer.write(event.SerializeToString())
