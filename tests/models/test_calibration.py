"""The temperature of few texts, which is near the base's, and how sure it is."""

from typing import Any

import numpy as np
import pytest

from sentiment_models.data.labelled import Example
from sentiment_models.evaluation import calibration
from sentiment_models.evaluation.calibration import UNKNOWN_BASE, Calibration, calibrate, calibrated_on, fit_near
from sentiment_models.evaluation.metrics import fit_temperature, probabilities
from sentiment_models.export.inference import Answers

BASE = Calibration(temperature=1.2, abstain_below=0.6)


def _drawn(texts: int, temperature: float, seed: int = 1) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Logits as sure as the default bundle's, and labels of which this is the temperature."""
    rng = np.random.default_rng(seed)
    logits = np.stack([-(half := rng.choice([-2.5, -1.0, 1.0, 2.5], texts)), half], axis=1).astype(np.float32)
    return logits, (rng.random(texts) < probabilities(logits, temperature)[:, 1]).astype(np.int64)


def test_27_texts_that_are_all_answered_correctly_do_not_make_every_answer_certain() -> None:
    logits = np.array([[-2.5, 2.5], [2.5, -2.5], [1.0, -1.0]] * 9, np.float32)
    labels = logits.argmax(axis=1)

    temperature, (low, high) = fit_near(logits, labels, 1.0)

    assert fit_temperature(logits, labels) < 0.06
    assert 0.7 < temperature < 1
    assert low < temperature < high


@pytest.mark.parametrize("base", [0.7, 1.0, 1.5])
def test_many_texts_outweigh_the_base_and_are_sure(base: float) -> None:
    temperature, (low, high) = fit_near(*_drawn(5000, 1.6), base)

    assert temperature == pytest.approx(1.6, rel=0.05)
    assert high / low < 1.2


def test_the_interval_holds_the_temperature_that_the_labels_were_drawn_with() -> None:
    held = [low <= 1.3 <= high for _, (low, high) in (fit_near(*_drawn(60, 1.3, seed), 1.0) for seed in range(100))]

    assert sum(held) >= 90


def _calibrated(monkeypatch: pytest.MonkeyPatch, texts: int, base: Calibration) -> Calibration:
    logits, labels = _drawn(texts, 1.0)
    monkeypatch.setattr(calibration, "answer", lambda *_: Answers(logits, 0, 0))
    graph: Any = None  # not reached
    return calibrate(graph, [Example(f"text {n}", int(label)) for n, label in enumerate(labels)], 2, base)


@pytest.mark.parametrize("base", [BASE, UNKNOWN_BASE])
def test_fewer_than_20_texts_change_neither_temperature_nor_threshold(monkeypatch: pytest.MonkeyPatch, base: Calibration) -> None:
    found = _calibrated(monkeypatch, 19, base)

    assert (found.temperature, found.abstain_below, found.interval) == (base.temperature, base.abstain_below, None)
    assert found.dev
    assert found.dev.rows == 19
    said = calibrated_on([Example("text", 0)] * 19, pairs=False)
    assert said.startswith("calibration needs 20 texts, the development set has 19: not calibrated; ")


def test_the_threshold_of_fewer_than_200_texts_is_the_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _calibrated(monkeypatch, 199, BASE).abstain_below == 0.6
    assert _calibrated(monkeypatch, 400, BASE).abstain_below != 0.6
    assert _calibrated(monkeypatch, 199, UNKNOWN_BASE).abstain_below > 0
