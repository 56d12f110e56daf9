"""What survives kill -9: files and folders that are replaced whole, and the state of a run in one of them."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from sentiment_models.errors import BadCheckpoint


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file, or leave it as it was."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def replace_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Replace a folder by a new one that ``fill`` has filled; if that fails nothing of the new one remains."""
    part = path.with_name(path.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        fill(part)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    shutil.rmtree(path, ignore_errors=True)
    part.rename(path)


@contextlib.contextmanager
def in_the_making(folder: Path) -> Iterator[None]:
    """Make a folder, and those above it, to be filled and renamed; of what is not renamed nothing remains, those above included."""
    made = [above for above in folder.parents if not above.exists()]
    try:
        folder.mkdir(parents=True)
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        # Those that hold what it became stay.
        with contextlib.suppress(OSError):
            for above in made:
                above.rmdir()


def save_state(path: Path, state: dict[str, Any], fingerprint: str) -> None:
    """Replace the checkpoint of a run: tensors, and what ``torch.load`` takes without code."""
    part = path.with_name(path.name + ".part")
    try:
        torch.save({**state, "fingerprint": fingerprint}, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def load_state(path: Path, fingerprint: str) -> dict[str, Any] | None:
    """Read the checkpoint of a run, None where there is none.

    Raises:
        BadCheckpoint: it is damaged or belongs to a run of another fingerprint.
    """
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen kinds for a damaged file
        raise BadCheckpoint(f"{path}: damaged ({error}); delete it to start again") from error
    if state.get("fingerprint") != fingerprint:
        raise BadCheckpoint(f"{path}: belongs to another recipe or other data; choose another --out or delete it")
    return state
