"""Paired bootstrap intervals, against what is known of means."""

import numpy as np
import pytest

from sentiment_models.explanations.intervals import paired_intervals


def test_an_interval_is_about_two_standard_errors_each_way() -> None:
    values = np.random.default_rng(1).normal(0.3, 1, size=(400, 1))

    (found,) = paired_intervals(values, seed=2)

    assert found is not None
    error = values.std() / 20
    assert found.mean == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - 1.96 * error, abs=0.1 * error)
    assert found.high == pytest.approx(values.mean() + 1.96 * error, abs=0.1 * error)
    assert found.texts == 400


def test_columns_share_their_resamples() -> None:
    values = np.random.default_rng(1).normal(size=(50, 1))

    first, second = paired_intervals(np.hstack([values, values + 1]), seed=3)

    assert first
    assert second
    assert (second.low, second.high) == pytest.approx((first.low + 1, first.high + 1))


def test_texts_without_a_value_are_left_out_of_their_column_alone() -> None:
    values = np.random.default_rng(1).normal(5, 1, size=(60, 2))
    values[20:, 1] = np.nan
    both, lone = paired_intervals(values, seed=3), paired_intervals(np.full((3, 1), np.nan), seed=3)

    assert both[0]
    assert both[1]
    assert (both[0].texts, both[1].texts) == (60, 20)
    assert both[1].mean == pytest.approx(values[:20, 1].mean())
    # Of 20 texts: a standard error of about 0.22.
    assert 4.3 < both[1].low < both[1].mean < both[1].high < 5.9
    assert lone == [None]


def test_a_value_always_above_0_is_significant_and_a_coin_is_not() -> None:
    coin = np.where(np.arange(100) % 2, 1.0, -1.0)

    clear, unclear = paired_intervals(np.stack([np.abs(coin) + 0.1 * coin, coin], axis=1), seed=1)

    assert clear
    assert unclear
    assert (clear.shown, unclear.shown) == (1, 0)


def test_of_fewer_than_20_texts_nothing_is_shown() -> None:
    """By chance alone all of one text are above 0 in half of the studies, all of three in an eighth."""
    few, enough = (paired_intervals(np.full((texts, 1), 0.5), seed=1)[0] for texts in (19, 20))

    assert few
    assert enough
    assert (few.low, few.shown, enough.shown) == (0.5, 0, 1)


@pytest.mark.parametrize("texts", [1, 3, 10, 20, 60])
def test_a_difference_made_by_chance_is_shown_to_be_above_0_in_at_most_5_percent_of_studies(texts: int) -> None:
    differences = np.random.default_rng(texts).normal(size=(texts, 2000))

    above = sum(one is not None and one.shown > 0 for one in paired_intervals(differences, seed=1))

    # With an error of 5 % of 2,000 studies it is more than 150 with a chance of 1e-6.
    assert above <= 150
