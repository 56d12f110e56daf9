"""How sure a graph's answers may be called, by a development set."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sentiment_models.data.labelled import Example
from sentiment_models.errors import BadData
from sentiment_models.evaluation.metrics import Figures, abstain_threshold, figures, fit_temperature, probabilities
from sentiment_models.export.inference import Graph, answer


@dataclass(frozen=True, slots=True)
class Calibration:
    """How logits become probabilities; ``dev`` is how good they then are on the development set."""

    temperature: float = 1.0
    # Without a development set nothing is known of certainty, and nothing is called a guess.
    abstain_below: float = 0.0
    dev: Figures | None = None


def calibrate(graph: Graph, dev: Sequence[Example], labels: int) -> Calibration:
    """Fit the temperature, and the probability below which an answer is a guess, on a development set.

    Raises:
        BadData: it has labels that the model has not, or only one.
    """
    if not dev:
        return Calibration()
    wanted = np.array([example.label for example in dev], np.int64)
    if wanted.max() >= labels:
        raise BadData(f"the development set has label {wanted.max()}; the model's labels are 0 to {labels - 1}")
    if wanted.min() == wanted.max():
        raise BadData(f"all {len(dev)} texts of the development set have label {wanted[0]}; calibration needs texts of another, too")
    logits = answer(graph, [example.whole for example in dev], "calibrating").logits
    temperature = fit_temperature(logits, wanted)
    threshold = abstain_threshold(probabilities(logits, temperature).max(axis=1))
    return Calibration(temperature, threshold, figures(logits, wanted, temperature))


def calibrated_on(dev: Sequence[Example], *, pairs: bool) -> str:
    """Say in a line what ``calibrate`` is given."""
    if not dev:
        return "no development set: not calibrated"
    singles = pairs and all(example.text_pair is None for example in dev)
    return "calibration, on single texts: the development set holds no pairs" if singles else "calibration"
