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
    Fit,
    Signal,
    chance_index,
    chi_square_quantile,
    chi_square_tail,
    likeliest_shares,
    mixed,
    nearest,
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


# Two kinds of texts that share bins, by signal.
KINDS = {
    "score": {"sentences": [0.2, 0.3, 0.3, 0.2, 0], "reviews": [0.05, 0.15, 0.3, 0.45, 0.05]},
    "tokens": {"sentences": [0.3, 0.5, 0.19, 0.01, 0], "reviews": [0, 0.02, 0.28, 0.5, 0.2]},
}


def drawn(rng: np.random.Generator, texts: int, share: float) -> dict[str, list[int]]:
    """The counts of texts of which about ``share`` are sentences."""
    kinds = {signal: share * np.array(of["sentences"]) + (1 - share) * np.array(of["reviews"]) for signal, of in KINDS.items()}
    return {signal: rng.multinomial(texts, shares).tolist() for signal, shares in kinds.items()}


def known(rng: np.random.Generator, sentences: int, reviews: int) -> dict[str, dict[str, list[int]]]:
    one, other = drawn(rng, sentences, 1), drawn(rng, reviews, 0)
    return {signal: {"sentences": one[signal], "reviews": other[signal]} for signal in KINDS}


@pytest.mark.parametrize("share", [1, 0.97, 0.5, 0.07, 0])
def test_a_window_of_known_kinds_alarms_as_seldom_as_one_of_a_single_reference(share: float) -> None:
    rng, windows = np.random.default_rng(11), 1000

    fits = [nearest(drawn(rng, TEXTS_MIN, share), known(rng, 400, 3000)) for _ in range(windows)]

    alarms = sum(fit.excess > 1 for fit in fits) / windows
    print(f"{alarms:.2%} of the windows with {share:.0%} sentences alarm")
    assert alarms < 1.8 * FALSE_ALARMS
    # A window that chance explains by one reference is not mixed.
    assert np.mean([fit.shares["sentences"] for fit in fits]) == pytest.approx(share, abs=0.04)


# The labels and lengths of four kinds, as a model of three labels has them.
FOUR = {
    "reviews": {"label": [0.48, 0.49, 0.03], "tokens": [0, 0.02, 0.28, 0.5, 0.2]},
    "tweets": {"label": [0.16, 0.38, 0.46], "tokens": [0.05, 0.6, 0.35, 0, 0]},
    "forum": {"label": [0.25, 0.4, 0.35], "tokens": [0.4, 0.5, 0.1, 0, 0]},
    "tickets": {"label": [0.62, 0.16, 0.22], "tokens": [0.1, 0.65, 0.25, 0, 0]},
}


@pytest.mark.parametrize("shares", [*({name: 1.0} for name in FOUR), dict.fromkeys(FOUR, 0.25), {"tickets": 0.8, "tweets": 0.2}], ids=str)
def test_traffic_of_one_of_four_kinds_or_of_several_alarms_as_seldom_as_with_a_single_reference(shares: dict[str, float]) -> None:
    rng, windows = np.random.default_rng(13), 400
    whole = {signal: sum(share * np.array(FOUR[name][signal]) for name, share in shares.items()) for signal in ("label", "tokens")}

    fits = []
    for _ in range(windows):
        references = {signal: {name: rng.multinomial(2000, of[signal]).tolist() for name, of in FOUR.items()} for signal in whole}
        fits.append(nearest({signal: rng.multinomial(WINDOW_TEXTS, of).tolist() for signal, of in whole.items()}, references))

    alarms = sum(fit.excess > 1 for fit in fits) / windows
    print(f"{alarms:.2%} of the windows of {shares} alarm")
    assert alarms < 3 * FALSE_ALARMS
    assert not any(fit.above(0.25) for fit in fits)


def test_a_kind_that_no_reference_has_is_drift_against_each_mixture() -> None:
    rng = np.random.default_rng(12)
    references = known(rng, 2000, 2000)
    window = drawn(rng, TEXTS_MIN, 0.5) | {"score": [0, 0, 100, 300, 600]}

    fit = nearest(window, references)

    assert fit.indexes["score"] > 0.25 > fit.thresholds["score"]
    for sentences in np.linspace(0, 1, 21).tolist():
        counts = {signal: mixed(of, {"sentences": sentences, "reviews": 1 - sentences}) for signal, of in references.items()}
        assert max(stability_index(window[signal], one) for signal, one in counts.items()) > 0.25


def test_the_nearest_is_never_worse_than_the_reference_that_fits() -> None:
    rng = np.random.default_rng(13)

    for _ in range(100):
        window, references = drawn(rng, TEXTS_MIN, rng.choice([0, 0.5, 1])), known(rng, 1000, 1000)
        alone = [nearest(window, {signal: {name: of[name]} for signal, of in references.items()}) for name in ("sentences", "reviews")]
        assert nearest(window, references).excess <= min(fit.excess for fit in alone)
        assert [fit.shares for fit in alone] == [{"sentences": 1}, {"reviews": 1}]


def test_the_shares_of_a_mixture_are_the_likeliest() -> None:
    rng = np.random.default_rng(14)
    window, references = drawn(rng, WINDOW_TEXTS, 0.3), known(rng, 5000, 5000)

    def likelihood(sentences: float) -> float:
        shares = {"sentences": sentences, "reviews": 1 - sentences}
        expected = {signal: mixed(of, shares) for signal, of in references.items()}
        pairs = [
            (here, there / sum(expected[signal])) for signal in KINDS for here, there in zip(window[signal], expected[signal], strict=True)
        ]
        return math.fsum(here * math.log(there) for here, there in pairs if here)

    found = likeliest_shares(window, references)["sentences"]

    assert found == pytest.approx(max(np.linspace(0, 1, 1001)[1:-1].tolist(), key=likelihood), abs=0.001)


def test_a_mixture_has_the_effective_sample_size_of_its_estimate() -> None:
    assert mixed({"one": [100, 0], "other": [100, 300]}, {"one": 0, "other": 1}) == pytest.approx([100, 300])
    assert mixed({"one": [100, 0], "other": [0, 100]}, {"one": 0.5, "other": 0.5}) == pytest.approx([100, 100])


def test_bins_that_no_reference_has_do_not_stop_the_fit() -> None:
    nowhere = {"coin": {"one": [10, 0, 0], "other": [0, 10, 0]}}

    fit: Fit = nearest({"coin": [0, 0, TEXTS_MIN]}, nowhere)

    assert fit.excess > 1
    assert sum(fit.shares.values()) == pytest.approx(1)


def counted(*signals: Signal) -> Drift:
    return Drift(signals, lambda *_: SimpleNamespace(value=0.0))


def coin(heads: int, tails: int) -> Signal:
    return Signal.of_values("coin", {"heads": "heads", "tails": "tails"}, {"usual": [heads, tails]})


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
    signal = Signal.of_numbers("tokens", (4, 8), {"usual": [1, 2, 3]})

    assert signal.bins == ("4.0", "8.0", "+Inf")
    assert [signal.place(tokens) for tokens in (2, 4, 5, 8, 9)] == [0, 0, 1, 1, 2]


def test_shares_are_of_what_was_read() -> None:
    assert values_of("positive", False, 0.9, 10, 1, (3, 1)) == ("positive", False, 0.9, 10, 0.1, 0.75)
    assert values_of("positive", True, 0.5, 0, 0, (0, 0))[4:] == (0, 0)
