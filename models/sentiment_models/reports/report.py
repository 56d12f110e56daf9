"""What reports have beside ``sentiment.files.html_report``: PNG pictures, and files that are written whole or not at all."""

import base64
import html
from pathlib import Path

from sentiment_models.errors import ModelsError


def picture(png: bytes, alt: str) -> str:
    """Put a PNG into the page itself; ``alt`` says in words what it shows."""
    return f'<img src="data:image/png;base64,{base64.b64encode(png).decode("ascii")}" alt="{html.escape(alt)}">'


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        ModelsError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ModelsError(f"{path}: cannot be written: {error.strerror}") from error


def check_writable(*paths: Path | None) -> None:
    """Refuse, before the work, what could not be written after it.

    Raises:
        ModelsError: a path's folder is not there, or the path is a folder.
    """
    for path in filter(None, paths):
        if not path.parent.is_dir():
            raise ModelsError(f"{path}: its folder is not there; make it first")
        if path.is_dir():
            raise ModelsError(f"{path}: is a folder; wanted a file's name")
