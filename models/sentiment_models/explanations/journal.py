"""What a long study has done so far, a line of JSON each, so that one that was killed goes on."""

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from sentiment.files.texts import claim
from sentiment_models.errors import ModelsError, OtherRun
from sentiment_models.export.provenance import Json


class Journal:
    """Records by key. Threads may share it. Without a file it is kept in memory only."""

    def __init__(self, path: Path | None, settings: Mapping[str, Json]) -> None:
        """Open a file, or begin it, which is written to with the first record.

        Args:
            path: the file; its first line tells the settings, a line that was cut off at its end is dropped.
            settings: what the records depend on.

        Raises:
            OtherRun: the file is of other settings.
            ModelsError: it is no journal, or damaged.
        """
        self._path = path
        self._lock = threading.Lock()
        self._records: dict[str, dict[str, Json]] = {}
        # Written with the first record: a run that is refused for another reason leaves no file.
        self._first = b""
        # Of the file, as far as it is known here.
        self._size = 0
        if path is None:
            return
        first = json.dumps({"settings": dict(settings)}, sort_keys=True).encode() + b"\n"
        content = path.read_bytes() if path.exists() else b""
        # What a kill may have left of a first line; anything else without an end is another's.
        if first.startswith(content) and content != first:
            self._first = first
            self._size = len(content)
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._size = len(whole)
        head, *lines = whole.splitlines() or [b""]
        if head + b"\n" != first:
            raise OtherRun(f"{path}: is of {_told(head, first)}; choose another file or delete it")
        for number, line in enumerate(lines, 2):
            try:
                key, record = json.loads(line)
                self._records[key] = record
            except (ValueError, TypeError) as error:
                raise ModelsError(f"{path}:{number}: damaged ({error}); delete the line") from error
        if len(whole) < len(content):
            with path.open("r+b") as stream:
                stream.truncate(len(whole))

    def get(self, key: str) -> dict[str, Json] | None:
        """A record, None if there is none yet."""
        return self._records.get(key)

    def add(self, key: str, record: dict[str, Json]) -> None:
        """Keep a record; it is in the file when this returns.

        Raises:
            ModelsError: another process writes to the file.
        """
        line = json.dumps([key, record]).encode() + b"\n"
        with self._lock:
            self._records[key] = record
            if self._path is not None:
                with self._path.open("ab") as stream:
                    # Not where the stream stands, which was found before the lock.
                    if not claim(stream) or os.fstat(stream.fileno()).st_size != self._size:
                        raise ModelsError(f"{self._path}: another process writes to it; repeat the command when that has ended")
                    if self._first:
                        stream.truncate(0)
                        self._size = 0
                    stream.write(self._first + line)
                    self._size += len(self._first + line)
                self._first = b""


def _told(head: bytes, wanted: bytes) -> str:
    """What differs between the settings of two first lines."""
    try:
        old, new = (json.loads(line)["settings"] for line in (head, wanted))
        names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return "no study"
    return f"a study with another {', '.join(names)}"
