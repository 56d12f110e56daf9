"""What reports here add to ``sentiment_tools.reports.html_report``: tables with notes, embedded PNG pictures, and what is written where."""

import base64
import html
from dataclasses import dataclass
from pathlib import Path

from sentiment.files.output import is_standard_output, new_file, refuse_same_file, replaced
from sentiment.files.standard_streams import need_standard_output
from sentiment_models.errors import ModelsError
from sentiment_tools.reports.html_report import Section, paragraph, plain, table


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as ``html_report.table`` takes them. ``note`` explains how to read them; it may be empty."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    note: str = ""

    def text(self, title: str = "", *, note: bool = False) -> str:
        """Lay out for a terminal: a title, by default the table's own, the cells, and the note if it is asked for."""
        return f"{title or self.title}\n{plain(self.header, self.rows)}" + f"\n{self.note}" * note

    def section(self, above: str = "", below: str = "") -> Section:
        """Lay out as a section of a page: the note, the cells, and what stands above and below them as HTML."""
        return Section(self.title, (paragraph(self.note) if self.note else "") + above + table(self.header, self.rows) + below)


def picture(png: bytes, alt: str) -> str:
    """Return an ``img`` element with the PNG embedded; ``alt`` describes it in words."""
    return f'<img src="data:image/png;base64,{base64.b64encode(png).decode("ascii")}" alt="{html.escape(alt)}">'


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file that the user named, or that a run keeps, as ``sentiment.files.output`` does: whole or not at all.

    Raises:
        sentiment.files.errors.BadFile: the file cannot be written.
    """
    with new_file(path) as write:
        write(content)


def refuse_existing(path: Path, *, force: bool, what: str = "it") -> None:
    """Check that nothing is replaced unless it is to be. ``what``: would be replaced.

    Raises:
        ModelsError: the path exists, or no such path can.
    """
    try:
        exists = path.exists()
    except OSError as error:  # such as a name that is too long
        raise ModelsError(f"{path}: cannot be made: {error.strerror}") from error
    if exists and not force:
        raise ModelsError(f"{path}: exists; use --overwrite to replace {what}")


def make_folder(path: Path) -> None:
    """Make a folder and those above it, if they do not exist.

    Raises:
        ModelsError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelsError(f"{path}: cannot be made: {error.strerror}") from error


def check_writable(**paths: Path | None) -> None:
    """Check output paths, by the names of their options, before the work starts.

    Raises:
        ModelsError: a path's folder does not exist.
        sentiment.files.errors.BadFile: a path is a folder, or standard output, which is closed.
        sentiment.errors.BadSettings: two are the same file.
    """
    for path in filter(None, paths.values()):
        if is_standard_output(path):
            need_standard_output()
        elif (target := replaced(path)) and not target.parent.is_dir():
            raise ModelsError(f"{path}: the folder does not exist; create it first")
    refuse_same_file(**paths)
