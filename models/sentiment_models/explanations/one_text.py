"""All measurements of one text in a study, in the form that the journal stores."""

import time
from collections.abc import Sequence

import numpy as np

from sentiment.explain.engine.attributions import DECIDING_TOKENS_MAX
from sentiment.explain.methods import deciding
from sentiment.explain.methods.erasure import Floats
from sentiment.explain.methods.evidence import OPERATOR, Verdict, evidence
from sentiment.explain.wording import EVIDENCE_WORDS_MIN
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
from sentiment_models.stored import Stored

# Significant digits of values in the journal: enough to rank words, few enough to keep the file small.
DIGITS = 6


class OrderText(Stored):
    """One method's order with one operator; values by FRACTIONS, see ``measures.Erasures``. For ``random``: means over the orders."""

    comprehensiveness: tuple[float, ...]
    sufficiency: tuple[float, ...]
    flip: float
    tau: float | None
    aopc: float | None


class OperatorText(Stored):
    """One operator: f of the whole text and of the empty one. ``low`` and ``high``: the AOPC of the worst and the best order."""

    whole: float
    empty: float
    low: float | None
    high: float | None
    orders: dict[str, OrderText]


class MethodText(Stored):
    """One method: word scores, their cost, and the ``verdict`` of the service's evidence with its number of ``random_sets``."""

    values: tuple[float, ...]
    rows: float
    ms: float
    residual: float | None
    verdict: int
    random_sets: int
    stability: dict[str, float]


class TextFound(Stored):
    """One text. ``label``: index of the answer; ``right``: index of the correct label; ``seconds``: time on one core."""

    words: int
    tokens: int
    label: int
    right: int
    seconds: float
    operators: dict[str, OperatorText]
    methods: dict[str, MethodText]
    # Changes without meaning that do not change the tokens of this text.
    unseen: tuple[str, ...] = ()
    # The verdict of the service's deciding words, and its number of random sets; None if it would not search for them.
    deciding: tuple[int, int] | None = None

    def scores(self) -> dict[str, Scores]:
        """Return the word scores, as from ``rankings.scores``."""
        return {name: Scores(np.array(found.values), found.rows, found.ms / 1e3, found.residual) for name, found in self.methods.items()}


class UnsignedText(Stored):
    """The order of one text by the absolute scores of a method, by operator, without ``tau``. ``seconds``: time on one core."""

    orders: dict[str, OrderText]
    seconds: float

    def added_to(self, text: TextFound) -> TextFound:
        """Return the text with this order added to the others."""
        operators = {
            name: one.model_copy(update={"orders": {**one.orders, UNSIGNED: self.orders[name]}}) for name, one in text.operators.items()
        }
        return text.model_copy(update={"operators": operators, "seconds": text.seconds + self.seconds})


def study_unsigned(subject: Subject, reading: Reading, values: Sequence[float], seed: tuple[int, int]) -> UnsignedText:
    """Erase a text's words in order of a method's absolute scores [n]; ``seed`` as in ``study_text``."""
    begun = time.thread_time()
    model = Model(reading.target(), subject.temperature)
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
    methods: Sequence[str] | None = None,
) -> TextFound:
    """Measure one text.

    Args:
        subject: the bundle.
        reading: the text.
        right: its correct label.
        frequencies: word counts of the study's texts.
        lexicon: word counts of labelled texts.
        own: whether ``lexicon`` includes this text.
        seed: the study's seed and the index of the text.
        closely: also measure stability and the bounds of orders, which takes as long as everything else.
        methods: the attributions, that of the deciding words first; None: all that the bundle offers.
    """
    begun = time.thread_time()
    target = reading.target()
    methods = methods or subject.explainer.methods
    found = scores(subject, reading, target, frequencies, lexicon, right if own else None, seed[0], methods)
    operators = {}
    model = Model(target, subject.temperature)
    for number, name in enumerate(subject.operators):
        operators[name] = _operator(reading.answers(name), reading, found, model, np.random.default_rng((*seed, number)), closely)
    shifts, unseen = stability(subject, reading, found, seed[0]) if closely else ({}, ())
    drawn = np.random.default_rng((*seed, len(operators)))
    measured = {}
    for name, one in found.items():
        # The service breaks ties by position, so baselines with many ties would rank the first words first.
        ranks = one.values if KINDS[name] == ATTRIBUTION else _places(order(one.values, drawn))
        verdict, random_sets = _evidence(subject, reading, name, ranks, seed[0])
        measured[name] = MethodText(
            values=_rounded(one.values),
            rows=one.rows,
            ms=1e3 * one.seconds,
            residual=one.residual,
            verdict=verdict,
            random_sets=random_sets,
            stability=shifts.get(name, {}),
        )
    searched = _deciding(subject, reading, found[methods[0]].values, measured[methods[0]].verdict, seed[0])
    seconds = time.thread_time() - begun
    return TextFound(
        words=reading.count,
        tokens=reading.tokens,
        label=target.label,
        right=right,
        seconds=seconds,
        operators=operators,
        methods=measured,
        unseen=unseen,
        deciding=searched,
    )


def _evidence(subject: Subject, reading: Reading, method: str, values: Floats, seed: int) -> tuple[int, int]:
    """Return the verdict that the service would give, and its number of random sets."""
    erased = reading.answers(OPERATOR)
    found = erased.drive(evidence(reading.count, values, reading.target(), subject.temperature, erased.answers, method=method, seed=seed))
    return int(found.verdict), found.random_sets


def _deciding(subject: Subject, reading: Reading, values: Floats, verdict: int, seed: int) -> tuple[int, int] | None:
    """As ``_evidence``, of the words that the service would search for as deciding."""
    if subject.mask_id is None or reading.count < EVIDENCE_WORDS_MIN or reading.tokens > DECIDING_TOKENS_MAX or verdict == Verdict.FLAT:
        return None
    target, erased, others = reading.target(), reading.answers(OPERATOR), reading.answers(deciding.OPERATOR)
    words = erased.drive(deciding.search(reading.count, values, target, erased.answers))
    found = others.drive(deciding.compare(reading.count, words, target, subject.temperature, erased.answers, others.answers, seed))
    return int(found.verdict), found.random_sets


def _operator(
    erased: Erased, reading: Reading, found: dict[str, Scores], model: Model, rng: np.random.Generator, closely: bool
) -> OperatorText:
    """Measure every method's order, random orders and the bounds with one operator."""
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
    """Return leave-one-out values. Long texts, where a row per word is too costly, reuse occlusion (in logits), or have none."""
    if reading.tokens <= LONG_TOKENS:
        return erased.drive(leave_one_out(reading.count, model, erased.answers))
    return found["occlusion"].values if erased.operator == OPERATOR and "occlusion" in found else None


def _tau(values: Floats, loo: Floats | None) -> float | None:
    return None if loo is None else tau(values, loo)


def _places(order: Order) -> Floats:
    """Return scores [n] that rank the words in this order."""
    return -np.argsort(order).astype(np.float64)


def _order_text(found: Erasures, rows: list[int], agreement: float | None) -> OrderText:
    """Return the means over some orders; those of the flip and the AOPC over the orders that have them."""
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
