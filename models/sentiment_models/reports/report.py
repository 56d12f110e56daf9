"""Parts of reports that ``sentiment.files.html_report`` lacks: embedded PNG pictures and atomic writing of files."""

import base64
import html
from pathlib import Path

from sentiment_models.errors import ModelsError


def picture(png: bytes, alt: str) -> str:
    """Return an ``img`` element with the PNG embedded; ``alt`` describes it in words."""
    return f'<img src="data:image/png;base64,{base64.b64encode(png).decode("ascii")}" alt="{html.escape(alt)}">'


def write_text(path: Path, text: str) -> None:
    """Write a file atomically.

    Raises:
        ModelsError: the file cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ModelsError(f"{path}: cannot be written: {error.strerror}") from error


def check_writable(*paths: Path | None) -> None:
    """Check output paths before the work starts.

    Raises:
        ModelsError: a path's folder does not exist, or the path is a folder.
    """
    for path in filter(None, paths):
        if not path.parent.is_dir():
            raise ModelsError(f"{path}: the folder does not exist; create it first")
        if path.is_dir():
            raise ModelsError(f"{path}: is a folder; expected a file name")
