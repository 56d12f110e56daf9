"""The files of a corpus: one file, a pattern's matches, or a folder's content, at any URI that fsspec knows. And the parts of a file."""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from sentiment.files.decoding import COMPRESSED
from sentiment.files.errors import BadFile
from sentiment.files.reading import READABLE, format_of

# Each file is at least one part, and one file of the output.
FILES_MAX = 100_000
# Attributes that change with a file's content. The first one that the file system has is used; if it has none, a hash of the content is.
MARKS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created")
# Read-ahead of an open file: some hundred texts per call.
BUFFER_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Source:
    """A file: its URI, its size, and a mark that changes with its content."""

    uri: str
    bytes: int
    mark: str

    @property
    def kind(self) -> str:
        """Its format by the ending of its name, as ``files.reading.FORMATS`` has it; empty if it has none of those."""
        return format_of(PurePosixPath(self.uri).name)

    @property
    def compressed(self) -> bool:
        """Whether its name says that it is compressed."""
        return PurePosixPath(self.uri).suffix.lower() in COMPRESSED

    @property
    def shown(self) -> str:
        """The name for messages."""
        return shown(self.uri)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows [start, end) of a Parquet file, or the rows of a file of lines that begin in its bytes [start, end).

    ``number`` is the file's index in the corpus; ``bytes`` is approximately how much text the part holds. ``whole``: the part is a file
    that cannot be cut, such as a compressed one; start and end are then its bytes.
    """

    number: int
    uri: str
    kind: str
    start: int
    end: int
    bytes: int
    whole: bool = False

    @property
    def name(self) -> str:
        """The name of the file of its answers. Sorted by name, parts are in the corpus's order."""
        return f"part-{self.number:06}-{self.start:015}.parquet"

    def __str__(self) -> str:
        if self.whole:
            return shown(self.uri)
        unit = "rows" if self.kind == "parquet" else "bytes"
        return f"{shown(self.uri)}, {unit} {self.start} to {self.end}"


def shown(uri: str) -> str:
    """A local file's path, any other's URI."""
    return uri.removeprefix("file://")


def resolve(uri: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of a URI or local path, and the path in it.

    Raises:
        BadFile: the file system is unknown, needs a missing package, or needs more than the URI.
    """
    try:
        found: tuple[fsspec.AbstractFileSystem, str] = url_to_fs(uri)
    except (ValueError, TypeError, ImportError, OSError) as error:
        raise BadFile(f"{uri}: {error}") from error
    return found


def uri_of(fs: fsspec.AbstractFileSystem, path: str, given: str) -> str:
    """The URI by which a worker opens a path; ``given`` is the user's URI.

    Raises:
        BadFile: the path's URI would open something else, because it holds no host, account or archive.
    """
    uri: str = fs.unstrip_protocol(path)
    why = "it leads to another file system"
    try:
        if resolve(uri)[0] == fs:
            return uri
    except BadFile as error:
        why = str(error)
    raise BadFile(
        f"{given}: workers cannot open it as {uri} ({why}); set host or account in fsspec's configuration; chained URIs are not supported"
    )


def is_local(fs: fsspec.AbstractFileSystem) -> bool:
    """Whether this is the local file system."""
    return isinstance(fs, LocalFileSystem)


def is_pattern(fs: fsspec.AbstractFileSystem, path: str) -> bool:
    """Whether a path is a pattern. A path that exists under exactly this name is not."""
    return any(sign in path for sign in "*?[") and not fs.exists(path)


def open_buffered(uri: str) -> io.BufferedReader:
    """Open for reading, with seek and ``readline`` of bounded length."""
    fs, path = resolve(uri)
    return io.BufferedReader(fs.open(path, "rb"), BUFFER_BYTES)


def find_sources(uri: str) -> list[Source]:
    """The files of a corpus, sorted by name. In folders, names that begin with '_' or '.' are skipped, as other tools do.

    Raises:
        BadFile: there are no files or too many, or one has an unknown suffix.
    """
    fs, path = resolve(uri)
    # Some file systems cache listings.
    fs.invalidate_cache()
    try:
        found = _found(fs, path)
    except OSError as error:
        raise BadFile(f"{uri}: cannot be read: {error.strerror or error}") from error
    if not found:
        raise BadFile(f"{uri}: no files found")
    if len(found) > FILES_MAX:
        raise BadFile(f"{uri}: has {len(found)} files; the limit is {FILES_MAX}; join small files first")
    sources = [Source(uri_of(fs, name, uri), _size(name, info), _mark(fs, name, info)) for name, info in sorted(found.items())]
    for source in sources:
        if not source.kind:
            raise BadFile(f"{source.shown}: the suffix must be one of {READABLE} (text also with {' or '.join(COMPRESSED)})")
    return sources


def _found(fs: fsspec.AbstractFileSystem, path: str) -> Mapping[str, Mapping[str, Any]]:
    if is_pattern(fs, path):
        return {name: info for name, info in fs.glob(path, detail=True).items() if info["type"] == "file"}
    info = fs.info(path)
    if info["type"] != "directory":
        return {path: info}
    inside = fs.find(path, detail=True)
    return {name: info for name, info in inside.items() if not _skipped(name.removeprefix(path))}


def _skipped(below: str) -> bool:
    return any(part.startswith(("_", ".")) for part in PurePosixPath(below).parts)


def _size(name: str, info: Mapping[str, Any]) -> int:
    if info.get("size") is None:
        raise BadFile(f"{name}: the file system does not know its size, which is needed to read it in parts")
    return int(info["size"])


def _mark(fs: fsspec.AbstractFileSystem, name: str, info: Mapping[str, Any]) -> str:
    found = next((str(info[mark]) for mark in MARKS if info.get(mark)), "")
    if found:
        return found
    with fs.open(name, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
