"""Expected accuracy, the mean of the probabilities that answers state, held against the true one. Pure functions of arrays.

The server shows it on live texts (``sentiment.observability.expected_accuracy``), without the answers that abstain.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentiment.observability.expected_accuracy import interval
from sentiment_models.evaluation.findings import Errors, Expected, LeaveOneOut
from sentiment_models.evaluation.metrics import Labels, Probabilities, fit_temperature, probabilities

# A class of length with fewer texts in the other sets has no temperature of its own. The temperature that 200 texts fit is off by about
# 15 % by chance, which moves a probability of 0.9 by 0.03.
CLASS_ROWS_MIN = 200


@dataclass(frozen=True, slots=True)
class Answers:
    """The served answers to the texts of a data set.

    Attributes:
        stated: calibrated probabilities, [texts, labels].
        labels: the correct labels, [texts].
        abstain: whether the answer abstains, [texts].
        length_class: the number of the class of the text's length, [texts].
    """

    stated: Probabilities
    labels: Labels
    abstain: NDArray[np.bool_]
    length_class: Labels

    @property
    def counted(self) -> NDArray[np.bool_]:
        """The texts that the server's expected accuracy counts, [texts]."""
        return ~self.abstain


def expected(answers: Answers, counted: NDArray[np.bool_]) -> Expected | None:
    """Return the expected and the true accuracy of the answers ``counted`` [texts]; None if it chooses none."""
    stated, rows = answers.stated[counted], int(counted.sum())
    if not rows:
        return None
    top = stated.max(axis=1)
    accuracy, mean = float((stated.argmax(axis=1) == answers.labels[counted]).mean()), float(top.mean())
    low, high = interval(rows, float(top.sum()), float((top * (1 - top)).sum()))
    return Expected(
        rows=rows,
        accuracy=round(accuracy, 5),
        expected_accuracy=round(mean, 5),
        by_chance=(round(low, 5), round(high, 5)),
        error=round(mean - accuracy, 5),
    )


def leave_one_out(sets: Mapping[str, Answers], temperature: float) -> LeaveOneOut | None:
    """Tell how far expected accuracy can be trusted on texts that the temperature was not fitted on.

    For each set, the temperature is fitted on the other sets alone, each with the same weight, because a set stands for a kind of texts.
    The expected accuracy of the set's answers is compared with the true one. All variants count the same texts: those whose served
    answer does not abstain.

    A temperature refitted to stated probabilities is that of the logits, except for texts in windows, whose probabilities are combined.

    Args:
        sets: the answers by data set. One of which all answers abstain is fitted on, but has no error.
        temperature: the bundle's.

    Returns:
        The errors of three calibrations; None if fewer than two sets have answers that do not abstain.
    """
    names = [name for name, one in sets.items() if one.counted.any()]
    if len(names) < 2:
        return None
    temperatures: dict[str, float] = {}
    served: dict[str, float] = {}
    refitted: dict[str, float] = {}
    by_length: dict[str, float] = {}
    for name in names:
        one = sets[name]
        whole, by_class = _fit([other for each, other in sets.items() if each != name])
        temperatures[name] = round(whole * temperature, 5)
        served[name] = _error(one, np.ones(len(one.labels)))
        refitted[name] = _error(one, np.full(len(one.labels), whole))
        by_length[name] = _error(one, np.array([by_class.get(each, whole) for each in one.length_class.tolist()]))
    return LeaveOneOut(
        temperatures=temperatures, as_served=_errors(served), refitted=_errors(refitted), refitted_by_length=_errors(by_length)
    )


def _fit(sets: Sequence[Answers]) -> tuple[float, dict[int, float]]:
    """Return the temperature that fits all texts, relative to the bundle's, and those of the classes of length that have enough texts."""
    logits = np.concatenate([_logits(one) for one in sets])
    labels = np.concatenate([one.labels for one in sets])
    weights = np.concatenate([np.full(len(one.labels), 1 / len(one.labels)) for one in sets])
    classes = np.concatenate([one.length_class for one in sets])
    numbers, rows = np.unique(classes, return_counts=True)
    chosen = {int(number): classes == number for number in numbers[rows >= CLASS_ROWS_MIN]}
    by_class = {number: fit_temperature(logits[mask], labels[mask], weights[mask]) for number, mask in chosen.items()}
    return fit_temperature(logits, labels, weights), by_class


def _logits(answers: Answers) -> NDArray[np.float32]:
    """Return logits whose softmax is the stated probabilities, [texts, labels]."""
    return np.log(np.maximum(answers.stated, np.finfo(np.float64).tiny)).astype(np.float32)


def _error(answers: Answers, temperatures: NDArray[np.float64]) -> float:
    """Return expected minus true accuracy; ``temperatures``: of each text, relative to the bundle's, [texts]."""
    top = probabilities((_logits(answers) / temperatures[:, np.newaxis]).astype(np.float32)).max(axis=1)
    right = answers.stated.argmax(axis=1) == answers.labels
    return float((top - right)[answers.counted].mean())


def _errors(by_set: Mapping[str, float]) -> Errors:
    worst = max(by_set, key=lambda name: abs(by_set[name]))
    mean = sum(map(abs, by_set.values())) / len(by_set)
    return Errors(by_set={name: round(error, 5) for name, error in by_set.items()}, mean_absolute=round(mean, 5), worst=worst)
