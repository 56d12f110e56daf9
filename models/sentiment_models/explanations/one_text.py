"""All that a study measures of one text, as its journal keeps it."""

import time
from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from sentiment.explain.methods.erasure import Floats
from sentiment.explain.methods.evidence import OPERATOR, evidence
from sentiment_models.explanations.findings import ATTRIBUTION, KINDS, UNSIGNED
from sentiment_models.explanations.measures import (
    BEAM,
    BEAM_WORDS_MAX,
    FLIP_ORDERS,
    FLIP_POINTS,
    FLIP_POINTS_LONG,
    GREEDY_WORDS_MAX,
    RANDOM_ORDERS,
    RANDOM_ORDERS_LONG,
    Erasures,
    Model,
    Order,
    beam_search,
    erase_in_order,
    leave_one_out,
    tau,
)
from sentiment_models.explanations.rankings import LONG_TOKENS, Scores, WordCounts, order, scores
from sentiment_models.explanations.stability import stability
from sentiment_models.explanations.subject import Erased, Reading, Subject

# Of values in the journal: more digits than rank words, fewer than make it large.
DIGITS = 6


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class OrderText(_Part):
    """One method's order under one way of erasing; values by FRACTIONS, see ``measures.Erasures``. Of ``random`` the means over orders."""

    comprehensiveness: tuple[float, ...]
    sufficiency: tuple[float, ...]
    flip: float
    tau: float | None
    aopc: float | None


class OperatorText(_Part):
    """One way of erasing: f of the whole text and of the empty one; ``low`` and ``high``: the worst and the best order's AOPC."""

    whole: float
    empty: float
    low: float | None
    high: float | None
    orders: dict[str, OrderText]


class MethodText(_Part):
    """One method: its word scores and their cost; ``verdict`` of the service's evidence, and with how many ``random_sets``."""

    values: tuple[float, ...]
    rows: float
    ms: float
    residual: float | None
    verdict: int
    random_sets: int
    stability: dict[str, float]


class TextFound(_Part):
    """One text: ``label`` is the answer's index, ``right`` the right one's; ``seconds``: on one core."""

    words: int
    tokens: int
    label: int
    right: int
    seconds: float
    operators: dict[str, OperatorText]
    methods: dict[str, MethodText]
    # Changes that mean nothing and that the tokenizer does not see here.
    unseen: tuple[str, ...] = ()

    def scores(self) -> dict[str, Scores]:
        """The word scores, as ``rankings.scores`` gave them."""
        return {name: Scores(np.array(found.values), found.rows, found.ms / 1e3, found.residual) for name, found in self.methods.items()}


class UnsignedText(_Part):
    """The order of one text by the size of a method's scores, by way of erasing; it has no ``tau``. ``seconds``: on one core."""

    orders: dict[str, OrderText]
    seconds: float

    def added_to(self, text: TextFound) -> TextFound:
        """The text with this order among the others."""
        operators = {
            name: one.model_copy(update={"orders": {**one.orders, UNSIGNED: self.orders[name]}}) for name, one in text.operators.items()
        }
        return text.model_copy(update={"operators": operators, "seconds": text.seconds + self.seconds})


def study_unsigned(subject: Subject, reading: Reading, values: Sequence[float], seed: tuple[int, int]) -> UnsignedText:
    """Erase a text's words by the size of a method's scores [n], whatever they speak for; ``seed`` as of ``study_text``."""
    begun = time.thread_time()
    model = Model(reading.label, subject.temperature)
    points = FLIP_POINTS_LONG if reading.tokens > LONG_TOKENS else FLIP_POINTS
    sizes, orders = np.abs(np.array(values)), {}
    for number, name in enumerate(subject.operators):
        erased = reading.answers(name)
        first = order(sizes, np.random.default_rng((*seed, number)))
        orders[name] = _order_text(erased.drive(erase_in_order(first[None], 1, points, model, erased.answers)), [0], None)
    return UnsignedText(orders=orders, seconds=time.thread_time() - begun)


def study_text(
    subject: Subject,
    reading: Reading,
    right: int,
    frequencies: WordCounts,
    lexicon: WordCounts,
    own: bool,
    seed: tuple[int, int],
    closely: bool,
) -> TextFound:
    """Measure one text.

    Args:
        subject: the bundle.
        reading: the text.
        right: its right label.
        frequencies: of the study's texts.
        lexicon: of labelled texts.
        own: whether ``lexicon`` counts this text.
        seed: of the study, and the text's number.
        closely: whether its stability is measured, and how good an order could be, which take as long as all else.
    """
    begun = time.thread_time()
    label = reading.label
    found = scores(subject, reading, label, frequencies, lexicon, right if own else None, seed[0])
    operators = {}
    model = Model(label, subject.temperature)
    for number, name in enumerate(subject.operators):
        operators[name] = _operator(reading.answers(name), reading, found, model, np.random.default_rng((*seed, number)), closely)
    shifts, unseen = stability(subject, reading, found, seed[0]) if closely else ({}, ())
    drawn = np.random.default_rng((*seed, len(operators)))
    methods = {}
    for name, one in found.items():
        # The service breaks ties by place, which would make baselines of many ties the first words.
        ranks = one.values if KINDS[name] == ATTRIBUTION else _places(order(one.values, drawn))
        told = _evidence(subject, reading, name, ranks, seed[0])
        methods[name] = MethodText(
            values=_rounded(one.values),
            rows=one.rows,
            ms=1e3 * one.seconds,
            residual=one.residual,
            verdict=told[0],
            random_sets=told[1],
            stability=shifts.get(name, {}),
        )
    seconds = time.thread_time() - begun
    return TextFound(
        words=reading.count,
        tokens=reading.tokens,
        label=label,
        right=right,
        seconds=seconds,
        operators=operators,
        methods=methods,
        unseen=unseen,
    )


def _evidence(subject: Subject, reading: Reading, method: str, values: Floats, seed: int) -> tuple[int, int]:
    """The verdict that the service would give, and its random sets."""
    erased = reading.answers(OPERATOR)
    told = erased.drive(evidence(reading.count, values, reading.label, subject.temperature, erased.answers, method=method, seed=seed))
    return int(told.verdict), told.random_sets


def _operator(
    erased: Erased, reading: Reading, found: dict[str, Scores], model: Model, rng: np.random.Generator, closely: bool
) -> OperatorText:
    """Every method's order, random orders and the bounds under one way of erasing."""
    n, long, answers = reading.count, reading.tokens > LONG_TOKENS, erased.answers
    points = FLIP_POINTS_LONG if long else FLIP_POINTS
    ends = model.probability(erased.logits(np.array([[True] * n, [False] * n])))
    loo = _leave_one_out(erased, reading, found, model)
    orders = {name: order(one.values, rng) for name, one in found.items()}
    taus = {name: _tau(one.values, loo) for name, one in found.items()}
    low = high = None
    if closely and n <= BEAM_WORDS_MAX:
        (_, low), (_, high) = (erased.drive(beam_search(n, BEAM, worst, model, answers)) for worst in (True, False))
    if closely and n <= GREEDY_WORDS_MAX:
        orders["greedy"], _ = erased.drive(beam_search(n, 1, False, model, answers))
        taus["greedy"] = _tau(_places(orders["greedy"]), loo)
    measured = erased.drive(erase_in_order(np.stack(list(orders.values())), len(orders), points, model, answers))
    texts = {name: _order_text(measured, [row], taus[name]) for row, name in enumerate(orders)}
    drawn = np.stack([rng.permutation(n) for _ in range(RANDOM_ORDERS_LONG if long else RANDOM_ORDERS)])
    chance = erased.drive(erase_in_order(drawn, FLIP_ORDERS, points, model, answers))
    known = [value for one in drawn if (value := _tau(_places(one), loo)) is not None]
    texts["random"] = _order_text(chance, list(range(len(drawn))), float(np.mean(known)) if known else None)
    return OperatorText(whole=float(ends[0]), empty=float(ends[1]), low=low, high=high, orders=texts)


def _leave_one_out(erased: Erased, reading: Reading, found: dict[str, Scores], model: Model) -> Floats | None:
    """Of long texts, where a row a word is most of all, that of the occlusion that is there, in logits; by another way of erasing none."""
    if reading.tokens <= LONG_TOKENS:
        return erased.drive(leave_one_out(reading.count, model, erased.answers))
    return found["occlusion"].values if erased.operator == OPERATOR else None


def _tau(values: Floats, loo: Floats | None) -> float | None:
    return None if loo is None else tau(values, loo)


def _places(order: Order) -> Floats:
    """Scores [n] that rank words in this order."""
    return -np.argsort(order).astype(np.float64)


def _order_text(found: Erasures, rows: list[int], agreement: float | None) -> OrderText:
    """The mean over some orders; the flip and the AOPC over those of them that have one."""
    some = [row for row in rows if row < len(found.flip)]
    return OrderText(
        comprehensiveness=_rounded(found.comprehensiveness[rows].mean(axis=0)),
        sufficiency=_rounded(found.sufficiency[rows].mean(axis=0)),
        flip=float(found.flip[some].mean()),
        tau=agreement,
        aopc=None if found.aopc is None else float(found.aopc[some].mean()),
    )


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)
