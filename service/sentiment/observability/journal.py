"""The journal: a line on disk for each answer that is drawn and for each right label that somebody tells, off by default.

A thread writes the lines, so that no call waits for the disk: what the disk does not take in time is dropped and counted. No line holds a
text unless a setting says so.
"""

import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sentiment.observability.journal_files import JournalFiles
from sentiment.observability.logs import logger
from sentiment.observability.writing_thread import WritingThread

# What waits for the disk, in bytes of its texts and what each line takes besides: some thousand lines.
BYTES_MAX, LINE_BYTES = 2**23, 2**10
# Lines of one write, and the pause between two: a thread that woke for each line would cost the event loop more than the line does. A
# killed process loses the lines of a pause.
LINES_MAX, PAUSE_S = 2**12, 0.05

# Made once: json.dumps makes an encoder for each call that has options.
_encode = json.JSONEncoder(separators=(",", ":")).encode
# The kinds of lines.
ANSWER, FEEDBACK = "answer", "feedback"


@dataclass(frozen=True, slots=True)
class Answered:
    """An answered text. ``at``: seconds since 1970; ``item``: its place in the request, from 0; ``scores``: by label.

    ``caller``: the name of the call's token, if ``Journal.bound``; empty, and not in the line: it has none, or the name is not kept.
    ``tokens``: those that were read, or would be without ``early``, special tokens included. ``truncated``: they are not all of the text.
    ``early``: a part of them sufficed. ``text``: None if it is not kept, see ``Journal.texts``.
    """

    at: float
    model: str
    digest: str
    request_id: str
    item: int
    caller: str
    priority: str
    tokens: int
    truncated: bool
    label: str
    abstain: bool
    scores: Mapping[str, float]
    text: str | None
    text_pair: str | None
    early: bool = False


@dataclass(frozen=True, slots=True)
class Labelled:
    """The right label of an answer. ``at``: seconds since 1970; ``request_id``: empty if a text was named; ``caller``: of the answer.

    ``label``: None, null in the line: no label of the model is right. ``text``: None if it is unknown or not kept.
    """

    at: float
    model: str
    digest: str
    request_id: str
    item: int
    caller: str
    label: str | None
    predicted: str
    abstain: bool
    text: str | None
    text_pair: str | None


Entry = Answered | Labelled


class Journal:
    """The journal of one process."""

    def __init__(
        self, files: JournalFiles, share: float, texts: bool, bound: bool = False, draw: Callable[[], float] = random.random
    ) -> None:
        """Start the writing thread.

        Args:
            files: takes the lines, in the thread only.
            share: share of the answers that are written, 0 to 1.
            texts: whether their texts are written too.
            bound: whether the names of their callers are, so that feedback is for answers to the same name only.
            draw: a random number, at least 0 and below 1.
        """
        self._files = files
        self._share = share
        # Without it, give entries no text: they may wait longer than their request lasts.
        self.texts = texts
        self.bound = bound
        self._draw = draw
        # Writes the lines, and counts those that the disk did not take, or not in time.
        self.thread = WritingThread(
            "journal", self._write, lambda lines: logger().warning("journal_lines_lost", lines=lines), BYTES_MAX, LINES_MAX, PAUSE_S
        )

    def draws(self) -> bool:
        """Whether the next answer is to be written."""
        return self._draw() < self._share

    def add(self, entry: Entry) -> None:
        """Write a line, soon. Returns at once."""
        self.thread.put(entry, LINE_BYTES + sum(sys.getsizeof(text) for text in (entry.text, entry.text_pair) if text is not None))

    def close(self) -> None:
        """Write what waits and end the file. Blocks, for a second at most."""
        if self.thread.end():
            self._files.close()

    def _write(self, entries: Sequence[Entry]) -> int:
        return self._files.append([entry_line(entry, self.texts) for entry in entries])


def entry_line(entry: Entry, with_text: bool) -> bytes:
    """The line of an entry: its kind, its time, and its fields in their order."""
    kind = ANSWER if isinstance(entry, Answered) else FEEDBACK
    row: dict[str, object] = {"journal": kind, "time": rfc_3339(entry.at)}
    row |= {name: getattr(entry, name) for name in entry.__slots__ if name != "at"}
    if isinstance(entry, Answered):
        row["scores"] = {label: round(score, 6) for label, score in entry.scores.items()}
    elif not entry.request_id:
        del row["request_id"], row["item"]
    if not entry.caller:
        del row["caller"]
    for name in ("text", "text_pair"):
        if not with_text or row[name] is None:
            del row[name]
    return line_of(row)


def line_of(row: Mapping[str, object]) -> bytes:
    """A line of the journal, with its line end. ASCII: a torn one is not torn within a character, which would stop a reader."""
    return _encode(row).encode("ascii") + b"\n"


def rfc_3339(at: float) -> str:
    """A time in UTC, to the millisecond. ``at``: seconds since 1970."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
