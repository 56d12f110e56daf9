"""Calibration of a graph on a development set: the temperature, the abstain threshold, and from when on a text is mixed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sentiment.model import bundle
from sentiment.model.scores import NEUTRAL
from sentiment_models.data.labelled import Example
from sentiment_models.errors import BadData
from sentiment_models.evaluation.metrics import (
    Figures,
    Labels,
    Logits,
    abstain_threshold,
    figures,
    fit_temperature,
    negative_log_likelihood,
    probabilities,
    stated,
    threshold_within,
)
from sentiment_models.export.inference import Graph, answer

# Fewer texts say less than the base does.
TEXTS_MIN = 20
# How far the log of a fine-tune's temperature is from that of its base, as a standard deviation: what about 40 texts say, of which 200 fit
# it to 15 %. 27 texts that are all answered correctly would otherwise fit the least temperature there is.
FINE_TUNE_SPREAD = 0.35
# The same from 1, of a model without a base whose head it keeps. Two of three are from 0.4 to 2.7.
UNKNOWN_SPREAD = 1.0
# Of fewer texts, not even three lie below the threshold.
ABSTAIN_TEXTS_MIN = 200
# The largest share of texts of one sign that may be called mixed.
MIXED_ALARMS_MAX = 0.1
# The threshold without a development set of mixed texts.
MIXED_AT = 0.5
# Of log(temperature), for the curvature of its likelihood.
STEP = 0.05


@dataclass(frozen=True, slots=True)
class MixedCalibration:
    """The least probability of a mixed text, and what chose it: ``found`` of ``texts`` mixed ones, and ``alarms`` of ``one_sign``.

    The texts of one sign are those of the kinds (``domain``) that have mixed ones.
    """

    at: float = MIXED_AT
    texts: int = 0
    found: int = 0
    one_sign: int = 0
    alarms: int = 0


@dataclass(frozen=True, slots=True)
class Calibration:
    """Temperature and abstain threshold; ``dev`` holds the calibrated figures on the development set.

    ``interval``: where the temperature lies with 95 % probability, by the development set and the first guess; None: it was not fitted.
    ``mixed``: None without such an output.
    """

    temperature: float = 1.0
    # Without a development set, no answer is marked ``abstain``.
    abstain_below: float = 0.0
    dev: Figures | None = None
    interval: tuple[float, float] | None = None
    mixed: MixedCalibration | None = None

    @property
    def uncalibrated(self) -> bool:
        """As the service judges it of the manifest."""
        return bundle.Calibration(temperature=self.temperature, abstain_below=self.abstain_below).uncalibrated


def calibrate(
    graph: Graph, dev: Sequence[Example], labels: Sequence[str], base: Calibration | None, mixed_at: float | None = None
) -> Calibration:
    """Fit the temperature, the abstain threshold and that of mixed texts on a development set.

    The temperature is the likeliest one of which the base's, or 1 without a base, is a first guess. With few texts it is near that. With
    fewer than TEXTS_MIN both are the base's, or 1 and 0.

    Args:
        graph: has a logit for each label, and one more with ``mixed_at``.
        dev: examples of the label after the last one are mixed texts, which count for that output only.
        labels: their names.
        base: the base's; None without a base.
        mixed_at: the threshold if the set has too few mixed texts; None: there is no such output.

    Raises:
        BadData: the set has a label that the model lacks, or texts of one label only.
    """
    known = replace(base or Calibration(), mixed=None if mixed_at is None else MixedCalibration(mixed_at))
    if not dev:
        return known
    wanted, outputs = np.array([example.label for example in dev], np.int64), len(labels) + (mixed_at is not None)
    if wanted.max() >= outputs:
        raise BadData(f"the development set has label {wanted.max()}; the model has labels 0 to {outputs - 1}")
    logits = answer(graph, [example.whole for example in dev], "calibrating")
    single = wanted < len(labels)
    found = calibrate_labels(logits[single, : len(labels)], wanted[single], known, fine_tuned=base is not None) if single.any() else known
    if mixed_at is None:
        return found
    praise_and_blame = stated(logits, len(labels), found.temperature)[:, -1]
    kinds = {example.domain for example, one in zip(dev, single, strict=True) if not one}
    # Texts without a kind are of all kinds: beside others they would say nothing of these.
    kinds = kinds - {""} or kinds
    polar = [
        one and labels[example.label].casefold() != NEUTRAL and example.domain in kinds for example, one in zip(dev, single, strict=True)
    ]
    return replace(found, mixed=calibrate_mixed(praise_and_blame[~single], praise_and_blame[np.array(polar)], mixed_at))


def calibrate_labels(logits: Logits, wanted: Labels, known: Calibration, *, fine_tuned: bool) -> Calibration:
    """Fit the temperature and the abstain threshold. ``fine_tuned``: ``known`` is of the base.

    Raises:
        BadData: all texts have one label.
    """
    if len(wanted) < TEXTS_MIN:
        return replace(known, dev=figures(logits, wanted, known.temperature))
    if wanted.min() == wanted.max():
        raise BadData(f"all {len(wanted)} texts of the development set have label {wanted[0]}; calibration needs at least two labels")
    temperature, interval = fit_near(logits, wanted, known.temperature, FINE_TUNE_SPREAD if fine_tuned else UNKNOWN_SPREAD)
    threshold = abstain_threshold(probabilities(logits, temperature).max(axis=1))
    if fine_tuned and len(wanted) < ABSTAIN_TEXTS_MIN:
        threshold = known.abstain_below
    return Calibration(temperature, threshold, figures(logits, wanted, temperature), interval)


def calibrate_mixed(mixed: NDArray[np.float64], one_sign: NDArray[np.float64], known: float) -> MixedCalibration:
    """Find the threshold that finds most mixed texts with at most MIXED_ALARMS_MAX false alarms among texts of one sign.

    Args:
        mixed: the probability that each mixed text praises and blames.
        one_sign: the same of positive and negative texts of the same kinds.
        known: the threshold if fewer than TEXTS_MIN texts have one sign.
    """
    at = threshold_within(one_sign, MIXED_ALARMS_MAX) if len(one_sign) >= TEXTS_MIN else known
    return MixedCalibration(at, len(mixed), int((mixed >= at).sum()), len(one_sign), int((one_sign >= at).sum()))


def fit_near(logits: Logits, labels: Labels, guess: float, spread: float) -> tuple[float, tuple[float, float]]:
    """Return the likeliest temperature, and where it lies with 95 % probability (by the curvature at the peak).

    Both if, before any text, its log is spread around that of ``guess`` with the standard deviation ``spread``.
    """

    def prior(log: float) -> float:
        return float((log - np.log(guess)) ** 2 / (2 * spread**2) / len(labels))

    temperature = fit_temperature(logits, labels, prior=prior)
    left, peak, right = (
        negative_log_likelihood(logits, labels, float(temperature * np.exp(step))) * len(labels) for step in (-STEP, 0, STEP)
    )
    # The likelihood of very large temperatures curves the other way; the prior alone remains.
    curvature = max(0.0, (left - 2 * peak + right) / STEP**2) + spread**-2
    factor = float(np.exp(1.96 / np.sqrt(curvature)))
    return temperature, (temperature / factor, temperature * factor)


def calibrated_on(dev: Sequence[Example], base: Calibration | None, *, pairs: bool) -> str:
    """Describe the input of ``calibrate`` in one line."""
    kept = "temperature and threshold are those of the base bundle" if base else "temperature 1 and threshold 0"
    if not dev:
        return f"no development set: not calibrated; {kept}"
    if len(dev) < TEXTS_MIN:
        return f"calibration needs {TEXTS_MIN} texts, the development set has {len(dev)}: not calibrated; {kept}"
    singles = pairs and all(example.text_pair is None for example in dev)
    return "calibration on single texts: the development set has no pairs" if singles else "calibration"
