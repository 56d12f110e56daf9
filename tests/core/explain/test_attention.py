"""Attention maps of one text, aggregated over heads, words or layers."""

import numpy as np
import numpy.typing as npt
import pytest

from sentiment.explain.methods.attention import cls_rows, head_mean, rollout, rollout_gradient, rollout_value_norms, to_words, units
from sentiment.model.words import Encoded, Token, Word

Floats = npt.NDArray[np.float32]
LAYERS, HEADS, TOKENS = 4, 3, 9
SHAPE = (LAYERS, HEADS, TOKENS, TOKENS)


def attention_of(seed: int, shape: tuple[int, ...] = SHAPE) -> Floats:
    """Softmaxed noise: sharp rows and broad ones."""
    rng = np.random.default_rng(seed)
    weights = np.exp(rng.normal(size=shape) * rng.uniform(0.1, 4, (*shape[:-1], 1)))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def encoded_of(*lengths: int) -> Encoded:
    """A text of words with the given numbers of pieces; 0 is a special token."""
    tokens: list[Token] = []
    words: list[Word] = []
    for length in lengths:
        first = len(tokens)
        if length:
            words.append(Word(first, first + length, first, first + length, pair=False))
        word = len(words) - 1 if length else -1
        tokens += [
            Token("x", place, place + 1, word, special=not length, unknown=False, pair=False)
            for place in range(first, first + max(length, 1))
        ]
    return Encoded(tuple(range(len(tokens))), None, tuple(tokens), tuple(words), truncated=False)


# [CLS] one.two.three four [SEP] five.six [SEP]: nine tokens, six units.
TEXT = encoded_of(0, 3, 1, 0, 2, 0)
GROUPS = [[0], [1, 2, 3], [4], [5], [6, 7], [8]]


def test_head_mean_averages_each_weight_over_heads() -> None:
    attention = attention_of(1)

    found = head_mean(attention)

    assert found.shape == (LAYERS, TOKENS, TOKENS)
    assert found.dtype == np.float32
    for layer in range(LAYERS):
        assert found[layer] == pytest.approx(sum(attention[layer, head].astype(float) for head in range(HEADS)) / HEADS, abs=1e-7)


def test_cls_rows_are_the_rows_of_the_first_token() -> None:
    attention = attention_of(2)

    found = cls_rows(attention)

    assert found.shape == (LAYERS, HEADS, TOKENS)
    assert found[3, 1].tolist() == [attention[3, 1, 0, column] for column in range(TOKENS)]


def test_cls_rows_do_not_keep_the_maps_in_memory() -> None:
    attention = attention_of(3)

    assert not np.shares_memory(cls_rows(attention), attention)


def test_units_are_words_and_special_tokens_in_text_order() -> None:
    assert [list(unit) for unit in units(TEXT)] == GROUPS


def test_word_maps_sum_over_read_pieces_and_average_over_reading_pieces() -> None:
    attention = attention_of(5)

    found = to_words(attention, TEXT)

    assert found.shape == (LAYERS, HEADS, 6, 6)
    assert found.dtype == np.float32
    for row, readers in enumerate(GROUPS):
        for column, read in enumerate(GROUPS):
            expected = sum(float(attention[2, 1, i, j]) for i in readers for j in read) / len(readers)
            assert found[2, 1, row, column] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("shape", [(TOKENS, TOKENS), (LAYERS, TOKENS, TOKENS), SHAPE])
def test_rows_of_word_maps_sum_to_1_for_any_number_of_maps(shape: tuple[int, ...]) -> None:
    found = to_words(attention_of(6, shape), TEXT)

    assert found.shape == (*shape[:-2], 6, 6)
    assert found.sum(axis=-1) == pytest.approx(np.ones(found.shape[:-1]), abs=1e-6)


def test_a_text_without_words_has_a_unit_for_each_special_token() -> None:
    attention = attention_of(8, (1, 1, 2, 2))

    assert np.array_equal(to_words(attention, encoded_of(0, 0)), attention)


def path_weights(mixed: list[npt.NDArray[np.float64]], last: int, first: int) -> float:
    """The sum over all ways from a token's last state down to an embedding, of the product of the weights on the way."""
    if not mixed:
        return float(last == first)
    return sum(weight * path_weights(mixed[:-1], read, first) for read, weight in enumerate(mixed[-1][last]) if weight)


def test_rollout_is_the_sum_over_all_paths_through_the_layers() -> None:
    attention = attention_of(10, (3, 2, 4, 4))
    mixed = [0.5 * layer.mean(axis=0, dtype=np.float64) + 0.5 * np.eye(4) for layer in attention]

    found = rollout(attention)

    assert found == pytest.approx(np.array([[path_weights(mixed, last, first) for first in range(4)] for last in range(4)]), abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_both_rollouts_sum_to_1(seed: int) -> None:
    attention = attention_of(seed, (12, 4, 40, 40))
    norms = np.random.default_rng(seed).exponential(3.0, (12, 4, 40)).astype(np.float32)

    assert rollout(attention).sum(axis=1) == pytest.approx(np.ones(40), abs=1e-5)
    assert rollout_value_norms(attention, norms).sum(axis=1) == pytest.approx(np.ones(40), abs=1e-5)


def test_value_norms_weight_tokens_and_heads() -> None:
    attention = attention_of(13, (1, 2, 5, 5))
    norms = np.random.default_rng(13).exponential(1.0, (1, 2, 5)).astype(np.float32)

    found = rollout_value_norms(attention, norms)

    for row in range(5):
        weighed = [sum(float(attention[0, head, row, read]) * float(norms[0, head, read]) for head in range(2)) for read in range(5)]
        expected = [weight / sum(weighed) / 2 + (read == row) / 2 for read, weight in enumerate(weighed)]
        assert found[row] == pytest.approx(np.array(expected), abs=1e-6)


def test_a_token_with_zero_value_norms_gets_no_rollout_from_others() -> None:
    attention = attention_of(14)
    norms = np.ones(SHAPE[:3], np.float32)
    norms[:, :, 5] = 0

    found = rollout_value_norms(attention, norms)

    others = [row for row in range(TOKENS) if row != 5]
    assert found[others, 5].tolist() == [0] * 8
    assert rollout(attention)[others, 5].min() > 0


def test_zero_value_norms_leave_only_the_residual_path() -> None:
    found = rollout_value_norms(attention_of(15), np.zeros(SHAPE[:3], np.float32))

    assert np.array_equal(found, np.eye(TOKENS))


def test_gradient_rollout_follows_its_paper_without_the_identity() -> None:
    attention = attention_of(16)
    gradients = np.random.default_rng(16).normal(size=SHAPE).astype(np.float32)
    relevance = np.eye(TOKENS)
    for layer in range(LAYERS):
        positive = np.clip(attention[layer].astype(float) * gradients[layer], 0, None).mean(axis=0)
        relevance = relevance + positive @ relevance

    found = rollout_gradient(attention, gradients)

    assert found.dtype == np.float32
    assert found == pytest.approx(relevance - np.eye(TOKENS), rel=1e-5)
    assert found.min() >= 0


def test_gradient_rollout_depends_on_the_label() -> None:
    attention = attention_of(17)
    gradients = np.random.default_rng(17).normal(size=SHAPE).astype(np.float32)

    positive, negative = rollout_gradient(attention, gradients), rollout_gradient(attention, -gradients)

    assert np.corrcoef(positive[0], negative[0])[0, 1] < 0.9
    assert rollout_gradient(attention, -np.abs(gradients)).max() == 0


def test_small_relevances_are_not_lost_beside_the_identity() -> None:
    attention = attention_of(18)
    gradients = np.full(SHAPE, 1e-9, np.float32)

    found = rollout_gradient(attention, gradients)

    assert found * 1e9 == pytest.approx(attention.mean(axis=1).sum(axis=0), rel=1e-5)


def test_values_that_are_not_finite_stay_visible() -> None:
    attention = attention_of(20)
    attention[1, 1, 4, 4] = np.nan

    assert np.isnan(rollout(attention)).any()
    assert np.isnan(rollout_gradient(attention, -np.ones(SHAPE, np.float32))).any()
    assert np.isnan(to_words(attention, TEXT)).any()
