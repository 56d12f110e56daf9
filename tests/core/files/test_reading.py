"""The reader of tables: every odd file gives its texts, the errors of its rows, or the place where reading stopped."""

import gzip
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from backports import zstd
from pyarrow import parquet

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


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (7, pa.timestamp("us"), "1970-01-01 00:00:00.000007"),
        (7000, pa.timestamp("ns"), "1970-01-01T00:00:00.000007000"),
        (7, pa.timestamp("ns", "Europe/Berlin"), "1970-01-01T00:00:00.000000007Z"),
        (1000, pa.timestamp("ms", "Nowhere/Here"), "1970-01-01T00:00:01.000Z"),
        (7, pa.time64("ns"), "00:00:00.000000007"),
        (7, pa.duration("ns"), "7"),
        (2**62, pa.duration("s"), str(2**62)),
        (-(10**17), pa.timestamp("ms"), "<value out of range: -100000000000000000>"),
        (2**22, pa.date32(), "13453-08-13"),
        ([(1, 2**60)], pa.map_(pa.int64(), pa.timestamp("us", "Mars/Phobos")), "[(1, '<value out of range: 1152921504606846976>')]"),
        ([7], pa.list_view(pa.timestamp("us")), "['1970-01-01 00:00:00.000007']"),
        ([10**15], pa.list_(pa.timestamp("ms", "UTC")), "['<value out of range: 1000000000000000>']"),
        ([timedelta(days=1)], pa.list_(pa.duration("s")), "[86400]"),
        (["good"], pa.list_(pa.string()), "['good']"),
        ([7], pa.list_(pa.timestamp("ns")), "['1970-01-01 00:00:00.000000007']"),
        ([2**60], pa.list_(pa.timestamp("us")), "['<value out of range: 1152921504606846976>']"),
        ({"at": 7}, pa.struct([("at", pa.timestamp("ns"))]), "{'at': '1970-01-01 00:00:00.000000007'}"),
    ],
)
def test_no_time_of_a_parquet_file_stops_the_reading_or_is_rounded(value: object, kind: pa.DataType, shown: str, tmp_path: Path) -> None:
    path = tmp_path / "times.parquet"
    parquet.write_table(pa.table({"text": ["good", "bad"], "at": pa.array([value, None], kind)}), path)

    with Table(path, Reading()) as table:
        found = [row.values["at"] for row in table]

    assert [str(found[0]), found[1]] == [shown, None]


def test_a_time_that_python_cannot_hold_changes_no_other_of_its_column(tmp_path: Path) -> None:
    path = tmp_path / "times.parquet"
    parquet.write_table(pa.table({"text": ["good", "bad"], "at": pa.array([10**15, 2**60], pa.timestamp("us", "Europe/Berlin"))}), path)

    with Table(path, Reading()) as table:
        found = [str(row.values["at"]) for row in table]

    assert found == ["2001-09-09 03:46:40+02:00", "<value out of range: 1152921504606846976>"]


def test_a_nested_text_that_is_not_utf_8_is_the_error_of_its_row(tmp_path: Path) -> None:
    raw = pa.array([[b"good"], [b"\xff"]], pa.list_(pa.binary()))
    nested = pa.ListArray.from_arrays(raw.offsets, raw.values.view(pa.string()))
    parquet.write_table(pa.table({"text": ["good", "bad"], "nested": nested}), tmp_path / "nested.parquet")

    texts, errors, stopped = read(tmp_path / "nested.parquet", Reading())

    assert (texts, errors, stopped) == (["good", None], ["row 2: is not UTF-8"], "")


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".zst", zstd.compress)])
def test_the_rows_before_the_damage_of_a_compressed_file_are_read(ending: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    rng = random.Random(0)
    # More than a block of zstd.
    lines = [f"{rng.getrandbits(4000):x}" for _ in range(400)]
    path = tmp_path / f"cut.txt{ending}"
    path.write_bytes(pack("\n".join(lines).encode())[:-2000])

    texts, errors, stopped = read(path, Reading())

    assert len(texts) > 100
    assert texts == lines[: len(texts)]
    assert (errors, "cannot be decompressed" in stopped) == ([], True)
