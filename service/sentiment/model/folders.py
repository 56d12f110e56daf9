"""The bundle folders on disk: which versions exist, whether a bundle is complete, and whether it is still changing."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from sentiment.errors import BadBundle
from sentiment.model.bundle import FILE_NAME, MANIFEST, MANIFEST_BYTES_MAX, VERSION, digest_of, opened

# Bounds the listing; far more than any deployment has.
LISTED_MAX = 1000

Signature = tuple[tuple[str, int, int, int], ...]
"""Name, size, time of change (ns) and inode of each file of a folder. It changes when a file or its permissions are written or replaced."""


def on_disk(roots: Sequence[Path]) -> dict[str, Path]:
    """The folder of each ``name/version`` that has a manifest, at most LISTED_MAX. The first root with a version takes precedence."""
    found: dict[str, Path] = {}
    for path in (path for root in roots for path in _folders(root)):
        if len(found) == LISTED_MAX:
            break
        if os.path.isfile(path / MANIFEST):
            found.setdefault(f"{path.parent.name}/{path.name}", path)
    return found


def versions_of(name: str, roots: Sequence[Path]) -> dict[int, Path]:
    """The version folders of a model, highest version first, in the first root that has any. A folder may lack its manifest still."""
    for root in roots:
        versions = {int(path.name): path for path in _versions(root / name)}
        if versions:
            return dict(sorted(versions.items(), reverse=True))
    return {}


def missing(path: Path) -> str:
    """The first file that is missing or too short by the manifest; empty if there is none. Cheap: reads no file contents."""
    try:
        # A pipe would be waited for.
        if not (path / MANIFEST).is_file():
            return f"{MANIFEST} is missing"
        with (path / MANIFEST).open("rb") as stream:
            files = json.loads(stream.read(MANIFEST_BYTES_MAX))["files"].items()
        for name, spec in files:
            if not FILE_NAME.fullmatch(name):
                raise ValueError(name)
            size, wanted = (path / name).stat().st_size, spec["bytes"]
            if size < wanted:
                return f"{name} has {size} of {wanted} bytes"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except OSError as error:
        return f"{Path(str(error.filename)).name} cannot be read: {error.strerror}"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return f"{MANIFEST} is incomplete or not a manifest"
    return ""


def signature(path: Path) -> Signature:
    """The signature of a folder now; empty if it cannot be read."""
    try:
        stats = [(file.name, file.stat()) for file in sorted(path.iterdir())]
        return tuple((name, stat.st_size, stat.st_ctime_ns, stat.st_ino) for name, stat in stats)
    except OSError:
        return ()


def size(path: Path) -> int:
    """Total bytes of the files of a folder; 0 if it cannot be read."""
    return sum(size for _, size, _, _ in signature(path))


def digest(path: Path) -> str:
    """The digest of the bundle in a folder now; empty if there is none."""
    try:
        with opened(path, MANIFEST) as stream:
            return digest_of(stream.read(MANIFEST_BYTES_MAX))
    except (BadBundle, OSError):
        return ""


def _folders(root: Path) -> Iterator[Path]:
    try:
        names = sorted(path for path in root.iterdir() if path.name[0] != ".")
    except OSError:
        return
    for name in names:
        yield from sorted(_versions(name), key=lambda path: int(path.name))


def _versions(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if VERSION.fullmatch(path.name) and os.path.isdir(path)]
    except OSError:
        return []
