"""The rows of data files, by the service's reader of tables. What cannot be used ends the run with file and line."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sentiment.files.errors import BadFile
from sentiment.files.reading import Reading, Table, format_of
from sentiment.files.rows import NOT_DECODED, TEXT, Row, Unread
from sentiment_models.errors import BadData

# 70 times the longest film review. A longer text is probably a file without line ends and would take gigabytes to tokenize.
TEXT_CHARACTERS_MAX = 2**20
# JSON is UTF-8, and Parquet and spreadsheets name their encoding themselves.
ENCODED = ("txt", "csv", "tsv")
NOT_UTF8 = "is not UTF-8; convert the file, as with iconv -f WINDOWS-1252 -t UTF-8"


@contextmanager
def table_of(path: Path, reading: Reading) -> Iterator[Table]:
    """The table of a file. ``reading.encoding`` is that of text without a byte order mark, except JSON.

    Raises:
        BadData: the file cannot be read.
        BadSettings: an extra is missing.
    """
    encoding = reading.encoding if format_of(path.name) in ENCODED else ""
    try:
        with Table(path, replace(reading, encoding=encoding)) as table:
            yield table
    except BadFile as error:
        raise BadData(str(error)) from error


def lines(path: Path, reading: Reading) -> Iterator[tuple[str, str]]:
    """The lines of a text file: where each stands in it, and the line.

    Raises:
        BadData: the file or a line cannot be read.
    """
    with table_of(path, replace(reading, format="txt")) as table:
        for row in table:
            yield row.place, text_of(row, TEXT, path)


def tabbed(path: Path, first: str, reading: Reading) -> Iterator[tuple[str, str, str]]:
    """The lines of a text file without a header, each cut at its first tab: where it stands, what is before the tab, and the text.

    Raises:
        BadData: the file cannot be read, or a line has no tab. ``first``: the name of what is before it.
    """
    for place, line in lines(path, reading):
        before, tab, text = line.partition("\t")
        if not tab:
            found = "the line has no tab" if line.strip() else "the line is empty; delete it"
            raise BadData(f"{path}: {place}: expected {first}<TAB>text, but {found}")
        yield place, before, text


def text_of(row: Row, column: str, path: Path) -> str:
    """The text of a row.

    Raises:
        BadData: it has none, or cannot be read.
    """
    text = row.text(column)
    if isinstance(text, Unread):
        reason = text.reason if format_of(path.name) in ENCODED else text.reason.replace(NOT_DECODED, NOT_UTF8)
        raise BadData(f"{path}: {reason}; correct the row or delete it")
    return text


def check_text(text: str, where: str) -> None:
    """Check that a text is fit for a tokenizer.

    Args:
        text: the text.
        where: file and line.

    Raises:
        BadData: the text is empty, too long, or holds a NUL or half of a surrogate pair.
    """
    if not text.strip():
        raise BadData(f"{where}: the text is empty; delete the row")
    if len(text) > TEXT_CHARACTERS_MAX:
        raise BadData(f"{where}: the text must have at most {TEXT_CHARACTERS_MAX} characters, got {len(text)}; cut it or delete the row")
    if "\0" in text:
        raise BadData(f"{where}: the text has a NUL character; delete it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadData(f"{where}: the text has half of a surrogate pair; write both halves or the character itself") from error
