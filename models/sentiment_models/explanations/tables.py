"""A study of explanations laid out as tables: the same for the terminal and the page. Knows nothing of how they are drawn."""

from collections.abc import Sequence

import numpy as np

from sentiment_models.evaluation.tables import Table
from sentiment_models.explanations.findings import (
    BOUND,
    CONTROL,
    UNSIGNED,
    DatasetFound,
    Difference,
    Faithfulness,
    HeadsFound,
    PlausibilityFound,
)
from sentiment_models.explanations.told import SIGN, VERDICT_ERASES, percent, share_of_tested, status

# Heads that a table shows, those that the answers hang on most.
HEADS_SHOWN = 12


def faithfulness(found: DatasetFound, operator: str) -> Table:
    """Comprehensiveness and sufficiency of every method under one way of erasing, the most comprehensive first."""
    header = ("method", "comprehensiveness", "over random", "95 %", "sufficiency", "under random", "95 %")
    rows = tuple(
        (
            _of_texts(found, name, one),
            _told(one.comprehensiveness),
            *_difference(one.over_random),
            _told(one.sufficiency),
            *_difference(one.under_random),
        )
        for name, one in _by_comprehensiveness(found, operator)
    )
    note = (
        "Comprehensiveness: what erasing the first words takes of the probability (higher is better); sufficiency: what keeping only them "
        "takes (lower is better); means over 1, 5, 10, 20 and 50 % of the words. Beside each the difference to orders at random, above 0 "
        "being better. Greedy, an order searched for comprehensiveness, is of texts of up to 40 words alone, whose number it tells: it "
        "stands beside means over others. Default_unsigned ranks by the size of the default's values."
    )
    return Table(operator, header, rows, note)


def more_faithfulness(found: DatasetFound, operator: str) -> Table:
    """What else there is of each method under one way of erasing, in the same order."""
    header = ("method", "kind", "flip", "tau LOO", "normalised comprehensiveness", "normalised sufficiency", "NAOPC")
    rows = tuple(
        (_of_texts(found, name, one), found.methods[name].kind, percent(one.flip), _told(one.tau_loo), *_normalised(one))
        for name, one in _by_comprehensiveness(found, operator)
    )
    note = (
        "Flip: the share of words to erase until the answer changes. Tau LOO: rank agreement with leaving one word out by the same way of "
        "erasing, which favours occlusion. Normalised: as shares of what the whole text moves the probability by. NAOPC: 0 for the worst "
        "and 1 for the best order that a search finds, of short texts; of all these it alone compares across models."
    )
    return Table(operator, header, rows, note)


def _of_texts(found: DatasetFound, name: str, one: Faithfulness) -> str:
    """The method's name, with its number of texts where that is not all."""
    texts = one.over_random.texts if one.over_random else found.texts
    return name if texts == found.texts else f"{name} ({texts} texts)"


def _by_comprehensiveness(found: DatasetFound, operator: str) -> list[tuple[str, Faithfulness]]:
    there = [(name, method.operators[operator]) for name, method in found.methods.items() if operator in method.operators]
    return sorted(there, key=lambda one: -one[1].comprehensiveness)


def _normalised(one: Faithfulness) -> list[str | None]:
    return [_told(value) for value in (one.normalised_comprehensiveness, one.normalised_sufficiency, one.naopc)]


def verdicts(found: DatasetFound, operators: Sequence[str]) -> Table:
    """Which methods are better than random under every way of erasing, and what the service's own evidence says text by text."""
    header = ("method", "than random", "better, of tested", "better", "inconclusive", "not faithful", "flat")
    rows: list[tuple[object, ...]] = []
    for name, method in found.methods.items():
        told = method.evidence
        against = "itself" if name == "random" else status([one.over_random for one in method.operators.values()])
        if told is None:
            rows.append((name, against, *[None] * 5))
            continue
        share = share_of_tested(told) or None
        rows.append((name, against, share, told.better_than_random, told.inconclusive, told.not_faithful, told.flat))
    note = (
        f"Better than random: comprehensiveness is, clear of 0, under each of {', '.join(operators)}. Then the verdicts that the service "
        f"itself would give text by text; of tested: of texts that are not flat and have 19 random sets. {VERDICT_ERASES}"
    )
    return Table("Verdicts", header, tuple(rows), note)


def costs(found: DatasetFound) -> Table:
    """How stable word scores are, what integrated gradients miss, and what a text takes; of methods that have scores."""
    changes = list(dict.fromkeys(change for method in found.methods.values() for change in method.stability or {}))
    header = ("method", *(f"stable: {change}" for change in changes), "residual", "rows", "ms")
    rows = []
    for name, method in found.methods.items():
        if method.kind in (BOUND, CONTROL) or name == "random":
            continue
        stable = [_told((method.stability or {}).get(change)) for change in changes]
        residual = None if method.residual is None else f"{method.residual[0]:.3f} to {method.residual[1]:.3f}"
        rows.append((name, *stable, residual, f"{method.rows:.1f}", f"{method.ms:.1f}"))
    note = (
        "Stable: Spearman's correlation of word scores before and after a change that means nothing: the first letter's case, a final full "
        f"stop, a doubled space{_unseen(found)}. Residual: what is missing from the sum of integrated gradients, in parts of it, median to "
        "95th percentile. Rows: forward passes a text, one of the explain graph counted as 3. Ms: the median time of a text on one core."
    )
    return Table("Stability and cost", header, tuple(rows), note)


def _unseen(found: DatasetFound) -> str:
    """What the tokenizer does not see cannot move anything, and is told apart."""
    told = ", ".join(f"{change} in {texts:,} texts" for change, texts in found.unseen.items())
    return f"; left out is what the tokenizer does not see ({told})" if told else ""


def comparisons(found: DatasetFound, operators: Sequence[str]) -> Table:
    """The default against every other attribution, attention method and baseline, and its order by size against attention."""
    header = ["of", "less that of"]
    for operator in operators:
        header += [operator, "95 %"]
    rows = []
    for one in found.comparisons:
        told = [cell for operator in operators for cell in _difference(one.operators.get(operator))]
        rows.append((one.better, one.than, *told, {"better": "yes", "worse": "worse"}.get(status(list(one.operators.values())), "no")))
    note = (
        "Comprehensiveness on the same texts. It is better only if the interval is above 0 by every way of erasing. "
        "Occlusion and Shapley values are themselves made by erasing words, by attention_mask, which favours them here. "
    )
    if any(one.better == UNSIGNED for one in found.comparisons):
        note += SIGN
    return Table("The default against the others", (*header, "better"), tuple(rows), note)


def heads(found: HeadsFound) -> Table:
    """The heads that the answers hang on most."""
    effect = np.array(found.effect)
    order = np.argsort(-effect, axis=None, kind="stable")[:HEADS_SHOWN]
    rows = []
    for place in order:
        layer, head = (int(one) for one in np.unravel_index(place, effect.shape))
        rows.append(
            (layer + 1, head + 1, float(effect[layer, head]), found.pattern[layer][head], percent(found.pattern_share[layer][head], 0))
        )
    note = (
        f"The {len(rows)} heads with the largest mean effect over {found.texts:,} texts: how much switching the head off would move the "
        "answer's logit, estimated to the first order. Beside it the pattern in which it looks most often, and on what share of the texts."
    )
    return Table("Heads", ("layer", "head", "effect", "pattern", "of texts"), tuple(rows), note)


def patterns(found: HeadsFound) -> Table:
    """How many heads show each pattern, and the one that does most."""
    counts: dict[str, int] = {}
    for labels in found.pattern:
        for name in labels:
            counts[name] = counts.get(name, 0) + 1
    rows = []
    for name in [*found.lift, *(one for one in counts if one not in found.lift)]:
        lift = np.array(found.lift.get(name, [[np.nan]]))
        layer, head = (int(one) for one in np.unravel_index(lift.argmax(), lift.shape))
        clearest = (f"{layer + 1}.{head + 1}", float(lift[layer, head])) if name in found.lift else (None, None)
        rows.append((name, counts.get(name, 0), *clearest))
    note = (
        "Lift: 0 for a head that looks everywhere alike, 1 for one that shows the pattern and nothing else; the mean over texts. "
        "Beside it the head, as layer.head, where it is largest."
    )
    return Table("Patterns", ("pattern", "heads that mostly show it", "clearest in", "lift"), tuple(rows), note)


def plausibility(found: PlausibilityFound) -> Table:
    """Agreement with what people marked, the best first."""
    methods = sorted(found.methods.items(), key=lambda one: -one[1].auprc)
    rows = tuple(
        (name, one.auprc, f"{one.auprc_interval[0]:.3f} to {one.auprc_interval[1]:.3f}", one.f1_at_share, one.f1_at_20)
        for name, one in methods
    )
    note = (
        f"Reasons that people marked in {found.documents:,} reviews, {percent(found.prevalence)} of the words read. AUPRC: area under the "
        "precision-recall curve. F1 of taking as many words as are marked, and 20 %. Scores are towards the right label. This is agreement "
        "with people, not faithfulness: a model may be right for reasons that nobody marked, and people did not mark all of theirs."
    )
    return Table("Agreement with people", ("method", "AUPRC", "95 %", "F1 at their share", "F1 at 20 %"), rows, note)


def _difference(one: Difference | None) -> tuple[str | None, str | None]:
    return (None, None) if one is None else (f"{one.mean:+.3f}", f"{one.low:+.3f} to {one.high:+.3f}")


def _told(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"
