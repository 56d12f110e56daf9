"""Distances of attention and answers against numbers worked out by hand."""

import math

import numpy as np
import pytest

from sentiment_models.explanations.distances import agreement, compared, divergence, kl_divergence, output_change


def test_divergence_is_jensen_shannons_in_nats() -> None:
    apart = divergence(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))
    half = divergence(np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]]))

    assert apart == pytest.approx(math.log(2))
    # Half of KL to (3/4, 1/4) from each.
    assert half == pytest.approx(((0.5 * math.log(2 / 3) + 0.5 * math.log(2)) + math.log(4 / 3)) / 2)
    assert divergence(np.array([[0.2, 0.8]]), np.array([[0.2, 0.8]])) == 0


def test_divergence_is_a_mean_over_texts_and_blind_to_padding() -> None:
    first, second = np.array([[1.0, 0.0], [0.3, 0.7]]), np.array([[0.0, 1.0, 0.0], [0.3, 0.7, 0.0]])

    assert divergence(first, second) == pytest.approx(math.log(2) / 2)
    assert divergence(second, first) == divergence(first, second)


def test_kl_divergence_is_of_the_first_from_the_second() -> None:
    first, second = np.array([[0.5, 0.5]]), np.array([[0.25, 0.75]])

    assert kl_divergence(first, second) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert kl_divergence(second, first) == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))


def test_output_change_is_total_variation() -> None:
    first, second = np.array([[0.9, 0.1], [0.6, 0.4]]), np.array([[0.7, 0.3], [0.4, 0.6]])

    assert output_change(first, second) == pytest.approx(0.2)
    assert agreement(first, second) == 0.5


def test_an_accuracys_interval_is_that_of_a_share() -> None:
    right = np.arange(500)[None, :] % 5 > 0

    accuracies, differences = compared({"one": right}, (), seed=3)
    found = accuracies["one"]

    assert (found.mean, found.seeds, differences) == (0.8, (0.8,), [])
    half = 1.96 * math.sqrt(0.8 * 0.2 / 500)
    assert (found.low, found.high) == pytest.approx((0.8 - half, 0.8 + half), abs=0.006)


def test_differences_are_paired_by_text() -> None:
    hard = np.arange(400) % 2 == 0
    first = np.array([hard, hard])
    better = first | (np.arange(400) % 20 == 1)

    accuracies, (same, gain) = compared({"first": first, "better": better}, (("first", "first"), ("better", "first")), seed=1)

    assert (same.mean, same.low, same.high, same.shown) == (0, 0, 0, 0)
    # Unpaired, a gain of 20 texts of 400 is within chance: the interval of each accuracy alone is 0.1 wide.
    assert gain.mean == pytest.approx(0.05)
    assert gain.shown == 1
    assert gain.high - gain.low < 0.05
    assert accuracies["first"].seeds == (0.5, 0.5)
    assert accuracies["first"].high - accuracies["first"].low > 0.09
