"""Rows to arrays, padded and packed."""

import numpy as np
import pytest

from sentiment.model.tensors import pack, pad
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


def test_shorter_rows_are_padded_on_the_left_if_requested() -> None:
    feeds = pad([SHORT, LONG], ALL, PAD, left=True)

    assert feeds["input_ids"].tolist() == [[PAD, PAD, 2, 3], [2, 5, 6, 3]]
    assert feeds["attention_mask"].tolist() == [[0, 0, 1, 1], [1, 1, 1, 1]]


@pytest.mark.parametrize(("left", "types"), [(False, [0, 0, 0, 1, 1, 0]), (True, [0, 0, 0, 0, 1, 1])])
def test_type_ids_are_at_the_place_of_their_tokens_and_0_elsewhere(left: bool, types: list[int]) -> None:
    longer = Row([2, 5, 6, 7, 8, 3], None, False)

    assert pad([PAIR, longer], ALL, PAD, left)["token_type_ids"].tolist() == [types, [0] * 6]


@pytest.mark.parametrize("inputs", [ALL, ["input_ids", "attention_mask"], ["attention_mask", "input_ids"], ["input_ids"]])
def test_only_the_inputs_of_the_graph_are_fed(inputs: list[str]) -> None:
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


PACKED = ["input_ids", "position_ids", "token_type_ids", "token_offset", "cumulative_lengths"]


def test_packed_rows_are_concatenated_and_positions_restart_at_0() -> None:
    feeds = pack([LONG, SHORT, PAIR], PACKED, multiple=11)

    assert feeds["input_ids"].tolist() == [2, 5, 6, 3, 2, 3, 2, 5, 3, 6, 3]
    assert feeds["position_ids"].tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4]
    assert feeds["token_type_ids"].tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert feeds["cumulative_lengths"].tolist() == [0, 4, 6, 11]


def test_offsets_are_the_places_of_tokens_in_padded_rows_then_of_the_padding() -> None:
    # The example of the operator's documentation.
    lengths = [1, 2, 4]

    feeds = pack([Row([7] * length, None, False) for length in lengths], PACKED, multiple=1)

    assert feeds["token_offset"].tolist() == [[0, 4, 5, 8], [9, 10, 11, 1], [2, 3, 6, 7]]


def test_filler_tokens_are_rows_of_their_own_no_longer_than_the_longest() -> None:
    feeds = pack([LONG, SHORT], PACKED)

    assert feeds["cumulative_lengths"].tolist() == [0, 4, *range(6, 64, 4), 64]
    assert feeds["token_offset"].shape == (17, 4)
    assert not feeds["input_ids"][6:].any()
    assert not feeds["position_ids"][6:].any(), "a model may have fewer positions than tokens are filled up"


@pytest.mark.parametrize("seed", range(20))
def test_every_token_is_in_a_row_and_every_place_occurs_once(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = [Row([5] * length, None, False) for length in random.integers(1, 100, random.integers(1, 40)).tolist()]

    feeds = pack(rows, PACKED)

    count, longest = feeds["token_offset"].shape
    begins, tokens = feeds["cumulative_lengths"], len(feeds["input_ids"])
    offsets = feeds["token_offset"].ravel()
    assert tokens % 64 == 0
    assert tokens - sum(row.tokens for row in rows) < 64
    assert (begins[0], begins[-1], len(begins)) == (0, tokens, count + 1)
    assert np.diff(begins).max() <= longest == max(row.tokens for row in rows)
    assert sorted(offsets) == list(range(count * longest))
    assert offsets[:tokens].tolist() == [r * longest + p for r, length in enumerate(np.diff(begins)) for p in range(length)]
    assert all(array.dtype == np.int32 for array in feeds.values())


def test_batches_of_one_cell_have_the_same_shapes() -> None:
    rows_max, longest = 4, 16
    tokens = rows_max * longest
    batches = [[1], [16] * 4, [16, 1, 1], [3, 3, 3, 3], [15, 16, 15, 16]]

    shapes = {
        tuple(
            array.shape
            for array in pack(
                [Row([5] * length, None, False) for length in lengths], PACKED, tokens, longest_min=longest, rows_min=2 * rows_max
            ).values()
        )
        for lengths in batches
    }

    assert shapes == {((64,), (64,), (64,), (8, 16), (9,))}


def test_only_the_inputs_of_a_packed_graph_are_fed() -> None:
    assert list(pack([LONG], ["cumulative_lengths", "input_ids"])) == ["cumulative_lengths", "input_ids"]
