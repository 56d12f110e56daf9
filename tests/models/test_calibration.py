"""The temperature of few texts, which is near the base's, and how sure it is."""

from typing import Any

import numpy as np
import pytest

from sentiment_models.data.labelled import Example
from sentiment_models.evaluation import calibration
from sentiment_models.evaluation.calibration import FINE_TUNE_SPREAD, UNKNOWN_SPREAD, Calibration, calibrate, calibrated_on, fit_near
from sentiment_models.evaluation.metrics import abstain_threshold, fit_temperature, probabilities

BASE = Calibration(temperature=1.2, abstain_below=0.6)


def _drawn(texts: int, temperature: float, seed: int = 1) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Logits as sure as the default bundle's, and labels of which this is the temperature."""
    rng = np.random.default_rng(seed)
    logits = np.stack([-(half := rng.choice([-2.5, -1.0, 1.0, 2.5], texts)), half], axis=1).astype(np.float32)
    return logits, (rng.random(texts) < probabilities(logits, temperature)[:, 1]).astype(np.int64)


def test_27_texts_that_are_all_answered_correctly_do_not_make_every_answer_certain() -> None:
    logits = np.array([[-2.5, 2.5], [2.5, -2.5], [1.0, -1.0]] * 9, np.float32)
    labels = logits.argmax(axis=1)

    temperature, (low, high) = fit_near(logits, labels, 1.0, FINE_TUNE_SPREAD)

    assert fit_temperature(logits, labels) < 0.06
    assert 0.7 < temperature < 1
    assert low < temperature < high


@pytest.mark.parametrize("base", [0.7, 1.0, 1.5])
def test_many_texts_outweigh_the_base_and_are_sure(base: float) -> None:
    temperature, (low, high) = fit_near(*_drawn(5000, 1.6), base, FINE_TUNE_SPREAD)

    assert temperature == pytest.approx(1.6, rel=0.05)
    assert high / low < 1.2


# Of a model without a base, nothing is known of the temperature: 0.19 of the intervals of a fine-tune hold 3 after 20 texts.
@pytest.mark.parametrize(
    ("texts", "temperature", "spread"),
    [(60, 1.3, FINE_TUNE_SPREAD), *((texts, drawn, UNKNOWN_SPREAD) for texts in (20, 50) for drawn in (0.5, 1.0, 2.0, 3.0))],
)
def test_the_interval_holds_the_temperature_that_the_labels_were_drawn_with(texts: int, temperature: float, spread: float) -> None:
    found = (fit_near(*_drawn(texts, temperature, seed), 1.0, spread) for seed in range(100))

    assert sum(low <= temperature <= high for _, (low, high) in found) >= 90


def _calibrated(monkeypatch: pytest.MonkeyPatch, texts: int, base: Calibration | None) -> Calibration:
    logits, labels = _drawn(texts, 1.0)
    monkeypatch.setattr(calibration, "answer", lambda *_: logits)
    graph: Any = None  # not reached
    return calibrate(graph, [Example(f"text {n}", int(label)) for n, label in enumerate(labels)], ("negative", "positive"), base)


@pytest.mark.parametrize(
    ("base", "wanted", "told"),
    [(BASE, (1.2, 0.6), "temperature and threshold are those of the base bundle"), (None, (1, 0), "temperature 1 and threshold 0")],
)
def test_fewer_than_20_texts_change_neither_temperature_nor_threshold(
    monkeypatch: pytest.MonkeyPatch, base: Calibration | None, wanted: tuple[float, float], told: str
) -> None:
    found = _calibrated(monkeypatch, 19, base)

    assert (found.temperature, found.abstain_below, found.interval) == (*wanted, None)
    assert found.dev
    assert found.dev.rows == 19
    said = calibrated_on([Example("text", 0)] * 19, base, pairs=False)
    assert said == f"calibration needs 20 texts, the development set has 19: not calibrated; {told}"


def test_the_threshold_of_fewer_than_200_texts_is_the_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _calibrated(monkeypatch, 199, BASE).abstain_below == 0.6
    assert _calibrated(monkeypatch, 400, BASE).abstain_below != 0.6
    assert _calibrated(monkeypatch, 199, None).abstain_below > 0


@pytest.mark.parametrize(
    ("lowest", "wanted"),
    [
        # Of two labels, no answer is below one half.
        ((0.55, 0.6, 0.65), 0.55),
        # Of three, answers that are rather wrong than right abstain, if they are few.
        ((0.4, 0.52, 0.6), 0.5),
        # Of many, most answers are.
        ((0.1, 0.2, 0.3), 0.2),
        ((0.9, 0.95, 0.97), 0.75),
    ],
)
def test_answers_that_are_rather_wrong_than_right_abstain_but_no_more_than_one_in_twenty(
    lowest: tuple[float, float, float], wanted: float
) -> None:
    # The quantiles 1.5 % and 5 %, and the rest.
    confidence = np.array([lowest[0]] * 20 + [lowest[1]] * 40 + [lowest[2]] * 940)

    assert abstain_threshold(confidence) == pytest.approx(wanted, abs=1e-9)
