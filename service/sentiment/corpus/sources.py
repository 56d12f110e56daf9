"""Which files a corpus has: one, a pattern's, or a folder's, by any URI that fsspec knows; and what a part of one is."""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from sentiment.files.texts import READABLE, BadFile

# Each is at least one part and one file of the output.
FILES_MAX = 100_000
# What a file system knows of a file that changes with its content; the first that it has counts. Where it has none the content does.
MARKS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created")
# Of a file that is read on: some hundred texts a call.
BUFFER_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Source:
    """A file: its URI, its size, and what tells it from what it was before."""

    uri: str
    bytes: int
    mark: str

    @property
    def kind(self) -> str:
        """The end of its name, such as .csv."""
        return PurePosixPath(self.uri).suffix

    @property
    def shown(self) -> str:
        """As the user would call it."""
        return shown(self.uri)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows [start, end) of a Parquet file, or the rows of another file that begin in its bytes [start, end).

    ``number`` is the file's place in the corpus; ``bytes`` is about how much text it holds.
    """

    number: int
    uri: str
    kind: str
    start: int
    end: int
    bytes: int

    @property
    def name(self) -> str:
        """Of the file of its answers. By name these stand in the corpus's order."""
        return f"part-{self.number:06}-{self.start:015}.parquet"

    def __str__(self) -> str:
        unit = "rows" if self.kind == ".parquet" else "bytes"
        return f"{shown(self.uri)}, {unit} {self.start} to {self.end}"


def shown(uri: str) -> str:
    """A local file's path, any other's URI."""
    return uri.removeprefix("file://")


def resolve(uri: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of a URI or local path, and the path in it.

    Raises:
        BadFile: there is no such file system, a package that it needs is missing, or it must know more than the URI says.
    """
    try:
        found: tuple[fsspec.AbstractFileSystem, str] = url_to_fs(uri)
    except (ValueError, TypeError, ImportError, OSError) as error:
        raise BadFile(f"{uri}: {error}") from error
    return found


def uri_of(fs: fsspec.AbstractFileSystem, path: str, given: str) -> str:
    """A path's URI, by which a worker opens it; ``given`` is the URI that led there.

    Raises:
        BadFile: it would open something else, as a file system's own names hold no host, account or archive.
    """
    uri: str = fs.unstrip_protocol(path)
    why = "it is another file system there"
    try:
        if resolve(uri)[0] == fs:
            return uri
    except BadFile as error:
        why = str(error)
    raise BadFile(
        f"{given}: {uri} alone does not lead there ({why}); host or account belong in fsspec's configuration, chains are not read"
    )


def is_local(fs: fsspec.AbstractFileSystem) -> bool:
    """Whether its files are this machine's."""
    return isinstance(fs, LocalFileSystem)


def is_pattern(fs: fsspec.AbstractFileSystem, path: str) -> bool:
    """Whether a path is a pattern; one that is there under that very name is none."""
    return any(sign in path for sign in "*?[") and not fs.exists(path)


def open_buffered(uri: str) -> io.BufferedReader:
    """Open for reading, with seek and lines of bounded length."""
    fs, path = resolve(uri)
    return io.BufferedReader(fs.open(path, "rb"), BUFFER_BYTES)


def find_sources(uri: str) -> list[Source]:
    """The files of a corpus, by name. In folders, names that begin with '_' or '.' are passed over, as everybody does; no other is.

    Raises:
        BadFile: there is none, one is of no kind that is read, or there are too many.
    """
    fs, path = resolve(uri)
    # Of some file systems a listing is remembered.
    fs.invalidate_cache()
    try:
        found = _found(fs, path)
    except OSError as error:
        raise BadFile(f"{uri}: cannot be read: {error.strerror or error}") from error
    if not found:
        raise BadFile(f"{uri}: no file there")
    if len(found) > FILES_MAX:
        raise BadFile(f"{uri}: {len(found)} files; the limit is {FILES_MAX} (join small ones first)")
    sources = [Source(uri_of(fs, name, uri), _size(name, info), _mark(fs, name, info)) for name, info in sorted(found.items())]
    for source in sources:
        if source.kind not in READABLE:
            raise BadFile(f"{source.shown}: a {source.kind or 'nameless'} file; read are {', '.join(READABLE)}")
    return sources


def _found(fs: fsspec.AbstractFileSystem, path: str) -> Mapping[str, Mapping[str, Any]]:
    if is_pattern(fs, path):
        return {name: info for name, info in fs.glob(path, detail=True).items() if info["type"] == "file"}
    info = fs.info(path)
    if info["type"] != "directory":
        return {path: info}
    inside = fs.find(path, detail=True)
    return {name: info for name, info in inside.items() if not _passed_over(name.removeprefix(path))}


def _passed_over(below: str) -> bool:
    return any(part.startswith(("_", ".")) for part in PurePosixPath(below).parts)


def _size(name: str, info: Mapping[str, Any]) -> int:
    if info.get("size") is None:
        raise BadFile(f"{name}: its size is not known; what is read in parts must have one")
    return int(info["size"])


def _mark(fs: fsspec.AbstractFileSystem, name: str, info: Mapping[str, Any]) -> str:
    found = next((str(info[mark]) for mark in MARKS if info.get(mark)), "")
    if found:
        return found
    with fs.open(name, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
