"""Expected accuracy is a mean of the last five minutes, in bounded memory."""

import math
import random

from sentiment.observability.expected_accuracy import SLOT_S, SLOTS, WINDOW_S, ExpectedAccuracy


def test_it_is_the_mean_of_the_probabilities() -> None:
    window = ExpectedAccuracy()
    window.add(100.0, 1, 0.9)
    window.add(103.0, 3, 1.8)

    assert (window.texts(104.0), window.mean(104.0)) == (4, 0.675)


def test_without_texts_it_is_not_a_number() -> None:
    window = ExpectedAccuracy()
    assert (window.texts(5.0), math.isnan(window.mean(5.0))) == (0, True)
    window.add(5.0, 1, 0.9)

    assert math.isnan(window.mean(5.0 + WINDOW_S))


def test_it_holds_the_texts_of_the_window_give_or_take_a_slot() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, now, window, added = random.Random(seed), 1e6, ExpectedAccuracy(), list[float]()

    for _ in range(2000):
        now += rng.expovariate(0.2)
        window.add(now, 1, 0.8)
        added.append(now)
        shown = window.texts(now)

        assert sum(at > now - WINDOW_S + SLOT_S for at in added) <= shown <= sum(at > now - WINDOW_S for at in added)
        assert len(window._slots) <= SLOTS
    assert math.isclose(window.mean(now), 0.8)
