"""Expected accuracy is a mean of the last five minutes, in bounded memory, and its interval covers what chance does."""

import math
import random
from collections.abc import Sequence

import pytest

from sentiment.observability.expected_accuracy import SLOT_S, SLOTS, WINDOW_S, ExpectedAccuracy, interval


def test_it_is_the_mean_of_the_probabilities() -> None:
    window = ExpectedAccuracy()
    window.add(100.0, 1, 0.9, 0.09)
    window.add(103.0, 3, 1.8, 0.72)

    assert (window.texts(104.0), window.mean(104.0)) == (4, 0.675)


def test_without_texts_it_is_not_a_number() -> None:
    window = ExpectedAccuracy()
    assert (window.texts(5.0), math.isnan(window.mean(5.0))) == (0, True)
    window.add(5.0, 1, 0.9, 0.09)

    assert math.isnan(window.mean(5.0 + WINDOW_S))
    assert all(map(math.isnan, window.interval(5.0 + WINDOW_S)))


def test_it_holds_the_texts_of_the_window_give_or_take_a_slot() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, now, window, added = random.Random(seed), 1e6, ExpectedAccuracy(), list[float]()

    for _ in range(2000):
        now += rng.expovariate(0.2)
        window.add(now, 1, 0.8, 0.16)
        added.append(now)
        shown = window.texts(now)

        assert sum(at > now - WINDOW_S + SLOT_S for at in added) <= shown <= sum(at > now - WINDOW_S for at in added)
        assert len(window._slots) <= SLOTS
    assert math.isclose(window.mean(now), 0.8)


def variance(probabilities: Sequence[float]) -> float:
    return math.fsum(p * (1 - p) for p in probabilities)


def covered(probabilities: Sequence[float]) -> float:
    """The exact chance that the share of right answers lies within the interval: the Poisson binomial distribution by convolution."""
    chances = [1.0]
    for p in probabilities:
        chances = [wrong * (1 - p) + right * p for wrong, right in zip([*chances, 0.0], [0.0, *chances], strict=True)]
    texts = len(probabilities)
    low, high = interval(texts, math.fsum(probabilities), variance(probabilities))
    assert 0 <= low <= high <= 1
    return math.fsum(chance for right, chance in enumerate(chances) if low - 1e-12 <= right / texts <= high + 1e-12)


@pytest.mark.parametrize("texts", [1, 2, 3, 5, 8, 10, 20, 50, 100, 300])
def test_the_interval_covers_at_least_95_percent_whatever_the_probabilities(texts: int) -> None:
    equal = [[p] * texts for p in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0)]
    mixed = [[0.52] * (texts // k) + [0.99] * (texts - texts // k) for k in (2, 4, 10)]

    assert min(map(covered, equal + mixed)) >= 0.95


def test_it_is_not_wider_than_the_normal_one_by_more_than_a_text() -> None:
    low, high = interval(10_000, 9000.0, 900.0)

    assert (low, high) == pytest.approx((0.9 - 0.00588, 0.9 + 0.00588), abs=0.0001)
    # A probability of 1 that rounding has left just above it.
    assert interval(4, 4 * (1 + 3e-16), -4e-16) == (pytest.approx(0.875), 1.0)


def test_the_accuracy_of_a_calibrated_model_lies_in_the_interval_of_its_window() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, windows, within = random.Random(seed), 1000, 0

    for _ in range(windows):
        window, right, now = ExpectedAccuracy(), 0, 0.0
        for _ in range(80):
            p = 0.5 + 0.5 * rng.betavariate(4, 1)
            now += 1
            window.add(now, 1, p, p * (1 - p))
            right += rng.random() < p
        low, high = window.interval(now)
        within += low <= right / 80 <= high

    # About 96.5 % are covered; of 1,000 windows fewer than 925 lie within once in ten million seeds.
    assert within >= 925
