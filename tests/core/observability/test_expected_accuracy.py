"""Expected accuracy is a mean of the last five minutes, in bounded memory, where its texts are like the references; its interval covers
what chance does.
"""

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from sentiment.model.bundle import load_bundle
from sentiment.model.classifier import load_classifier
from sentiment.observability.drift import WINDOW_TEXTS, Drift, Signal
from sentiment.observability.expected_accuracy import (
    DRIFT,
    FEW_TEXTS,
    LIKE_TEXTS_MIN,
    NO_REFERENCE,
    SLOT_S,
    SLOTS,
    WINDOW_S,
    ExpectedAccuracy,
    interval,
)
from sentiment.observability.instruments import Count
from sentiment_models.export.inference import serve
from tests.english import ENGLISH
from tests.stack_traces import stack_traces

KIND = Signal.of_values("kind", {one: one for one in ("usual", "rare", "unlike")}, {"ours": [900, 100, 0]})
# Of which the default bundle has references.
KINDS = ("films", "forum", "products", "sentences", "tickets", "tweets")


class Model:
    """A model's answers, in the window of its expected accuracy and in that of its drift."""

    def __init__(self, signals: Sequence[Signal] = (KIND,)) -> None:
        self.drift = Drift(signals, lambda _signal, _bin: Count())
        self.window = ExpectedAccuracy(self.drift)
        self._usual = itertools.cycle([*["usual"] * 9, "rare"])

    def answer(self, now: float, kind: str = "usual", p: float = 0.8) -> None:
        self.window.add(now, 1, p, p * (1 - p))
        self.drift.add([kind])

    def answer_usual(self, now: float, texts: int = LIKE_TEXTS_MIN, p: float = 0.8) -> None:
        for _ in range(texts):
            self.answer(now, next(self._usual), p)


def test_it_is_the_mean_of_the_probabilities() -> None:
    model = Model()
    model.answer_usual(100.0, 100, 0.9)
    model.answer_usual(103.0, 300, 0.6)

    assert (model.window.texts(104.0), model.window.mean(104.0)) == (400, pytest.approx(0.675))
    assert model.window.interval(104.0) == pytest.approx(interval(400, 270.0, 81.0))


def test_of_few_texts_it_is_withheld() -> None:
    model = Model()
    assert (model.window.withheld(5.0), model.window.texts(5.0)) == (FEW_TEXTS, 0)
    model.answer_usual(5.0, LIKE_TEXTS_MIN - 1)
    assert model.window.withheld(5.0) == FEW_TEXTS
    model.answer(5.0)

    assert model.window.withheld(5.0) == ""
    assert model.window.withheld(5.0 + WINDOW_S) == FEW_TEXTS
    assert math.isnan(model.window.mean(5.0 + WINDOW_S))
    assert all(map(math.isnan, model.window.interval(5.0 + WINDOW_S)))


def test_without_a_reference_it_is_withheld() -> None:
    window = ExpectedAccuracy(None)
    window.add(5.0, 1000, 900.0, 90.0)

    assert (window.withheld(5.0), window.texts(5.0)) == (NO_REFERENCE, 1000)
    assert math.isnan(window.mean(5.0))


def test_it_is_withheld_while_its_own_texts_are_unlike_the_references_and_no_longer() -> None:
    """The window of drift is of 2,000 texts, those of two hours here: it hardly sees the unlike ones when they come."""
    model, now = Model(), 0.0
    for _ in range(WINDOW_TEXTS):
        now += 3
        model.answer_usual(now, 1)
    assert model.window.texts(now) < LIKE_TEXTS_MIN
    model.answer_usual(now)
    assert model.window.withheld(now) == ""

    for _ in range(LIKE_TEXTS_MIN):
        model.answer(now + 1, "unlike")
    assert model.window.withheld(now + 1) == DRIFT
    assert math.isnan(model.window.mean(now + 1))
    assert model.drift.index("kind") < 1

    later = now + WINDOW_S + SLOT_S
    model.answer_usual(later)
    assert (model.window.withheld(later), model.window.mean(later)) == ("", pytest.approx(0.8))


def test_answers_that_abstain_count_for_whether_the_texts_are_like_the_references() -> None:
    model = Model()
    model.answer_usual(5.0)
    for _ in range(LIKE_TEXTS_MIN):
        model.window.add(2 * WINDOW_S, 0, 0.0, 0.0)
        model.drift.add(["unlike"])
    model.answer(2 * WINDOW_S, p=0.99)

    assert (model.window.texts(2 * WINDOW_S), model.window.withheld(2 * WINDOW_S)) == (1, DRIFT)


def test_it_holds_the_texts_of_the_window_give_or_take_a_slot() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, now, model, added = random.Random(seed), 1e6, Model(), list[float]()

    for _ in range(2000):
        now += rng.expovariate(1.0)
        model.answer_usual(now, 1)
        added.append(now)
        shown = model.window.texts(now)

        assert sum(at > now - WINDOW_S + SLOT_S for at in added) <= shown <= sum(at > now - WINDOW_S for at in added)
        assert len(model.window._slots) <= SLOTS
    assert math.isclose(model.window.mean(now), 0.8)


def test_with_the_default_bundle_it_is_withheld_for_stack_traces() -> None:
    classifier = load_classifier(ENGLISH)
    served = serve(classifier, stack_traces(LIKE_TEXTS_MIN), "stack traces")
    model = Model(classifier.manifest.signals)
    for values in served.signals:
        model.window.add(5.0, 1, 0.9, 0.09)
        model.drift.add(values)

    assert model.window.withheld(5.0) == DRIFT


@pytest.mark.parametrize("kinds", [*((kind,) for kind in KINDS), KINDS])
def test_with_the_default_bundle_it_holds_for_texts_like_its_references(kinds: tuple[str, ...]) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, signals = random.Random(seed), load_bundle(ENGLISH).manifest.signals

    for _ in range(20):
        model = Model(signals)
        counts: list[tuple[str, str, float]] = []
        model.window.add(5.0, LIKE_TEXTS_MIN, 180.0, 18.0)
        for _ in range(LIKE_TEXTS_MIN):
            kind = rng.choice(kinds)
            counts += [(signal.name, rng.choices(signal.bins, signal.counts[kind])[0], 1.0) for signal in signals]
        model.drift.add_counts(counts)

        assert model.window.withheld(5.0) == ""


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
        probabilities = [0.5 + 0.5 * rng.betavariate(4, 1) for _ in range(80)]
        right = sum(rng.random() < p for p in probabilities)
        low, high = interval(80, sum(probabilities), variance(probabilities))
        within += low <= right / 80 <= high

    # About 96.5 % are covered; of 1,000 windows fewer than 925 lie within once in ten million seeds.
    assert within >= 925
