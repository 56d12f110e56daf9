"""Aggregate the results of single texts to means with intervals. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from sentiment.explain.methods.evidence import RANDOM_SETS_MAX, Verdict
from sentiment_models.explanations.findings import (
    ATTENTION,
    ATTRIBUTION,
    BASELINE,
    CHANCE,
    KINDS,
    UNSIGNED,
    Comparison,
    Difference,
    EvidenceFound,
    Faithfulness,
    MethodFound,
)
from sentiment_models.explanations.intervals import paired_intervals
from sentiment_models.explanations.measures import sizes, tau
from sentiment_models.explanations.one_text import OperatorText, OrderText, TextFound
from sentiment_models.explanations.rankings import Scores

# Texts that move the probability by less have no normalised values, as in the service's evidence.
EFFECT_MIN = 0.05
# Closer bounds count as equal: every order does as well.
BOUNDS_MIN = 1e-6
# Decimals of all results, and of the many numbers of ``agreement``.
DIGITS, AGREEMENT_DIGITS = 5, 4
# Methods whose word scores are compared: attributions, attention, and the only baseline that scores words by their meaning.
COMPARED = tuple(name for name, kind in KINDS.items() if kind in (ATTRIBUTION, ATTENTION) or name == "lexicon")
RANDOM = "random"

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """One method with one operator, one value per text, nan where undefined. The first two columns are AOPC."""

    comprehensiveness: Column
    sufficiency: Column
    by_fraction: tuple[NDArray[np.float64], NDArray[np.float64]]
    normalised: tuple[Column, Column]
    naopc: Column
    flip: Column
    tau: Column


def methods_found(texts: Sequence[TextFound], default: str, seed: int) -> tuple[dict[str, MethodFound], tuple[Comparison, ...]]:
    """Aggregate every method, and compare the default with other attributions, attention and baselines.

    ``default_unsigned``, if there is one, is compared with attention.

    Args:
        texts: at least one.
        default: a method that the texts have.
        seed: of the intervals.
    """
    names = [name for name in KINDS if any(name in one.orders for text in texts for one in text.operators.values())]
    pairs = [(default, name) for name in names if KINDS[name] in (ATTENTION, ATTRIBUTION, BASELINE) and name not in (default, *CHANCE)]
    pairs += [(UNSIGNED, name) for name in names if KINDS[name] == ATTENTION and UNSIGNED in names]
    faithful: dict[str, dict[str, Faithfulness]] = {name: {} for name in names}
    against: dict[tuple[str, str], dict[str, Difference]] = {pair: {} for pair in pairs}
    for operator in texts[0].operators:
        found = {name: _measured([text.operators[operator] for text in texts], [text.words for text in texts], name) for name in names}
        chance = found[RANDOM]
        differences = [
            *(found[name].comprehensiveness - chance.comprehensiveness for name in names),
            *(chance.sufficiency - found[name].sufficiency for name in names),
            *(found[better].comprehensiveness - found[than].comprehensiveness for better, than in pairs),
        ]
        intervals = [_rounded(one) for one in paired_intervals(np.stack(differences, axis=1), seed)]
        for place, name in enumerate(names):
            over, under = (None, None) if name == RANDOM else (intervals[place], intervals[len(names) + place])
            faithful[name][operator] = _faithfulness(found[name], over, under)
        for pair, one in zip(pairs, intervals[2 * len(names) :], strict=True):
            if one is not None:
                against[pair][operator] = one
    methods = {name: _method(texts, name, faithful[name], seed) for name in names}
    comparisons = tuple(
        Comparison(better=better, than=than, operators=found, holds=all(one.shown > 0 for one in found.values()))
        for (better, than), found in against.items()
    )
    return methods, comparisons


def agreement(texts: Sequence[Mapping[str, Scores]]) -> dict[str, dict[str, float]]:
    """Return the mean over the texts of Kendall's tau-b between the word scores of each pair of methods; 1 for a method with itself.

    Texts where tau is undefined, such as those of one word, are left out of the mean. Pairs without any text are left out.

    Args:
        texts: the scores of each text by method.
    """
    names = [name for name in COMPARED if any(name in text for text in texts)]
    found: dict[str, dict[str, float]] = {name: {name: 1.0} for name in names}
    for first, second in combinations(names, 2):
        taus = [tau(text[first].values, text[second].values) for text in texts if first in text and second in text]
        there = [one for one in taus if one is not None]
        if there:
            found[first][second] = found[second][first] = round(float(np.mean(there)), AGREEMENT_DIGITS)
    return found


def _measured(texts: Sequence[OperatorText], words: Sequence[int], name: str) -> _Measured:
    """Return one method's columns; they are nan for texts without the method."""
    there = [(place, text, text.orders[name], words[place]) for place, text in enumerate(texts) if name in text.orders]
    places = [place for place, *_ in there]

    def column(values: Sequence[float]) -> Column:
        found = np.full(len(texts), np.nan)
        found[places] = values
        return found

    def table(values: Sequence[Sequence[float]]) -> NDArray[np.float64]:
        return np.array(values, np.float64)

    shares = [_shares(text, one, count) for _, text, one, count in there]
    return _Measured(
        comprehensiveness=column([_mean_of_sizes(one.comprehensiveness, count) for *_, one, count in there]),
        sufficiency=column([_mean_of_sizes(one.sufficiency, count) for *_, one, count in there]),
        by_fraction=(table([one.comprehensiveness for *_, one, _ in there]), table([one.sufficiency for *_, one, _ in there])),
        normalised=(column([share for share, _ in shares]), column([share for _, share in shares])),
        naopc=column([_naopc(text, one) for _, text, one, _ in there]),
        flip=column([one.flip for *_, one, _ in there]),
        tau=column([np.nan if one.tau is None else one.tau for *_, one, _ in there]),
    )


def _mean_of_sizes(values: Sequence[float], words: int) -> float:
    """Return the mean over the fractions; fractions that round to the same number of words count once."""
    return float(np.mean(list(dict(zip(sizes(words), values, strict=True)).values())))


def _shares(text: OperatorText, one: OrderText, words: int) -> tuple[float, float]:
    """Return the normalised comprehensiveness and sufficiency of a text; nan if the whole text moves f by too little."""
    effect = text.whole - text.empty
    if effect <= EFFECT_MIN:
        return np.nan, np.nan
    taken = np.clip(np.array(one.comprehensiveness) / effect, 0, 1)
    kept = np.clip(1 - np.array(one.sufficiency) / effect, 0, 1)
    return _mean_of_sizes(taken.tolist(), words), _mean_of_sizes(kept.tolist(), words)


def _naopc(text: OperatorText, one: OrderText) -> float:
    if text.low is None or text.high is None or one.aopc is None or text.high - text.low < BOUNDS_MIN:
        return np.nan
    return (one.aopc - text.low) / (text.high - text.low)


def _faithfulness(found: _Measured, over: Difference | None, under: Difference | None) -> Faithfulness:
    comprehensiveness, sufficiency = (tuple(round(float(value), DIGITS) for value in table.mean(axis=0)) for table in found.by_fraction)
    return Faithfulness(
        comprehensiveness=_mean(found.comprehensiveness) or 0.0,
        sufficiency=_mean(found.sufficiency) or 0.0,
        comprehensiveness_by_fraction=comprehensiveness,
        sufficiency_by_fraction=sufficiency,
        normalised_comprehensiveness=_mean(found.normalised[0]),
        normalised_sufficiency=_mean(found.normalised[1]),
        naopc=_mean(found.naopc),
        flip=_mean(found.flip) or 0.0,
        tau_loo=_mean(found.tau),
        over_random=over,
        under_random=under,
    )


def _method(texts: Sequence[TextFound], name: str, operators: dict[str, Faithfulness], seed: int) -> MethodFound:
    """Aggregate cost, evidence and stability of a method; ``random``, ``greedy`` and the control have orders only."""
    found = [text.methods[name] for text in texts if name in text.methods]
    shifts = [one.stability for one in found]
    changes = dict.fromkeys(change for shift in shifts for change in shift)
    residuals = [one.residual for one in found if one.residual is not None]
    return MethodFound(
        kind=KINDS[name],
        operators=operators,
        rows=round(float(np.mean([one.rows for one in found])), 1) if found else 0.0,
        ms=round(float(np.median([one.ms for one in found])), 2) if found else 0.0,
        evidence=evidence_found([(one.verdict, one.random_sets) for one in found], seed),
        stability={change: round(float(np.mean([shift[change] for shift in shifts if change in shift])), DIGITS) for change in changes}
        or None,
        residual=(_quantile(residuals, 0.5), _quantile(residuals, 0.95)) if residuals else None,
    )


def _quantile(values: Sequence[float], share: float) -> float:
    return round(float(np.quantile(values, share)), DIGITS)


def evidence_found(verdicts: Sequence[tuple[int, int]], seed: int) -> EvidenceFound | None:
    """Count the verdicts of all texts, and the share better than random among those with enough random sets that are not flat.

    Args:
        verdicts: of each text, with its number of random sets; without any the result is None.
        seed: of the interval.
    """
    if not verdicts:
        return None
    counts = {verdict: sum(one == verdict for one, _ in verdicts) for verdict in Verdict}
    tested = [one for one, sets in verdicts if one != Verdict.FLAT and sets == RANDOM_SETS_MAX]
    better = np.array([one == Verdict.BETTER_THAN_RANDOM for one in tested], np.float64)
    share = _rounded(paired_intervals(better[:, None], seed)[0]) if tested else None
    return EvidenceFound(
        better_than_random=counts[Verdict.BETTER_THAN_RANDOM],
        inconclusive=counts[Verdict.INCONCLUSIVE],
        not_faithful=counts[Verdict.NOT_FAITHFUL],
        flat=counts[Verdict.FLAT],
        tested=len(tested),
        better_of_tested=share.mean if share else None,
        better_interval=(share.low, share.high) if share else None,
    )


def _mean(values: Column) -> float | None:
    """Return the mean of the defined values, or None."""
    there = values[np.isfinite(values)]
    return round(float(there.mean()), DIGITS) if len(there) else None


def _rounded(found: Difference | None) -> Difference | None:
    if found is None:
        return None
    mean, low, high = (round(value, DIGITS) for value in (found.mean, found.low, found.high))
    return Difference(mean=mean, low=low, high=high, texts=found.texts)
