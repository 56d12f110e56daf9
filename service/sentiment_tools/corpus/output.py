"""The output folder: a record of the request, a Parquet file for each scored part, and finally a report.

A part's file appears completely or not at all, and always under the same name. So a run can stop at any time, and the output still has each
row once when it is repeated. Each file's metadata identifies the request; a file of another request counts as missing.
"""

import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import IO, Any

import pyarrow
from fsspec.utils import glob_translate
from pyarrow import parquet

from sentiment.errors import SentimentError
from sentiment.files.errors import BadFile, reason
from sentiment.files.line_output import claim
from sentiment_tools.corpus.sources import Part, Source, is_local, is_pattern, resolve, shown, uri_of

REQUEST = "_corpus.json"
REPORT = "_report.json"
# Prefix of a file that is being written. Readers of a folder of Parquet files skip names that begin with '_'.
UNFINISHED = "_unfinished-"
# The format of ``Part.name``.
PART = re.compile(r"part-\d{6}-\d{15}\.parquet")
# Key of a part's metadata: the hash of the request.
QUESTION = b"sentiment.question"
# Files to open at once, as in ``parts``.
OPEN_FILES = 16
# Size of a Parquet row group in memory: answers and kept columns.
GROUP_BYTES = 2**24


class CorpusFailed(SentimentError):
    """A corpus could not be scored completely. Scored parts stay; the repeated command continues from there."""


@dataclass(frozen=True, slots=True)
class Count:
    """Rows of the output, and how many of them have an error instead of an answer."""

    rows: int = 0
    bad: int = 0

    @classmethod
    def of(cls, batch: pyarrow.RecordBatch) -> "Count":
        """Count a batch of answers."""
        return cls(batch.num_rows, batch.num_rows - batch.column("error").null_count)

    def __add__(self, other: "Count") -> "Count":
        return Count(self.rows + other.rows, self.bad + other.bad)


class Output:
    """An output folder, at any URI that fsspec can write to. ``question`` is a hash that identifies the request."""

    def __init__(self, uri: str, question: str = "") -> None:
        self._question = question.encode()
        self._fs, path = resolve(uri)
        self._path = path.rstrip("/")
        self.uri = uri_of(self._fs, self._path, uri)
        self.shown = shown(self.uri)

    def overlaps(self, read: str, sources: Sequence[Source]) -> bool:
        """Whether the input at the URI ``read`` would include this folder, now or when the command is repeated."""
        fs, path = resolve(read)
        folder = f"{fs.unstrip_protocol(path).rstrip('/')}/"
        if f"{self.uri}/".startswith(folder) or any(source.uri.startswith(f"{self.uri}/") for source in sources):
            return True
        if fs != self._fs or not is_pattern(fs, path):
            return False
        # The pattern may match files that are not written yet.
        parts = [Part(number, source.uri, source.kind, 0, 0, 0).name for number, source in enumerate(sources)]
        pattern = re.compile(glob_translate(path))
        return any(pattern.match(self._file(name)) for name in (REQUEST, REPORT, UNFINISHED, *parts))

    def recorded(self) -> dict[str, Any] | None:
        """The request of the run that began this folder, or None for a new folder.

        Raises:
            BadFile: the folder holds something else, or cannot be read.
        """
        try:
            if self._fs.exists(self._file(REQUEST)):
                found: dict[str, Any] = json.loads(self._fs.cat_file(self._file(REQUEST)))
                if not isinstance(found["files"], dict):
                    raise TypeError(f"{REQUEST}: files must be an object, got {type(found['files']).__name__}")
                return found
            names = self._fs.ls(self._path, detail=False) if self._fs.exists(self._path) else []
            # A command that was killed at once leaves only unfinished files.
            if any(not PurePosixPath(name).name.startswith(UNFINISHED) for name in names):
                raise BadFile(f"{self.shown}: exists and is not an output of this command; choose another folder")
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise BadFile(f"{self.shown}: cannot be read: {error!r}") from error
        return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder, and lock it against other commands on this machine. Only local folders are locked.

        Raises:
            BadFile: the folder cannot be created, or another command is writing to it.
        """
        self._make()
        if not is_local(self._fs):
            yield
            return
        folder = os.open(self._path, os.O_RDONLY)
        try:
            if not claim(folder):
                raise BadFile(f"{self.shown}: another command is writing to it; wait until it ends, or choose another output")
            yield
        finally:
            os.close(folder)

    def clear(self) -> None:
        """Delete what earlier runs have written."""
        try:
            # The request goes last: until then, the deletion can be repeated.
            names = [*filter(PART.fullmatch, self._tidied()), REPORT, REQUEST]
            for name in names:
                if self._fs.exists(self._file(name)):
                    self._fs.rm_file(self._file(name))
        except OSError as error:
            raise BadFile(f"{self.shown}: cannot be deleted: {error}") from error

    def _make(self) -> None:
        try:
            self._fs.makedirs(self._path, exist_ok=True)
        except OSError as error:
            raise BadFile(f"{self.shown}: cannot be created: {reason(error)}") from error

    def record(self, request: Mapping[str, Any]) -> None:
        """Create the folder, and record the request in it."""
        self._make()
        self._write_json(REQUEST, request)

    def done(self, parts: Sequence[Part]) -> dict[str, Count]:
        """The scored parts, by name. Deletes unfinished files of killed workers, so nobody may write at the same time."""
        wanted = {part.name for part in parts}
        names = self._tidied()
        strange = [name for name in names if name.startswith("part-") and name not in wanted]
        if strange:
            raise BadFile(f"{self.shown}: {strange[0]} does not belong to this corpus; choose another output, or delete this one")
        there = [name for name in names if name in wanted]
        with ThreadPoolExecutor(OPEN_FILES) as pool:
            counts = pool.map(self._count, there)
            return {name: count for name, count in zip(there, counts, strict=True) if count is not None}

    def _tidied(self) -> list[str]:
        # Some file systems cache listings.
        self._fs.invalidate_cache()
        names = [PurePosixPath(name).name for name in self._fs.ls(self._path, detail=False)]
        for name in names:
            if name.startswith(UNFINISHED):
                # A worker of a killed command may just have finished it.
                with suppress(FileNotFoundError):
                    self._fs.rm_file(self._file(name))
        return names

    def _count(self, name: str) -> Count | None:
        """None for an incomplete file, such as after a power failure, or a file of another request."""
        try:
            with self._fs.open(self._file(name), "rb") as stream, parquet.ParquetFile(stream) as file:
                if (file.schema_arrow.metadata or {}).get(QUESTION) != self._question:
                    return None
                groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
                # ``error`` is the last column; it is null in rows that have an answer.
                bad = sum(group.num_rows - group.column(group.num_columns - 1).statistics.null_count for group in groups if group.num_rows)
                return Count(file.metadata.num_rows, bad)
        except (pyarrow.ArrowException, OSError, ValueError, AttributeError):
            return None

    def write_part(self, name: str, batches: Iterable[pyarrow.RecordBatch]) -> None:
        """Write a part's answers. The file appears under the part's name once it is complete.

        Raises:
            BadFile: they cannot be written.
        """
        self._write_whole(name, lambda stream: _write(stream, batches, self._question))

    def _write_whole(self, name: str, write: Callable[[IO[bytes]], object]) -> None:
        unfinished = self._file(f"{UNFINISHED}{uuid.uuid4().hex}")
        try:
            with self._fs.open(unfinished, "wb") as stream:
                write(stream)
                if is_local(self._fs):
                    stream.flush()
                    os.fsync(stream.fileno())
            self._fs.mv(unfinished, self._file(name))
        except OSError as error:
            # On a full disk, this makes room for the other parts.
            with suppress(OSError):
                self._fs.rm_file(unfinished)
            raise BadFile(f"{self.shown}/{name}: cannot be written: {reason(error)}") from error

    def report(self, count: Count, parts: int, seconds: float) -> None:
        """Write the report of a complete run."""
        self._write_json(REPORT, {**asdict(count), "parts": parts, "seconds": round(seconds, 1)})

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self._write_whole(name, lambda stream: stream.write(json.dumps(content, indent=1).encode()))

    def _file(self, name: str) -> str:
        return f"{self._path}/{name}"


def _write(stream: IO[bytes], batches: Iterable[pyarrow.RecordBatch], question: bytes) -> None:
    """Write Parquet with row groups that are large enough to read efficiently and small enough to hold in memory."""
    source = iter(batches)
    first = next(source)
    with parquet.ParquetWriter(stream, first.schema.with_metadata({QUESTION: question}), compression="zstd") as writer:
        held, size = [first], first.nbytes
        for batch in source:
            if size > GROUP_BYTES:
                writer.write_table(pyarrow.Table.from_batches(held))
                held, size = [], 0
            held.append(batch)
            size += batch.nbytes
        writer.write_table(pyarrow.Table.from_batches(held))
