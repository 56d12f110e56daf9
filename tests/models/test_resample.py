"""Intervals and tests against cases whose answer is known, with their seeds."""

import math

import numpy as np
import pytest

from sentiment_models.evaluation.metrics import calibration_error, reliability_bins
from sentiment_models.evaluation.resample import accuracy_and_f1_intervals, calibration_test, difference_interval, mcnemar


def stated(rows: int, seed: int) -> np.ndarray:
    """Confident, calibrated-looking probabilities of two labels."""
    confidence = np.random.default_rng(seed).beta(8, 1, rows) / 2 + 0.5
    return np.stack([confidence, 1 - confidence], axis=1)


def drawn(probabilities: np.ndarray, seed: int) -> np.ndarray:
    """Draw labels by the probabilities, so that these are calibrated."""
    return (np.random.default_rng(seed).random(len(probabilities)) > probabilities[:, 0]).astype(np.int64)


def test_the_interval_of_an_accuracy_is_that_of_the_binomial() -> None:
    labels = np.zeros(1000, np.int64)
    answers = (np.arange(1000) >= 900).astype(np.int64)

    (low, high), _ = accuracy_and_f1_intervals(answers, labels, 2)

    half = 1.96 * math.sqrt(0.9 * 0.1 / 1000)
    assert (low, high) == pytest.approx((0.9 - half, 0.9 + half), abs=0.003)


def test_the_interval_of_macro_f1_holds_it_and_is_the_same_for_the_same_seed() -> None:
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 5, 400)
    answers = np.where(rng.random(400) < 0.7, labels, rng.integers(0, 5, 400))

    _, (low, high) = accuracy_and_f1_intervals(answers, labels, 5, seed=1)

    assert low < 0.76 < high
    assert high - low < 0.12
    assert accuracy_and_f1_intervals(answers, labels, 5, seed=1)[1] == (low, high)
    assert accuracy_and_f1_intervals(answers, labels, 5, seed=2)[1] != (low, high)


def test_p_values_of_calibrated_models_are_uniform() -> None:
    p_values = []
    for seed in range(40):
        probabilities = stated(300, seed)
        p_values.append(calibration_test(probabilities, drawn(probabilities, seed + 1000), seed).p_value)

    assert np.mean(p_values) == pytest.approx(0.5, abs=0.15)
    assert sum(p < 0.1 for p in p_values) <= 10


def test_an_overconfident_model_is_distinguished_from_a_calibrated_one() -> None:
    probabilities = stated(900, 3)
    labels = drawn(probabilities, 4)
    labels[:60] = 1

    found = calibration_test(probabilities, labels)

    error = calibration_error(probabilities.max(axis=1), labels == 0)
    assert found.p_value < 0.01
    assert error > found.ece_of_calibrated[1]


def test_calibrated_models_have_a_calibration_error_by_chance_alone() -> None:
    low, high = calibration_test(stated(872, 0), np.zeros(872, np.int64)).ece_of_calibrated

    assert 0.002 < low < high < 0.04


@pytest.mark.parametrize(
    ("first", "second", "p_value"),
    [(0, 0, 1.0), (5, 5, 1.0), (0, 5, 2 / 32), (1, 9, 22 / 1024), (9, 1, 22 / 1024), (3000, 3000, 1.0)],
)
def test_mcnemar_is_exact(first: int, second: int, p_value: float) -> None:
    assert mcnemar(first, second) == pytest.approx(p_value)


def test_mcnemar_works_for_thousands_of_flips() -> None:
    assert 0 < mcnemar(1000, 1400) < 1e-10


def test_the_interval_of_a_difference_is_paired() -> None:
    low, high = difference_interval(10, 30, 1000)

    half = 1.96 * math.sqrt((40 - 20**2 / 1000) / 1000**2)
    assert (low, high) == pytest.approx((0.02 - half, 0.02 + half), abs=0.002)


def test_intervals_have_width_even_if_no_row_differs() -> None:
    """With 60 correct of 60, the error rate may still be 5 %: 0.95^60 is 0.05."""
    labels = np.zeros(60, np.int64)

    (low, high), _ = accuracy_and_f1_intervals(labels, labels, 2)
    (none, some), _ = accuracy_and_f1_intervals(labels + 1, labels, 2)

    assert (low, high) == pytest.approx((0.9398, 1.0), abs=1e-4)
    assert (none, some) == pytest.approx((0.0, 1 - 0.9398), abs=1e-4)
    assert difference_interval(0, 0, 60) == pytest.approx((-0.05, 0.05))
    assert difference_interval(0, 0, 1) == (-1.0, 1.0)


def test_bins_hold_all_rows_and_give_the_calibration_error() -> None:
    probabilities = stated(500, 6)
    confidence, right = probabilities.max(axis=1), drawn(probabilities, 7) == 0

    bins = reliability_bins(confidence, right)

    assert sum(one.rows for one in bins) == 500
    assert all(one.low < one.confidence <= one.high for one in bins)
    error = sum(one.rows * abs(one.accuracy - one.confidence) for one in bins) / 500
    assert error == pytest.approx(calibration_error(confidence, right))
