"""Reads the answers and right labels of one model from a journal: a file, or the folder with its files. No text is kept.

Line by line, in the order of time. Needs no model and no server.
"""

import contextlib
import json
import os
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from sentiment.files.errors import BadFile
from sentiment.observability.journal import ANSWER, FEEDBACK
from sentiment.observability.journal_files import by_last_write, files_of
from sentiment_tools.watch.counts import OF_ANSWERS, Entry, Seen, Told

BEGINNING = b'{"journal":"'
# What ``find`` reads at once.
BLOCK_BYTES = 2**18


@dataclass(slots=True)
class JournalSource:
    """A model that a journal has answers of. ``id``: ``name/version``; ``left_out``: lines that are not read, by their kind."""

    id: str
    digest: str
    labels: tuple[str, ...]
    left_out: Counter[str] = field(default_factory=Counter)
    signals: tuple[str, ...] = OF_ANSWERS

    @classmethod
    def find(cls, path: Path, model: str) -> "JournalSource":
        """The model that answered last, or last of those with this NAME or NAME/VERSION.

        Raises:
            BadFile: there is no journal, or it cannot be read.
        """
        part = f'"model":"{model}"' if "/" in model else f'"model":"{model}/' if model else '"model":"'
        try:
            newest = [file for _, file in by_last_write(path)] if path.is_dir() else [path]
        except OSError as error:
            raise BadFile(f"{path}: cannot be read: {error.strerror}") from error
        for file in newest:
            for line in find(file, part.encode()):
                if not line.startswith(BEGINNING + ANSWER.encode() + b'"'):
                    continue
                row = _row(line) or {}
                model_id, digest, scores = row.get("model"), row.get("digest"), row.get("scores")
                if isinstance(model_id, str) and isinstance(digest, str) and isinstance(scores, dict):
                    return cls(model_id, digest, tuple(scores))
        raise BadFile(f"{path}: the journal has no answer{f' of {model}' if model else ''}")

    def entries(self, path: Path) -> Iterator[Entry]:
        """The model's answers, and right labels of them.

        Raises:
            BadFile: the journal cannot be read, or a line is not one of a journal.
        """
        if not path.is_dir():
            yield from (entry for _, entry in self._entries(path))
            return
        # Processes write at the same time, a file each: one is opened when its time has come.
        waiting = deque(files_of(path))
        opened: list[tuple[str, int, Entry, Iterator[tuple[str, Entry]]]] = []
        number = 0
        while waiting or opened:
            if waiting and (not opened or _begun(waiting[0]) <= opened[0][0]):
                number += 1
                entries = self._entries(waiting.popleft())
            else:
                _, _, entry, entries = heappop(opened)
                yield entry
            if (following := next(entries, None)) is not None:
                number += 1
                heappush(opened, (*following[:1], number, following[1], entries))

    def _entries(self, path: Path) -> Iterator[tuple[str, Entry]]:
        """The entries of a file, with their times."""
        try:
            with path.open("rb") as stream:
                for number, line in enumerate(stream, 1):
                    row = _row(line)
                    if row is None:
                        self.left_out["torn lines"] += 1
                        continue
                    try:
                        if (row["model"], row["digest"]) != (self.id, self.digest):
                            self.left_out["lines of other models or versions"] += 1
                            continue
                        entry = self._told(row, (path.name, number)) if row["journal"] == FEEDBACK else self._seen(row)
                        yield str(row["time"]), entry
                    except (KeyError, TypeError, ValueError) as error:
                        raise BadFile(f"{path}:{number}: not a line of a journal: {type(error).__name__}: {error}") from error
        except FileNotFoundError:
            # The server removes the oldest ones.
            self.left_out["files that were removed meanwhile"] += 1
        except OSError as error:
            raise BadFile(f"{path}: cannot be read: {error.strerror}") from error

    def _seen(self, row: dict[str, Any]) -> Seen:  # Any: JSON
        if row["label"] not in self.labels:
            raise ValueError(f"the labels are {', '.join(self.labels)}")
        score, tokens = row["scores"][row["label"]], row["tokens"]
        if not isinstance(score, int | float) or not 0 <= score <= 1:
            raise ValueError("a score must be a number from 0 to 1")
        if not isinstance(tokens, int) or tokens < 0:
            raise ValueError("tokens must be a whole number of at least 0")
        return Seen(row["label"], bool(row["abstain"]), float(score), tokens, bool(row["truncated"]), str(row["time"]))

    def _told(self, row: dict[str, Any], line: tuple[str, int]) -> Told:  # Any: JSON
        key: tuple[object, ...] = line
        if "request_id" in row:
            key = str(row["request_id"]), str(row["item"]), str(row.get("caller", ""))
        elif "text" in row:
            key = (sha256(json.dumps([row["text"], row.get("text_pair")]).encode()).digest(),)
        return Told(key, row["label"], row["label"] == row["predicted"], bool(row["abstain"]))


def is_journal(path: Path) -> bool:
    """Whether it is a folder, or a file that begins as a journal does.

    Raises:
        BadFile: it cannot be read.
    """
    try:
        if path.is_dir():
            if not files_of(path):
                raise BadFile(f"{path}: the folder has no files of a journal")
            return True
        with path.open("rb") as stream:
            return stream.read(len(BEGINNING)) == BEGINNING
    except OSError as error:
        raise BadFile(f"{path}: cannot be read: {error.strerror}") from error


def find(path: Path, part: bytes) -> Iterator[bytes]:
    """Lines of a file that have these bytes, from the last to the first; none if it cannot be read: another process may have removed it."""
    with contextlib.suppress(OSError), path.open("rb") as stream:
        end = stream.seek(0, os.SEEK_END)
        beginning = b""
        while end:
            start = max(0, end - BLOCK_BYTES)
            stream.seek(start)
            block = stream.read(end - start) + beginning
            end = start
            # What is before the first line end belongs to a line that begins in the next block; the file begins with a line.
            cut = block.find(b"\n") + 1 if start else 0
            if start and not cut:
                beginning = block
                continue
            beginning = block[:cut]
            last = len(block)
            while (at := block.rfind(part, cut, last)) >= 0:
                begin = max(cut, block.rfind(b"\n", cut, at) + 1)
                over = block.find(b"\n", at)
                if over >= 0:
                    yield block[begin : over + 1]
                last = begin


def _row(line: bytes) -> dict[str, Any] | None:  # Any: JSON
    """The object of a line; None if it is torn, as a killed server leaves the last one."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _begun(path: Path) -> str:
    """When a file was begun, as the lines have their times."""
    day, time = path.name.split("Z-")[0].split("T")
    return f"{day[:4]}-{day[4:6]}-{day[6:]}T{time[:2]}:{time[2:4]}:{time[4:]}Z"
