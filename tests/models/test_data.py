"""Reading labelled files, batching."""

import gzip
import random
from pathlib import Path

import pytest

from sentiment_models.data.labelled import Example, Source, batches, cut_sorted, read_examples
from sentiment_models.errors import BadData
from tests.models.tiny_bert import LABELS


def _read(path: Path, content: bytes) -> list[Example]:
    path.write_bytes(content)
    return list(read_examples(path, LABELS))


@pytest.mark.parametrize(
    ("name", "content", "where", "what"),
    [
        ("a.tsv", b"1\tgood\n7\tbad\n", ": line 2:", "label must be 0 to 1 or one of negative, positive, got '7'"),
        ("a.tsv", b"1\tgood\n-1\tbad\n", ": line 2:", "got '-1'"),
        (
            "a.tsv",
            b"1\tgood\nnegative\tbad\n",
            ": line 2:",
            "label is a name, but line 1 has a number; use names or numbers throughout",
        ),
        ("a.tsv", b"1\tgood\n0 bad\n", ": line 2:", "no tab"),
        ("a.tsv", b"1\tgood\n0\t  \n", ": line 2:", "the text is empty"),
        ("a.tsv", b"", ":", "the file has no example"),
        ("a.csv", b"label,body\n1,good\n", ":1:", "no column 'text'; the header has label, body"),
        ("a.jsonl", b'{"label": 1, "text": "good"}\n{"label": 1}\n', ": line 2:", "has no 'text'"),
        ("a.jsonl", b'{"label": 1, "text": "good"}\n[1]\n', ": line 2:", "expected a JSON object, got an array"),
        ("a.txt", b"good\n", ":", "labelled texts must be in a file of .csv, .tsv, "),
    ],
)
def test_an_error_in_a_file_names_file_line_and_what_is_expected(tmp_path: Path, name: str, content: bytes, where: str, what: str) -> None:
    path = tmp_path / name

    with pytest.raises(BadData) as caught:
        _read(path, content)

    message = str(caught.value)
    assert message.startswith(str(path))
    assert where in message
    assert what in message


def test_a_missing_file_is_bad_data(tmp_path: Path) -> None:
    with pytest.raises(BadData) as caught:
        list(read_examples(tmp_path / "none.tsv", LABELS))

    assert str(caught.value) == f"{tmp_path / 'none.tsv'}: cannot be read: No such file or directory"


def test_every_kind_of_file_gives_the_same_examples(tmp_path: Path) -> None:
    wanted = [Example('a "quoted", text', 1), Example("naïve 😍", 0)]

    tsv = _read(tmp_path / "a.tsv", 'positive\ta "quoted", text\nnegative\tnaïve 😍\n'.encode())
    csv = _read(tmp_path / "a.csv", 'text,label\n"a ""quoted"", text",1\nnaïve 😍,0\n'.encode())
    jsonl = _read(
        tmp_path / "a.jsonl.gz",
        gzip.compress('{"label":1,"text":"a \\"quoted\\", text"}\n{"label":"0","text":"naïve 😍"}\n'.encode()),
    )

    assert tsv == csv == jsonl == wanted


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    text = "one\u2028two\rthree\u0085four"

    assert _read(tmp_path / "a.tsv", f"1\t{text}\n0\tx\n".encode()) == [Example(text, 1), Example("x", 0)]


def test_times_is_parsed_from_the_end_and_limited() -> None:
    assert Source.parse("dir/a.tsv:3") == Source(Path("dir/a.tsv"), 3)
    assert Source.parse("dir/a.tsv:0.25") == Source(Path("dir/a.tsv"), 0.25)
    assert Source.parse("c:/a.tsv") == Source(Path("c:/a.tsv"))

    with pytest.raises(BadData, match="TIMES must be over 0 and at most 100"):
        Source.parse("a.tsv:0")


@pytest.mark.parametrize("seed", range(5))
def test_batches_hold_every_row_once_and_keep_both_limits(seed: int) -> None:
    rng = random.Random(seed)
    lengths = [rng.randint(2, 300) for _ in range(1000)]

    groups = batches(lengths, rows_max=16, tokens_max=512, rng=rng)

    assert sorted(index for group in groups for index in group) == list(range(1000))
    assert all(len(group) <= 16 for group in groups)
    assert all(len(group) == 1 or len(group) * max(lengths[index] for index in group) <= 512 for group in groups)


def test_batches_have_similar_lengths_and_random_order() -> None:
    lengths = [length for length in range(2, 130) for _ in range(8)]

    groups = batches(lengths, rows_max=16, tokens_max=4096, rng=random.Random(0))

    padded = sum(len(group) * max(lengths[index] for index in group) for group in groups)
    assert padded < 1.05 * sum(lengths)
    longest = [max(lengths[index] for index in group) for group in groups]
    assert longest != sorted(longest)


@pytest.mark.parametrize("longest_first", [False, True])
def test_rows_sorted_either_way_fill_batches_within_both_limits(longest_first: bool) -> None:
    lengths = [3, 200, 5, 30, 31, 3, 3, 3, 90, 4]
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=longest_first)

    groups = list(cut_sorted(order, lengths, rows_max=4, tokens_max=100))

    assert [index for group in groups for index in group] == order
    assert all(len(group) <= 4 and (len(group) == 1 or len(group) * max(lengths[i] for i in group) <= 100) for group in groups)
    assert len(groups) == 5
    assert list(cut_sorted([], [], 4, 100)) == []
