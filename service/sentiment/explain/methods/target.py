"""What is explained: the logit of a label, or how far it lies above that of another label. Pure.

Probabilities depend on differences of logits alone. The two logits of a trained model of two labels are nearly opposite, so either tells
their difference. With more labels one does not: a word may raise the logit of a label and that of another by more, and so speak against it.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sentiment.model.scores import probabilities

Number = TypeVar("Number", np.float32, np.float64)


@dataclass(frozen=True, slots=True)
class Target:
    """The logit of ``label``, less that of ``against`` unless it is None; both are indices of labels. In short: the explained logit."""

    label: int
    against: int | None = None

    def logit(self, logits: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """The explained logit [...] of logits [..., labels]."""
        own: npt.NDArray[Number] = logits[..., self.label]
        less: npt.NDArray[Number] = own if self.against is None else np.subtract(own, logits[..., self.against])
        return less

    def probability(self, logits: npt.NDArray[Number], temperature: float) -> float:
        """The label's calibrated probability, of logits [labels]; against another, its share in what both have together."""
        if self.against is None:
            return probabilities(logits.tolist(), temperature)[self.label]
        return probabilities(logits[[self.label, self.against]].tolist(), temperature)[0]

    def wins(self, logits: npt.NDArray[Number]) -> bool:
        """Whether the label is the answer to logits [labels]; against another, whether it is the likelier of the two."""
        return int(logits.argmax()) == self.label if self.against is None else float(self.logit(logits)) > 0

    @property
    def gradients(self) -> int:
        """How many rows of the explain graph, which differentiates one logit, give the gradient of the explained one."""
        return 1 if self.against is None else 2


def compares(labels: int, against: object, alone: bool) -> bool:
    """Whether a label is explained against another: if ``against`` names one, or by default in models of three or more."""
    return against is not None or (labels > 2 and not alone)


def target_of(logits: npt.NDArray[Number], label: int, against: int | None, alone: bool = False) -> Target:
    """What is explained of a text with logits [labels].

    Without ``against``, a label is explained against the likeliest other one, of equal ones the first; see ``compares``.
    """
    if against is None and compares(len(logits), against, alone):
        against = max((other for other in range(len(logits)) if other != label), key=lambda other: float(logits[other]))
    return Target(label, against)
