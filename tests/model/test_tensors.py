"""Rows to padded arrays."""

import numpy as np
import pytest

from sentiment.model.tensors import pad
from sentiment.model.tokenizer import Row

PAD = 9
ALL = ["input_ids", "attention_mask", "token_type_ids"]
LONG = Row([2, 5, 6, 3], None, False)
SHORT = Row([2, 3], None, False)
PAIR = Row([2, 5, 3, 6, 3], [0, 0, 0, 1, 1], False)


def test_shorter_rows_are_padded_on_the_right() -> None:
    feeds = pad([SHORT, LONG], ALL, PAD, left=False)

    assert feeds["input_ids"].tolist() == [[2, 3, PAD, PAD], [2, 5, 6, 3]]
    assert feeds["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]


def test_shorter_rows_are_padded_on_the_left_where_the_model_wants_it() -> None:
    feeds = pad([SHORT, LONG], ALL, PAD, left=True)

    assert feeds["input_ids"].tolist() == [[PAD, PAD, 2, 3], [2, 5, 6, 3]]
    assert feeds["attention_mask"].tolist() == [[0, 0, 1, 1], [1, 1, 1, 1]]


@pytest.mark.parametrize(("left", "types"), [(False, [0, 0, 0, 1, 1, 0]), (True, [0, 0, 0, 0, 1, 1])])
def test_type_ids_stand_where_their_tokens_stand_and_are_0_elsewhere(left: bool, types: list[int]) -> None:
    longer = Row([2, 5, 6, 7, 8, 3], None, False)

    assert pad([PAIR, longer], ALL, PAD, left)["token_type_ids"].tolist() == [types, [0] * 6]


@pytest.mark.parametrize("inputs", [ALL, ["input_ids", "attention_mask"], ["attention_mask", "input_ids"], ["input_ids"]])
def test_only_what_the_graph_asks_for_is_fed(inputs: list[str]) -> None:
    assert list(pad([LONG], inputs, PAD, left=False)) == inputs


def test_arrays_are_int64_rows_by_the_longest_row() -> None:
    for array in pad([SHORT, LONG, PAIR], ALL, PAD, left=False).values():
        assert array.dtype == np.int64
        assert array.shape == (3, 5)


def test_a_single_row_has_no_padding() -> None:
    feeds = pad([LONG], ALL, PAD, left=True)

    assert feeds["input_ids"].tolist() == [LONG.ids]
    assert feeds["attention_mask"].all()


def test_rows_are_not_changed() -> None:
    row = Row((2, 3), (0, 1), False)

    pad([row, LONG], ALL, PAD, left=False)

    assert row == Row((2, 3), (0, 1), False)
