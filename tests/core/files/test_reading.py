"""The reader of tables: every odd file gives its texts, the errors of its rows, or the place where reading stopped."""

from pathlib import Path

import pytest

from sentiment.files.errors import BadFile
from sentiment.files.reading import Reading, Table
from sentiment.files.rows import Unread
from tests.core.files.odd_files import ODD_FILES, OddFile


def read(path: Path, reading: Reading) -> tuple[list[str | None], list[str], str]:
    """The texts of a file (None for an error), the errors, and why the reading stopped (empty if it did not)."""
    texts: list[str | None] = []
    errors: list[str] = []
    try:
        with Table(path, reading) as table:
            key = table.key(reading.column)
            for row in table:
                text = row.text(key)
                texts.append(None if isinstance(text, Unread) else text)
                errors += [text.reason] if isinstance(text, Unread) else []
    except BadFile as error:
        return texts, errors, str(error)
    return texts, errors, ""


@pytest.mark.parametrize("odd", ODD_FILES, ids=lambda odd: odd.name)
def test_an_odd_file_gives_its_texts_and_errors_in_order(odd: OddFile, tmp_path: Path) -> None:
    path = tmp_path / f"odd{odd.ending}"
    path.write_bytes(odd.content)

    texts, errors, stopped = read(path, Reading(**odd.options))  # type: ignore[arg-type]  # of several types

    assert texts == odd.texts
    assert odd.stops in stopped
    assert bool(odd.stops) == bool(stopped)
    assert all(place in error for place, error in zip(odd.places, errors, strict=True))
    assert not stopped or stopped.startswith(str(path))
