"""The cgroups of this process, by which a container limits its cores and memory. The least limit of them and their ancestors applies."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def settings_of(root: Path, file: str, controller: str = "") -> Iterator[str]:
    """Yield the content of a file in the process's cgroup and in those around it, from the inside to the outside.

    Args:
        root: of the file system.
        file: its name.
        controller: of version 1, such as ``memory``; empty for version 2.
    """
    base = root / "sys/fs/cgroup" / controller
    own = base / _own_group(root, controller).lstrip("/")
    for folder in (own, *own.parents):
        if folder == base or base in folder.parents:
            yield _read(folder / file)


def _own_group(root: Path, controller: str) -> str:
    """The path of the process's group, from a line ``number:controllers:path``; of version 2 the controllers are empty."""
    lines = (line.split(":", 2) for line in _read(root / "proc/self/cgroup").splitlines())
    return next((fields[2] for fields in lines if len(fields) == 3 and controller in fields[1].split(",")), "")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
