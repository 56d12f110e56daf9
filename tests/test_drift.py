"""Drift: the index is right, chance alone exceeds its threshold as often as stated, and the window has the last texts."""

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest

from sentiment.observability.drift import (
    FALSE_ALARMS,
    SLOT_TEXTS,
    TEXTS_MIN,
    WINDOW_TEXTS,
    Drift,
    Signal,
    chance_index,
    chi_square_quantile,
    chi_square_tail,
    stability_index,
    values_of,
)

# Shares of bins: equal ones, ones with a tail, and a rare one, as of score, tokens and unknown tokens.
SHAPES = ([0.1] * 10, [0.01, 0.14, 0.3, 0.3, 0.2, 0.048, 0.002, 0], [0.98, 0.015, 0.004, 0.001, 0])


@pytest.mark.parametrize(
    ("tail", "freedom", "value"),
    # NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.4.
    [(0.05, 1, 3.841), (0.05, 9, 16.919), (0.001, 10, 29.588), (0.01, 4, 13.277), (0.1, 2, 4.605), (0.05, 99, 123.225)],
)
def test_quantiles_of_chi_square_are_those_of_the_tables(tail: float, freedom: int, value: float) -> None:
    assert chi_square_quantile(tail, freedom) == pytest.approx(value, abs=6e-4)
    assert chi_square_tail(chi_square_quantile(tail, freedom), freedom) == pytest.approx(tail)


@pytest.mark.parametrize("freedom", [1, 2, 7, 400])
def test_tails_of_chi_square_are_those_of_its_samples(freedom: int) -> None:
    samples = np.random.default_rng(freedom).chisquare(freedom, 200_000)

    for share in (0.5, 0.1, 0.01):
        assert chi_square_tail(float(np.quantile(samples, 1 - share)), freedom) == pytest.approx(share, rel=0.1)


def test_the_index_is_the_sum_over_bins() -> None:
    many = 10**9
    by_hand = (0.1 - 0.2) * math.log(0.1 / 0.2) + (0.7 - 0.6) * math.log(0.7 / 0.6)

    assert stability_index([0.1 * many, 0.2 * many, 0.7 * many], [0.2 * many, 0.2 * many, 0.6 * many]) == pytest.approx(by_hand, abs=1e-6)
    assert stability_index([20, 30, 0], [200, 300, 0]) == pytest.approx(0)
    assert math.isfinite(stability_index([20, 0, 30], [200, 300, 0]))


@pytest.mark.parametrize("texts", [TEXTS_MIN, WINDOW_TEXTS])
@pytest.mark.parametrize("known", [1000, 20_000])
def test_chance_exceeds_the_threshold_of_any_signal_as_seldom_as_stated(texts: int, known: int) -> None:
    rng, windows = np.random.default_rng(texts + known), 2000

    alarms = np.zeros(windows, bool)
    for shares in SHAPES:
        pairs = zip(rng.multinomial(texts, shares, windows).tolist(), rng.multinomial(known, shares, windows).tolist(), strict=True)
        tail = FALSE_ALARMS / len(SHAPES)
        alarms |= [stability_index(window, reference) > chance_index(window, reference, tail) for window, reference in pairs]

    print(f"{alarms.mean():.2%} of the windows of {texts} texts alarm, of a reference of {known}")
    assert 0.2 * FALSE_ALARMS < alarms.mean() < 1.8 * FALSE_ALARMS


def test_with_common_bins_the_false_alarms_are_any_rate_that_is_asked_for() -> None:
    rng, windows = np.random.default_rng(7), 4000
    counts = (rng.multinomial(texts, SHAPES[0], windows).tolist() for texts in (WINDOW_TEXTS, 5000))

    alarms = [stability_index(window, reference) > chance_index(window, reference, 0.1) for window, reference in zip(*counts, strict=True)]

    assert sum(alarms) / windows == pytest.approx(0.1, abs=0.015)


def counted(*signals: Signal) -> Drift:
    return Drift(signals, lambda *_: SimpleNamespace(value=0.0))


def coin(heads: int, tails: int) -> Signal:
    return Signal.of_values("coin", {"heads": "heads", "tails": "tails"}, [heads, tails])


def test_the_window_has_the_last_texts_in_bounded_memory_however_they_come() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, window, came = random.Random(seed), counted(coin(500, 500)), list[str]()

    for _ in range(300):
        sides = ["tails" if rng.random() < len(came) / 30_000 else "heads" for _ in range(rng.choice([1, 7, 80, 400]))]
        came += sides
        if rng.random() < 0.5:
            window.add_counts([("coin", side, sides.count(side)) for side in ("tails", "heads")] + [("coin", "edge", 1), ("die", "1", 1)])
        else:
            for side in sides:
                window.add([side])
        texts = int(window.texts())

        assert min(len(came), WINDOW_TEXTS) <= texts < WINDOW_TEXTS + max(SLOT_TEXTS, 400) + SLOT_TEXTS
        assert len(window._slots) <= WINDOW_TEXTS // SLOT_TEXTS + 1
        if texts >= TEXTS_MIN:
            last = came[-texts:]
            assert window.index("coin") == pytest.approx(stability_index([last.count("heads"), last.count("tails")], [500, 500]))


def test_other_texts_are_seen_while_the_window_fills_with_them() -> None:
    rng, window, seen_after = random.Random(3), counted(coin(2500, 2500)), 0
    for _ in range(5000):
        window.add([rng.choice(["heads", "tails"])])
    assert window.index("coin") < window.threshold("coin")

    while window.index("coin") < window.threshold("coin"):
        window.add(["heads" if rng.random() < 0.7 else "tails"])
        seen_after += 1

    assert 50 < seen_after < 1000


def test_too_few_texts_have_no_index() -> None:
    window = counted(coin(500, 500))
    window.add_counts([("coin", "heads", TEXTS_MIN - 1)])
    assert (window.texts(), math.isnan(window.index("coin")), math.isnan(window.threshold("coin"))) == (TEXTS_MIN - 1, True, True)

    window.add(["heads"])

    assert window.index("coin") > 1 > window.threshold("coin") > 0


def test_a_number_is_in_the_bin_up_to_whose_edge_it_goes() -> None:
    signal = Signal.of_numbers("tokens", (4, 8), [1, 2, 3])

    assert signal.bins == ("4.0", "8.0", "+Inf")
    assert [signal.place(tokens) for tokens in (2, 4, 5, 8, 9)] == [0, 0, 1, 1, 2]


def test_shares_are_of_what_was_read() -> None:
    assert values_of("positive", False, 0.9, 10, 1, (3, 1)) == ("positive", False, 0.9, 10, 0.1, 0.75)
    assert values_of("positive", True, 0.5, 0, 0, (0, 0))[4:] == (0, 0)
