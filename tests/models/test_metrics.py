"""Metrics against cases worked out by hand, and the temperature against one that is known."""

import numpy as np
import pytest
import sklearn.metrics

from sentiment_models.evaluation.metrics import (
    abstain_threshold,
    calibration_error,
    class_scores,
    confusion,
    figures,
    fit_temperature,
    macro_f1,
    negative_log_likelihood,
    probabilities,
)


def test_macro_f1_is_the_mean_over_the_classes_that_occur() -> None:
    # Class 0: precision 2/3, recall 2/3. Class 1: precision 1/2, recall 1/2.
    assert macro_f1(np.array([[2, 1], [1, 1]])) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert macro_f1(np.diag([1, 1, 0, 0])).tolist() == 1
    assert macro_f1(np.zeros((2, 3, 3), np.int64)).tolist() == [0, 0]


def test_macro_f1_is_that_of_scikit_learn_also_where_classes_are_missing() -> None:
    seed = 7
    rng = np.random.default_rng(seed)
    for _ in range(50):
        labels, answers = (rng.choice(rng.choice(5, size=3), size=12) for _ in range(2))
        # Warns of classes that occur on one side only.
        wanted = sklearn.metrics.f1_score(labels, answers, average="macro", zero_division=0.0)

        assert macro_f1(confusion(answers, labels, 5)) == pytest.approx(wanted), f"seed {seed}: {labels}, {answers}"


def test_confusion_counts_by_the_right_label_first() -> None:
    counts = confusion(np.array([1, 1, 0, 2]), np.array([0, 0, 0, 1]), 3)

    assert counts.tolist() == [[1, 2, 0], [0, 0, 1], [0, 0, 0]]


def test_precision_is_of_the_answers_and_recall_of_the_right_labels() -> None:
    precision, recall, f1 = class_scores(np.array([[3, 1], [2, 4]]))

    assert precision == pytest.approx([3 / 5, 4 / 5])
    assert recall == pytest.approx([3 / 4, 4 / 6])
    assert f1 == pytest.approx([6 / 9, 8 / 11])


@pytest.mark.parametrize(
    ("confidence", "right", "bins", "error"),
    [
        # Bin of 0.95: accuracy 0.75, off by 0.20, 4 of 6 rows. Bin of 0.55: accuracy 0.5, off by 0.05, 2 of 6.
        ([0.95, 0.95, 0.95, 0.95, 0.55, 0.55], [1, 1, 1, 0, 1, 0], 10, 4 / 6 * 0.20 + 2 / 6 * 0.05),
        # One bin, from 0.6 to 0.8 inclusive: mean confidence 0.775, accuracy 0.5.
        ([0.8, 0.75], [1, 0], 5, 0.275),
        ([1.0, 1.0], [1, 1], 15, 0.0),
    ],
    ids=["weighted by rows", "upper edge included", "certain and correct"],
)
def test_calibration_error_is_that_worked_out_by_hand(confidence: list[float], right: list[int], bins: int, error: float) -> None:
    assert calibration_error(np.array(confidence), np.array(right, np.bool_), bins=bins) == pytest.approx(error)


def test_likelihood_of_even_logits_is_the_logarithm_of_the_classes_and_huge_logits_do_not_overflow() -> None:
    huge = np.array([[3e4, -3e4], [-3e4, 3e4]], np.float32)

    assert negative_log_likelihood(np.zeros((3, 4), np.float32), np.array([0, 1, 3])) == pytest.approx(np.log(4))
    assert probabilities(huge).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert negative_log_likelihood(huge, np.array([1, 1])) == pytest.approx(3e4)


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5])
def test_the_temperature_recovers_the_scale_that_logits_were_multiplied_by(scale: float) -> None:
    rng = np.random.default_rng(0)
    calibrated = rng.normal(0, 2, (10_000, 2))
    chances = probabilities(calibrated.astype(np.float32))
    labels = (rng.random(10_000) < chances[:, 1]).astype(np.int64)

    found = fit_temperature((calibrated * scale).astype(np.float32), labels)

    assert found == pytest.approx(scale, rel=0.05)


def test_after_the_fit_the_error_is_smaller_and_the_answers_are_the_same() -> None:
    rng = np.random.default_rng(1)
    calibrated = rng.normal(0, 2, (5_000, 3))
    labels = np.array([rng.choice(3, p=row) for row in probabilities(calibrated.astype(np.float32))])
    overconfident = (4 * calibrated).astype(np.float32)

    before = figures(overconfident, labels)
    after = figures(overconfident, labels, fit_temperature(overconfident, labels))

    assert after.ece < before.ece / 3
    assert (after.accuracy, after.macro_f1, after.rows) == (before.accuracy, before.macro_f1, before.rows)


def test_below_the_threshold_lie_1_5_percent_of_rows_and_it_is_at_most_0_75() -> None:
    assert abstain_threshold(np.linspace(0.5, 0.6, 101)) == pytest.approx(0.5015)
    assert abstain_threshold(np.full(10, 0.99)) == 0.75
