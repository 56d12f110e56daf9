"""The folder of the answers: what was asked, a Parquet file for each part that is answered, and in the end a report.

A part's file appears whole or not at all, and always under the same name: who stops at any time and begins again has each row once. It
says which question it answers, and one that answers another counts as not there.
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

from sentiment.corpus.sources import Part, Source, is_local, is_pattern, resolve, shown, uri_of
from sentiment.errors import SentimentError
from sentiment.files.texts import BadFile, claim, reason

ASKED = "_corpus.json"
REPORT = "_report.json"
# Of a file that is being written; names with a '_' in front are no data to whoever reads the folder.
UNFINISHED = "_unfinished-"
# As ``Part.name`` has it.
PART = re.compile(r"part-\d{6}-\d{15}\.parquet")
# In a part's metadata: which question it answers.
QUESTION = b"sentiment.question"
# As where files are looked into.
LOOKS = 16
# Of answers and kept columns.
GROUP_BYTES = 2**24


class CorpusFailed(SentimentError):
    """A corpus cannot be scored to its end; what is scored stays, and the same command goes on from there."""


@dataclass(frozen=True, slots=True)
class Count:
    """Rows of the output, and how many of them have no answer."""

    rows: int = 0
    bad: int = 0

    @classmethod
    def of(cls, batch: pyarrow.RecordBatch) -> "Count":
        """Of a batch of answers."""
        return cls(batch.num_rows, batch.num_rows - batch.column("error").null_count)

    def __add__(self, other: "Count") -> "Count":
        return Count(self.rows + other.rows, self.bad + other.bad)


class Output:
    """A folder by any URI that fsspec writes to. ``question`` tells what was asked of its parts from all else that may be asked."""

    def __init__(self, uri: str, question: str = "") -> None:
        self._question = question.encode()
        self._fs, path = resolve(uri)
        self._path = path.rstrip("/")
        self.uri = uri_of(self._fs, self._path, uri)
        self.shown = shown(self.uri)

    def overlaps(self, read: str, sources: Sequence[Source]) -> bool:
        """Whether it would be read itself, now or when the command is repeated; ``read`` is the URI of what is."""
        fs, path = resolve(read)
        folder = f"{fs.unstrip_protocol(path).rstrip('/')}/"
        if f"{self.uri}/".startswith(folder) or any(source.uri.startswith(f"{self.uri}/") for source in sources):
            return True
        if fs != self._fs or not is_pattern(fs, path):
            return False
        # It may match what will be written.
        parts = [Part(number, source.uri, source.kind, 0, 0, 0).name for number, source in enumerate(sources)]
        pattern = re.compile(glob_translate(path))
        return any(pattern.match(self._file(name)) for name in (ASKED, REPORT, UNFINISHED, *parts))

    def asked_before(self) -> dict[str, Any] | None:
        """What was asked of this folder, None if it is new.

        Raises:
            BadFile: it holds something else.
        """
        try:
            if self._fs.exists(self._file(ASKED)):
                found: dict[str, Any] = json.loads(self._fs.cat_file(self._file(ASKED)))
                if not isinstance(found["files"], dict):
                    raise TypeError(f"{ASKED}: files is a {type(found['files']).__name__}")
                return found
            names = self._fs.ls(self._path, detail=False) if self._fs.exists(self._path) else []
            # A command that was killed at once leaves what is unfinished alone.
            if any(not PurePosixPath(name).name.startswith(UNFINISHED) for name in names):
                raise BadFile(f"{self.shown}: is there and no output of this command; choose another")
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise BadFile(f"{self.shown}: cannot be read: {error!r}") from error
        return None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make the folder and keep other commands of this machine off it. On file systems other than this machine's nobody is kept off.

        Raises:
            BadFile: it cannot be made, or another command works on it.
        """
        self._make()
        if not is_local(self._fs):
            yield
            return
        folder = os.open(self._path, os.O_RDONLY)
        try:
            if not claim(folder):
                raise BadFile(f"{self.shown}: another command works on it; wait for its end or choose another output")
            yield
        finally:
            os.close(folder)

    def clear(self) -> None:
        """Delete what commands before have written."""
        try:
            # What was asked last: until then it can be repeated.
            names = [*filter(PART.fullmatch, self._tidied()), REPORT, ASKED]
            for name in names:
                if self._fs.exists(self._file(name)):
                    self._fs.rm_file(self._file(name))
        except OSError as error:
            raise BadFile(f"{self.shown}: cannot be deleted: {error}") from error

    def _make(self) -> None:
        try:
            self._fs.makedirs(self._path, exist_ok=True)
        except OSError as error:
            raise BadFile(f"{self.shown}: cannot be made: {reason(error)}") from error

    def ask(self, asked: Mapping[str, Any]) -> None:
        """Make the folder, and write down what its answers answer."""
        self._make()
        self._write_json(ASKED, asked)

    def done(self, parts: Sequence[Part]) -> dict[str, Count]:
        """The parts that are answered, by name. What killed workers left unfinished is deleted: nobody may write meanwhile."""
        wanted = {part.name for part in parts}
        names = self._tidied()
        strange = [name for name in names if name.startswith("part-") and name not in wanted]
        if strange:
            raise BadFile(f"{self.shown}: {strange[0]} is no part of this corpus; choose another output or delete this one")
        there = [name for name in names if name in wanted]
        with ThreadPoolExecutor(LOOKS) as pool:
            counts = pool.map(self._count, there)
            return {name: count for name, count in zip(there, counts, strict=True) if count is not None}

    def _tidied(self) -> list[str]:
        # Of some file systems a listing is remembered.
        self._fs.invalidate_cache()
        names = [PurePosixPath(name).name for name in self._fs.ls(self._path, detail=False)]
        for name in names:
            if name.startswith(UNFINISHED):
                # A worker of a command that was killed may just have ended it.
                with suppress(FileNotFoundError):
                    self._fs.rm_file(self._file(name))
        return names

    def _count(self, name: str) -> Count | None:
        """None: it is no whole file, as after a loss of power, or answers another question."""
        try:
            with self._fs.open(self._file(name), "rb") as stream, parquet.ParquetFile(stream) as file:
                if (file.schema_arrow.metadata or {}).get(QUESTION) != self._question:
                    return None
                groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
                # ``error`` is the last column: a row that has one has no answer.
                bad = sum(group.num_rows - group.column(group.num_columns - 1).statistics.null_count for group in groups if group.num_rows)
                return Count(file.metadata.num_rows, bad)
        except (pyarrow.ArrowException, OSError, ValueError, AttributeError):
            return None

    def write_part(self, name: str, batches: Iterable[pyarrow.RecordBatch]) -> None:
        """Write a part's answers; they appear under its name when they are whole.

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
            # On a disk that is full it would be in the way of the others.
            with suppress(OSError):
                self._fs.rm_file(unfinished)
            raise BadFile(f"{self.shown}/{name}: cannot be written: {reason(error)}") from error

    def report(self, count: Count, parts: int, seconds: float) -> None:
        """Say that all is answered."""
        self._write_json(REPORT, {**asdict(count), "parts": parts, "seconds": round(seconds, 1)})

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self._write_whole(name, lambda stream: stream.write(json.dumps(content, indent=1).encode()))

    def _file(self, name: str) -> str:
        return f"{self._path}/{name}"


def _write(stream: IO[bytes], batches: Iterable[pyarrow.RecordBatch], question: bytes) -> None:
    """As Parquet, in row groups large enough to be read well and small enough to be held."""
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
