"""Folders that one process makes at a time, and that appear whole or not at all. Needs no torch."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from sentiment.files.errors import reason
from sentiment.files.line_output import claim
from sentiment_models.errors import ModelsError, disk_full
from sentiment_models.export.copying import put_in_place
from sentiment_models.export.manifest import MANIFEST_FILE
from sentiment_models.reports.report import refuse_existing


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a run's folder and lock it against other processes of this machine.

    Raises:
        ModelsError: another process holds the lock, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ModelsError(f"{folder}: the folder cannot be created: {reason(error)}") from error
    try:
        if not claim(opened):
            raise ModelsError(f"{folder}: another process uses this folder; wait until it ends or choose another --output")
        yield
    finally:
        os.close(opened)


@contextlib.contextmanager
def temporary_folder(folder: Path) -> Iterator[None]:
    """Make a folder and its parents, to be filled and renamed. If it is not renamed, it and the parents made for it are removed.

    It is locked, and empty: what a killed process left in it is removed.

    Raises:
        ModelsError: another process holds the lock, or the folder cannot be made.
    """
    made = [above for above in folder.parents if not above.exists()]
    with locked(folder):
        try:
            for left in folder.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            yield
        finally:
            try:
                _remove(folder, made)
            except KeyboardInterrupt:  # again: timeout -s INT sends two, and people press Ctrl-C more than once
                _remove(folder, made)
                raise


def _remove(folder: Path, made: Sequence[Path]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    # A parent that holds the renamed folder is not empty and stays.
    with contextlib.suppress(OSError):
        for above in made:
            # A removal that was interrupted may have come this far.
            if above.exists():
                above.rmdir()


def refuse_replacing(bundle: Path, *, force: bool) -> None:
    """Check that ``bundle`` can be made: that nothing is there, or a bundle that is to be replaced (``force``).

    Raises:
        ModelsError: it exists and is not to be replaced, or is not a bundle, or no such path can exist.
    """
    refuse_existing(bundle, force=force)
    if bundle.exists() and not (bundle / MANIFEST_FILE).is_file():
        raise ModelsError(
            f"{bundle}: exists and is not a bundle (it has no {MANIFEST_FILE}), so --overwrite does not replace it; choose another --output"
        )


@contextlib.contextmanager
def new_bundle(bundle: Path, *, force: bool) -> Iterator[Path]:
    """Make ``<bundle>.part``, to be filled, and rename it to ``bundle`` at the end. If anything fails, nothing is left or changed.

    Raises:
        ModelsError: ``bundle`` is not to be made, see ``refuse_replacing``, another process makes it, or the disk is full.
    """
    part = bundle.with_name(bundle.name + ".part")
    try:
        with temporary_folder(part):
            # Another process may have made it since the command began.
            refuse_replacing(bundle, force=force)
            yield part
            put_in_place(part, bundle)
    except Exception as error:  # each library that writes has its own exceptions
        if message := disk_full(error, f"{part} or {tempfile.gettempdir()}"):
            raise ModelsError(message) from error
        raise
