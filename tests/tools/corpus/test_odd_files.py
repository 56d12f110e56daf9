"""Odd files as a corpus: each row is in its place with its text or an error, and what follows an open quote is one bad row."""

from pathlib import Path

import pytest

from sentiment.files.errors import BadFile
from sentiment.files.reading import Reading
from sentiment.files.rows import Unread
from sentiment_tools.corpus.parts import cut
from sentiment_tools.corpus.reading import read_part
from sentiment_tools.corpus.sources import find_sources
from tests.core.files.odd_files import ERROR, LINES, ODD_FILES, OddFile

# A column of Parquet must hold strings.
REFUSED = ("numbers for texts in a parquet", "bytes for texts in a parquet")
# The rows of a corpus are not looked at before they are scored, and one empty file does not stop the others.
OTHERWISE = {"a key that no row has": [ERROR], "an empty file": []}
# A corpus tells formats by the names of files.
FILES = [odd for odd in ODD_FILES if "format" not in odd.options]


@pytest.mark.parametrize("step", [1, 2**20])
@pytest.mark.parametrize("odd", FILES, ids=lambda odd: odd.name)
def test_an_odd_file_gives_its_texts_and_errors_in_order(odd: OddFile, step: int, tmp_path: Path) -> None:
    (tmp_path / f"odd{odd.ending}").write_bytes(odd.content)
    reading = Reading(**odd.options)  # type: ignore[arg-type]  # of several types
    quote = LINES in odd.stops
    if odd.name in OTHERWISE:
        assert texts_of(tmp_path, reading, step) == OTHERWISE[odd.name]
        return
    if (odd.stops and not quote) or odd.name in REFUSED:
        with pytest.raises(BadFile, match=f"odd{odd.ending}"):
            texts_of(tmp_path, reading, step)
        return

    assert texts_of(tmp_path, reading, step) == [*odd.texts, *([ERROR] if quote else [])]


def texts_of(folder: Path, reading: Reading, step: int) -> list[str | None]:
    parts = cut(find_sources(str(folder)), reading, {}, step)
    texts = [text for part in parts for chunk in read_part(part, reading, {}) for text in chunk.texts]
    return [ERROR if isinstance(text, Unread) else text for text in texts]
