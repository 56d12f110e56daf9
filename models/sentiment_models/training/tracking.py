"""What a training run reports while it runs, as event files that ``tensorboard --logdir`` draws. Knows nothing of models or of torch.

TensorBoard comes with the models extra; where it is missing a run goes on without a log.
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

# From version 2 on a reader drops what a new file says that it does again.
_VERSION = "brain.Event:2"


class Log:
    """Scalars by step. ``dev/accuracy`` and the like: what stands before the slash is drawn together.

    Each start of a run has a file of its own, named by the step it starts from: files are read in the order of their names, and
    torch's SummaryWriter, which names them by the second, mixes up two starts within one.
    """

    def __init__(self, out: Path, step: int, wanted: bool = True) -> None:
        """Begin, or go on with, the log of the run in ``out``.

        Args:
            out: the run's folder.
            step: the last step that was done. What a killed run wrote of later ones is done again and only then shown.
            wanted: False: write nothing.
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
        """Report a step of the optimizer and how many tokens it read; those a second are reckoned from one step to the next."""
        now = time.monotonic()
        speed = tokens / max(now - self._begun, 1e-9)
        self._begun = now
        self.report(step, {**values, "train/tokens_per_second": speed})

    def resume_clock(self) -> None:
        """Leave the time since the last step, which went elsewhere, out of the speed."""
        self._begun = time.monotonic()

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """Report values of a step."""
        if self._stream is not None:
            summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
            self._write(Event(wall_time=time.time(), step=step, summary=summary))

    def flush(self) -> None:
        """Hand what was reported to the system: nothing of it is lost if the process is killed."""
        if self._stream is not None:
            self._stream.flush()

    def close(self) -> None:
        """End the log."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _write(self, event: "Event") -> None:
        self._writer.write(event.SerializeToString())
