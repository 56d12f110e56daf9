"""What erasing words in a given order does to an answer, and how good an order could be. Pure.

As in ``sentiment.explain`` everything that needs the model is a generator that yields masks and is sent logits. An order is the words of
a text, [n], the most important first; f is the calibrated probability of one label.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentiment.explain.methods.erasure import Answers, Floats, Masks, Steps, without
from sentiment.explain.methods.evidence import kendall_tau_b
from sentiment_models.explanations.findings import FRACTIONS

# Random orders of a text: their mean stands for chance. Of long texts fewer: each is about ten rows.
RANDOM_ORDERS, RANDOM_ORDERS_LONG = 20, 5
# Of how many of them the flip is sought, which takes a row a word: their mean is told, not their spread.
FLIP_ORDERS = 5
# Up to so many words the flip is exact; beyond, the text is erased in so many equal parts.
FLIP_EXACT_WORDS, FLIP_POINTS, FLIP_POINTS_LONG = 40, 40, 10
# Greedy removal asks for n (n + 1) / 2 rows, 820 at so many words.
GREEDY_WORDS_MAX = 40
# Beam search asks for up to BEAM times as many, in both directions: about 1,500 at so many words.
BEAM_WORDS_MAX = 25
BEAM = 5

Order = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Model:
    """What is measured of a text's logits: the calibrated probability of ``label``."""

    label: int
    temperature: float

    def probability(self, logits: Floats) -> Floats:
        """f, [...] of logits [..., labels]."""
        scaled = logits / self.temperature
        weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
        values: Floats = weights[..., self.label] / weights.sum(axis=-1)
        return values


@dataclass(frozen=True, slots=True, eq=False)
class Erasures:
    """Of each of ``orders``, [orders, FRACTIONS]: f(text) - f(text without its first words), and f(text) - f(its first words alone).

    ``flip`` [leading orders]: the share of words to erase until the answer changes, 1 if it never does. ``aopc`` [leading orders]: mean
    over all numbers of erased words of f(text) - f(rest), None for more than BEAM_WORDS_MAX words.
    """

    comprehensiveness: Floats
    sufficiency: Floats
    flip: Floats
    aopc: Floats | None


def sizes(n: int) -> list[int]:
    """How many words each of FRACTIONS is of ``n``, at least one; some may be equal."""
    # 0.1 x 30 is a little above 3.
    return [max(1, int(np.ceil(fraction * n - 1e-9))) for fraction in FRACTIONS]


def erase_in_order(orders: npt.NDArray[np.int64], flips: int, points: int, model: Model, answers: Answers) -> Steps[Erasures]:
    """Erase, and keep alone, the first words of orders (DeYoung et al. 2020, "ERASER").

    Args:
        orders: [orders, n].
        flips: of so many leading ones the flip is sought (Serrano and Smith 2019, "Is Attention Interpretable?").
        points: in so many parts a text of more than FLIP_EXACT_WORDS words is erased for it.
        model: what is measured.
        answers: what is known of this text.
    """
    count, n = orders.shape
    places = np.argsort(orders, axis=1)
    some = sizes(n)
    first = np.stack([places < size for size in some], axis=1)
    whole = np.ones((1, n), np.bool_)
    # All prefixes of the leading orders with them, so that batches are full.
    steps = np.arange(1, n + 1)[:, None]
    paths = places[:flips, None] >= steps if n <= BEAM_WORDS_MAX else np.ones((0, n, n), np.bool_)
    masks = np.concatenate([whole, (~first).reshape(-1, n), first.reshape(-1, n), paths.reshape(-1, n)])
    found = model.probability((yield from answers.ask(masks)))
    rest = found[0] - found[1:]
    erased, kept = (rest[start : start + count * len(some)].reshape(count, -1) for start in (0, count * len(some)))
    aopc = rest[2 * count * len(some) :].reshape(flips, n).mean(axis=1) if len(paths) else None
    flip = yield from _flips(places[:flips], points, model.label, answers)
    return Erasures(erased, kept, flip, aopc)


def _flips(places: npt.NDArray[np.int64], points: int, label: int, answers: Answers) -> Steps[Floats]:
    """The least share erased at which the answer is another, [orders]; orders that have flipped are asked no further."""
    count, n = places.shape
    found = np.ones(count)
    left = np.arange(count)
    grid = range(1, n + 1) if n <= FLIP_EXACT_WORDS else sorted({-(-n * point // points) for point in range(1, points + 1)})
    for size in grid:
        if not len(left):
            break
        logits = yield from answers.ask(places[left] >= size)
        flipped = logits.argmax(axis=1) != label
        found[left[flipped]] = size / n
        left = left[~flipped]
    return found


def leave_one_out(n: int, model: Model, answers: Answers) -> Steps[Floats]:
    """f(text) - f(text without the word), [n]."""
    found = model.probability((yield from answers.ask(without(n, [(), *((word,) for word in range(n))]))))
    values: Floats = found[0] - found[1:]
    return values


def tau(values: Floats, other: Floats) -> float | None:
    """Kendall's tau-b; None where it is undefined, as for fewer than two words or equal values."""
    return kendall_tau_b(values, other) if len(values) > 1 and np.ptp(values) > 0 and np.ptp(other) > 0 else None


def beam_search(n: int, width: int, worst: bool, model: Model, answers: Answers) -> Steps[tuple[Order, float]]:
    """Look for the order whose erasures lower f the most over all its lengths, or with ``worst`` the least.

    Edin et al. 2025, "Normalized AOPC". With ``width`` 1 the search is greedy.

    Returns:
        The order, and its mean of f(text) - f(rest) over all numbers of erased words.
    """
    sign = -1.0 if worst else 1.0
    text = float(model.probability((yield from answers.ask(np.ones((1, n), np.bool_))))[0])
    # Of each set of kept words the order that led there and the sum of f over its way.
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
    """The ways with the smallest sums, one to each set of words."""
    kept: dict[bytes, tuple[float, tuple[int, ...]]] = {}
    for row in np.argsort(sums, kind="stable"):
        kept.setdefault(masks[row].tobytes(), (float(sums[row]), orders[row]))
        if len(kept) == width:
            break
    return list(kept.values())
