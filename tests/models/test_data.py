"""Reading labelled files, batching."""

import gzip
import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentiment_models.data.labelled import Example, LabelledReading, Source, batches, cut_sorted, read_examples
from sentiment_models.errors import BadData
from tests.models.tiny_bert import LABELS


def _read(path: Path, content: bytes) -> list[Example]:
    path.write_bytes(content)
    return list(read_examples(path, LABELS))


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


@given(st.lists(st.integers(1, 300)), st.integers(1, 20), st.integers(1, 600), st.randoms(use_true_random=False))
def test_batches_hold_every_row_once_and_keep_both_limits(lengths: list[int], rows_max: int, tokens_max: int, rng: random.Random) -> None:
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    upwards, downwards = (list(cut_sorted(its, lengths, rows_max, tokens_max)) for its in (order, order[::-1]))

    assert [[index for group in groups for index in group] for groups in (upwards, downwards)] == [order, order[::-1]]
    for groups in (upwards, downwards, batches(lengths, rows_max, tokens_max, rng)):
        assert sorted(index for group in groups for index in group) == sorted(order)
        assert all(1 <= len(group) <= rows_max for group in groups)
        assert all(len(group) == 1 or len(group) * max(lengths[index] for index in group) <= tokens_max for group in groups)
    # No batch had room for the first row of the next.
    for groups in (upwards, downwards):
        for one, other in itertools.pairwise(groups):
            longest = max(lengths[index] for index in (*one, other[0]))
            assert len(one) == rows_max or (len(one) + 1) * longest > tokens_max


def test_batches_have_similar_lengths_and_random_order() -> None:
    lengths = [length for length in range(2, 130) for _ in range(8)]

    groups = batches(lengths, rows_max=16, tokens_max=4096, rng=random.Random(0))

    padded = sum(len(group) * max(lengths[index] for index in group) for group in groups)
    assert padded < 1.05 * sum(lengths)
    longest = [max(lengths[index] for index in group) for group in groups]
    assert longest != sorted(longest)


def test_a_second_text_that_is_asked_for_is_in_every_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"label": 1, "text": "a", "reply": "b"}\n{"label": 0, "text": "c", "reply": null}\n')

    with pytest.raises(BadData, match=r"a\.jsonl: line 2: 'reply' is missing"):
        list(read_examples(tmp_path / "a.jsonl", LABELS, reading=LabelledReading(pair="reply")))
