"""The folders of bundles on disk, as they are now: which versions there are, whether one is all there, and whether it still changes."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from sentiment.model.bundle import MANIFEST, MANIFEST_BYTES_MAX, VERSION, digest_of

# More than anybody has; a listing must end.
LISTED_MAX = 1000

Signature = tuple[tuple[str, int, int, int], ...]
"""Name, size, time of change (ns) and inode of each file of a folder: another one if anything was written or exchanged there."""


def on_disk(roots: Sequence[Path]) -> dict[str, Path]:
    """The folder of each ``name/version`` that has a manifest, that of the first root which has it; at most LISTED_MAX."""
    found: dict[str, Path] = {}
    for path in (path for root in roots for path in _folders(root)):
        if len(found) == LISTED_MAX:
            break
        if (path / MANIFEST).is_file():
            found.setdefault(f"{path.parent.name}/{path.name}", path)
    return found


def versions_of(name: str, roots: Sequence[Path]) -> dict[int, Path]:
    """The folders of a model's versions, the highest first, in the first root that has any; also those without a manifest yet."""
    for root in roots:
        versions = {int(path.name): path for path in _versions(root / name)}
        if versions:
            return dict(sorted(versions.items(), reverse=True))
    return {}


def missing(path: Path) -> str:
    """What of a bundle is not there, by its manifest's sizes; empty if all of it is. Cheap: contents are not looked at."""
    try:
        with (path / MANIFEST).open("rb") as stream:
            files = json.loads(stream.read(MANIFEST_BYTES_MAX))["files"].items()
        for name, spec in files:
            size, wanted = (path / name).stat().st_size, spec["bytes"]
            if size < wanted:
                return f"{name} has {size} of {wanted} bytes"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is not there"
    except OSError as error:
        return f"{Path(str(error.filename)).name} cannot be read: {error.strerror}"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return f"{MANIFEST} is not whole"
    return ""


def signature(path: Path) -> Signature:
    """What the folder's files look like now; empty if it cannot be read."""
    try:
        stats = [(file.name, file.stat()) for file in sorted(path.iterdir())]
        return tuple((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in stats)
    except OSError:
        return ()


def size(path: Path) -> int:
    """Bytes of the files of a folder; 0 if it cannot be read."""
    return sum(size for _, size, _, _ in signature(path))


def digest(path: Path) -> str:
    """The digest of the bundle that stands there now; empty if there is none."""
    try:
        return digest_of((path / MANIFEST).read_bytes())
    except OSError:
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
        return [path for path in folder.iterdir() if VERSION.fullmatch(path.name) and path.is_dir()]
    except OSError:
        return []
