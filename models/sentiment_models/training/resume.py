"""What survives kill -9: files and folders that are replaced whole, and the state of a run in one of them."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from sentiment.files.texts import claim, difference, reason
from sentiment_models.errors import BadCheckpoint, ModelsError, OtherRun
from sentiment_models.export.provenance import Json


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


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Make a run's folder and keep other processes of this machine off it.

    Raises:
        ModelsError: another one works on it, or it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ModelsError(f"{folder}: cannot be made: {reason(error)}") from error
    try:
        if not claim(opened):
            raise ModelsError(f"{folder}: another process works on it; wait for its end or choose another --out")
        yield
    finally:
        os.close(opened)


def fingerprint_of(asked: Json) -> str:
    """What tells what a run depends on from all else, in short."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def save_state(path: Path, state: dict[str, Any], asked: Mapping[str, Json]) -> None:
    """Replace the checkpoint of a run: tensors and what ``torch.load`` takes without code; ``asked``: what the run depends on."""
    part = path.with_name(path.name + ".part")
    try:
        torch.save({**state, "asked": json.dumps(asked)}, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def load_state(path: Path, asked: Mapping[str, Json], remedy: str = "choose another --out") -> dict[str, Any] | None:
    """Read the checkpoint of a run, None where there is none.

    Raises:
        BadCheckpoint: it is damaged.
        OtherRun: it is of a run that depends on something else.
    """
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen kinds for a damaged file
        raise BadCheckpoint(f"{path}: damaged ({error}); delete it to start again") from error
    # As it was written: JSON has no tuples.
    differs = difference(json.loads(state.get("asked", "{}")), json.loads(json.dumps(asked)))
    if differs:
        raise OtherRun(f"{path}: {differs}; {remedy}, or delete it to start again")
    return state
