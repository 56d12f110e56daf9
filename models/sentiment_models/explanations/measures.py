"""The effect of erasing words in a given order, and bounds on how good an order can be. Pure.

As in ``sentiment.explain``, functions that need the model are generators that yield masks and receive logits. An order is the indices of
the words of a text, [n], the most important first. f is the calibrated probability of one label, or its share in that of two.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentiment.explain.methods.erasure import Answers, Floats, Masks, Steps, without
from sentiment.explain.methods.evidence import kendall_tau_b
from sentiment.explain.methods.target import Target
from sentiment_models.explanations.findings import FRACTIONS

# Random orders per text, whose mean is chance level. Fewer for long texts: each order takes about ten rows.
RANDOM_ORDERS, RANDOM_ORDERS_LONG = 20, 5
# Random orders with a flip, which takes a row per word: only the mean is reported, so a few are enough.
FLIP_ORDERS = 5
# Up to this many words the flip is exact. Longer texts are erased in FLIP_POINTS equal parts.
FLIP_EXACT_WORDS, FLIP_POINTS, FLIP_POINTS_LONG = 40, 40, 10
# Greedy removal takes n (n + 1) / 2 rows: 820 for 40 words.
GREEDY_WORDS_MAX = 40
# Beam search takes up to BEAM times as many, in both directions: about 1,500 for 25 words.
BEAM_WORDS_MAX = 25
BEAM = 5

Order = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Model:
    """The measured quantity f: the calibrated probability of the target, as of the service's evidence."""

    target: Target
    temperature: float

    def probability(self, logits: Floats) -> Floats:
        """Return f, [...], of logits [..., labels]."""
        label, against = self.target.label, self.target.against
        scaled = (logits if against is None else logits[..., [label, against]]) / self.temperature
        weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
        values: Floats = weights[..., label if against is None else 0] / weights.sum(axis=-1)
        return values


@dataclass(frozen=True, slots=True, eq=False)
class Erasures:
    """The results for orders.

    ``comprehensiveness`` [orders, FRACTIONS]: f(text) - f(text without the first words). ``sufficiency`` [orders, FRACTIONS]: f(text) -
    f(the first words alone). ``flip`` [leading orders]: the share of words to erase until the label no longer wins, see ``Target.wins``, 1
    if it always does.
    ``aopc`` [leading orders]: the mean of f(text) - f(rest) over all numbers of erased words, None for more than BEAM_WORDS_MAX words.
    """

    comprehensiveness: Floats
    sufficiency: Floats
    flip: Floats
    aopc: Floats | None


def sizes(n: int) -> list[int]:
    """Return the number of words for each of FRACTIONS of ``n``, at least one; some may be equal."""
    # 1e-9: in floating point, 0.1 x 30 is a little above 3.
    return [max(1, int(np.ceil(fraction * n - 1e-9))) for fraction in FRACTIONS]


def erase_in_order(orders: npt.NDArray[np.int64], flips: int, points: int, model: Model, answers: Answers) -> Steps[Erasures]:
    """Erase the first words of orders, and keep only them (DeYoung et al. 2020, "ERASER").

    Args:
        orders: [orders, n].
        flips: the number of leading orders with a flip (Serrano and Smith 2019, "Is Attention Interpretable?").
        points: the number of parts in which a text of more than FLIP_EXACT_WORDS words is erased for the flip.
        model: the measured quantity.
        answers: cached answers of this text.
    """
    count, n = orders.shape
    places = np.argsort(orders, axis=1)
    some = sizes(n)
    first = np.stack([places < size for size in some], axis=1)
    whole = np.ones((1, n), np.bool_)
    # All prefixes of the leading orders in the same request, to fill the batches.
    steps = np.arange(1, n + 1)[:, None]
    paths = places[:flips, None] >= steps if n <= BEAM_WORDS_MAX else np.ones((0, n, n), np.bool_)
    masks = np.concatenate([whole, (~first).reshape(-1, n), first.reshape(-1, n), paths.reshape(-1, n)])
    found = model.probability((yield from answers.ask(masks)))
    rest = found[0] - found[1:]
    erased, kept = (rest[start : start + count * len(some)].reshape(count, -1) for start in (0, count * len(some)))
    aopc = rest[2 * count * len(some) :].reshape(flips, n).mean(axis=1) if len(paths) else None
    flip = yield from _flips(places[:flips], points, model.target, answers)
    return Erasures(erased, kept, flip, aopc)


def _flips(places: npt.NDArray[np.int64], points: int, target: Target, answers: Answers) -> Steps[Floats]:
    """Return the smallest erased share at which the label no longer wins, [orders]; orders that have flipped are not run again."""
    count, n = places.shape
    found = np.ones(count)
    left = np.arange(count)
    grid = range(1, n + 1) if n <= FLIP_EXACT_WORDS else sorted({-(-n * point // points) for point in range(1, points + 1)})
    for size in grid:
        if not len(left):
            break
        logits = yield from answers.ask(places[left] >= size)
        flipped = np.array([not target.wins(one) for one in logits])
        found[left[flipped]] = size / n
        left = left[~flipped]
    return found


def leave_one_out(n: int, model: Model, answers: Answers) -> Steps[Floats]:
    """Return f(text) - f(text without the word), [n]."""
    found = model.probability((yield from answers.ask(without(n, [(), *((word,) for word in range(n))]))))
    values: Floats = found[0] - found[1:]
    return values


def tau(values: Floats, other: Floats) -> float | None:
    """Return Kendall's tau-b; None if undefined: fewer than two words, or all values equal."""
    return kendall_tau_b(values, other) if len(values) > 1 and np.ptp(values) > 0 and np.ptp(other) > 0 else None


def beam_search(n: int, width: int, worst: bool, model: Model, answers: Answers) -> Steps[tuple[Order, float]]:
    """Search for the order whose erasures lower f the most on average over all lengths, or with ``worst`` the least.

    Edin et al. 2025, "Normalized AOPC". With ``width`` 1 the search is greedy.

    Returns:
        The order, and its mean of f(text) - f(rest) over all numbers of erased words.
    """
    sign = -1.0 if worst else 1.0
    text = float(model.probability((yield from answers.ask(np.ones((1, n), np.bool_))))[0])
    # Sum of f along the order, and the order.
    beam: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for _ in range(n):
        ways = [(total, (*order, word)) for total, order in beam for word in range(n) if word not in order]
        masks = without(n, [order for _, order in ways])
        found = sign * model.probability((yield from answers.ask(masks)))
        sums = np.array([total for total, _ in ways]) + found
        beam = _best(masks, sums, [order for _, order in ways], width)
    total, order = beam[0]
    return np.array(order, np.int64), text - sign * total / n


def _best(masks: Masks, sums: Floats, orders: Sequence[tuple[int, ...]], width: int) -> list[tuple[float, tuple[int, ...]]]:
    """Return the orders with the smallest sums, one per set of words."""
    kept: dict[bytes, tuple[float, tuple[int, ...]]] = {}
    for row in np.argsort(sums, kind="stable"):
        kept.setdefault(masks[row].tobytes(), (float(sums[row]), orders[row]))
        if len(kept) == width:
            break
    return list(kept.values())
