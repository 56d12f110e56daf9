"""The journal of a long study: one JSON line per finished record, so an interrupted study can continue."""

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from sentiment.files.line_output import claim
from sentiment_models.errors import ModelsError, OtherRun
from sentiment_models.export.provenance import Json


class Journal:
    """Records by key. Threads may share it. Without a file, records are kept in memory only."""

    def __init__(self, path: Path | None, settings: Mapping[str, Json]) -> None:
        """Open a journal. A new file is created with the first record.

        Args:
            path: the file. Its first line has the settings; an incomplete last line is removed.
            settings: everything that the records depend on.

        Raises:
            OtherRun: the file belongs to a study with other settings, or is not a journal.
            ModelsError: the file is damaged.
        """
        self._path = path
        self._lock = threading.Lock()
        self._records: dict[str, dict[str, Json]] = {}
        # The line with the settings, written with the first record: a run that fails before it leaves no file.
        self._first = b""
        # The expected size of the file. Another size means that another process writes to it.
        self._size = 0
        if path is None:
            return
        first = json.dumps({"settings": dict(settings)}, sort_keys=True).encode() + b"\n"
        content = path.read_bytes() if path.exists() else b""
        # A killed process may leave a part of the first line; the file then counts as new.
        if first.startswith(content) and content != first:
            self._first = first
            self._size = len(content)
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._size = len(whole)
        head, *lines = whole.splitlines() or [b""]
        if head + b"\n" != first:
            raise OtherRun(f"{path}: {_difference(head, first)}; choose another file or delete it")
        for number, line in enumerate(lines, 2):
            try:
                key, record = json.loads(line)
                self._records[key] = record
            except (ValueError, TypeError, RecursionError) as error:
                raise ModelsError(f"{path}:{number}: damaged ({error}); delete the line") from error
        if len(whole) < len(content):
            with path.open("r+b") as stream:
                stream.truncate(len(whole))

    def get(self, key: str) -> dict[str, Json] | None:
        """Return a record, or None."""
        return self._records.get(key)

    def add(self, key: str, record: dict[str, Json]) -> None:
        """Store a record; it is in the file when this returns.

        Raises:
            ModelsError: another process writes to the file.
        """
        line = json.dumps([key, record]).encode() + b"\n"
        with self._lock:
            self._records[key] = record
            if self._path is not None:
                with self._path.open("ab") as stream:
                    # fstat, not stream.tell(): the position was set before the lock was held.
                    if not claim(stream) or os.fstat(stream.fileno()).st_size != self._size:
                        raise ModelsError(f"{self._path}: another process writes to this file; run the command again when it has ended")
                    if self._first:
                        stream.truncate(0)
                        self._size = 0
                    stream.write(self._first + line)
                    self._size += len(self._first + line)
                self._first = b""


def _difference(head: bytes, expected: bytes) -> str:
    """Describe the difference between two first lines."""
    try:
        old, new = (json.loads(line)["settings"] for line in (head, expected))
        names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "not a journal of a study"
    return f"belongs to a study with other settings ({', '.join(names)})"
