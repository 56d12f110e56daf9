"""Calibration of a graph on a development set: the temperature and the abstain threshold."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sentiment_models.data.labelled import Example
from sentiment_models.errors import BadData
from sentiment_models.evaluation.metrics import Figures, abstain_threshold, figures, fit_temperature, probabilities
from sentiment_models.export.inference import Graph, answer


@dataclass(frozen=True, slots=True)
class Calibration:
    """Temperature and abstain threshold; ``dev`` holds the calibrated figures on the development set."""

    temperature: float = 1.0
    # Without a development set, no answer is marked ``abstain``.
    abstain_below: float = 0.0
    dev: Figures | None = None


def calibrate(graph: Graph, dev: Sequence[Example], labels: int) -> Calibration:
    """Fit the temperature and the abstain threshold on a development set.

    Raises:
        BadData: the set has a label that the model lacks, or texts of one label only.
    """
    if not dev:
        return Calibration()
    wanted = np.array([example.label for example in dev], np.int64)
    if wanted.max() >= labels:
        raise BadData(f"the development set has label {wanted.max()}; the model has labels 0 to {labels - 1}")
    if wanted.min() == wanted.max():
        raise BadData(f"all {len(dev)} texts of the development set have label {wanted[0]}; calibration needs at least two labels")
    logits = answer(graph, [example.whole for example in dev], "calibrating").logits
    temperature = fit_temperature(logits, wanted)
    threshold = abstain_threshold(probabilities(logits, temperature).max(axis=1))
    return Calibration(temperature, threshold, figures(logits, wanted, temperature))


def calibrated_on(dev: Sequence[Example], *, pairs: bool) -> str:
    """Describe the input of ``calibrate`` in one line."""
    if not dev:
        return "no development set: not calibrated"
    singles = pairs and all(example.text_pair is None for example in dev)
    return "calibration on single texts: the development set has no pairs" if singles else "calibration"
