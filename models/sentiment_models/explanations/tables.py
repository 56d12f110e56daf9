"""The tables of a study of explanations, shared by the terminal and the page. Knows nothing of how they are rendered."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from sentiment_models.explanations.conclusions import DECIDING_ERASES, SIGN, VERDICT_ERASES, percent, share_of_tested, status
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
from sentiment_models.reports.report import Table

DECIDING = "deciding words"
# Heads shown in a table, those with the largest effect.
HEADS_SHOWN = 12


def faithfulness(found: DatasetFound, operator: str) -> Table:
    """Comprehensiveness and sufficiency of every method with one operator, the highest comprehensiveness first."""
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
        "Comprehensiveness: the drop in probability when the first words are erased (higher is better). Sufficiency: the drop when only "
        "they are kept (lower is better). Both are means over 1, 5, 10, 20 and 50 % of the words. Over and under random: the difference "
        "to random orders; above 0 is better. Greedy is an order searched for comprehensiveness. It covers only texts of up to 40 words, "
        "so its means are over fewer texts. Default_unsigned ranks by the absolute values of the default."
    )
    return Table(operator, header, rows, note)


def more_faithfulness(found: DatasetFound, operator: str) -> Table:
    """Further measures of each method with one operator, in the same order."""
    header = ("method", "kind", "flip", "tau LOO", "normalised comprehensiveness", "normalised sufficiency", "NAOPC")
    rows = tuple(
        (_of_texts(found, name, one), found.methods[name].kind, percent(one.flip), _told(one.tau_loo), *_normalised(one))
        for name, one in _by_comprehensiveness(found, operator)
    )
    note = (
        "Flip: the share of words to erase until the answer changes. Tau LOO: rank agreement with leave-one-out by the same operator, "
        "which favours occlusion. Normalised: as a share of the change of probability by the whole text. NAOPC: 0 for the worst and 1 "
        "for the best order that a search finds, on short texts; the only measure here that is comparable across models."
    )
    return Table(operator, header, rows, note)


def _of_texts(found: DatasetFound, name: str, one: Faithfulness) -> str:
    """Return the method's name, with the number of its texts if that is not all."""
    texts = one.over_random.texts if one.over_random else found.texts
    return name if texts == found.texts else f"{name} ({texts} texts)"


def _by_comprehensiveness(found: DatasetFound, operator: str) -> list[tuple[str, Faithfulness]]:
    there = [(name, method.operators[operator]) for name, method in found.methods.items() if operator in method.operators]
    return sorted(there, key=lambda one: -one[1].comprehensiveness)


def _normalised(one: Faithfulness) -> list[str | None]:
    return [_told(value) for value in (one.normalised_comprehensiveness, one.normalised_sufficiency, one.naopc)]


def verdicts(found: DatasetFound, operators: Sequence[str]) -> Table:
    """Which methods are better than random with every operator, and the verdicts of the service's own evidence."""
    header = ("method", "than random", "better, of tested", "better", "inconclusive", "not faithful", "flat")
    rows: list[tuple[object, ...]] = []
    for name, method in found.methods.items():
        evidence = method.evidence
        against = "itself" if name == "random" else status([one.over_random for one in method.operators.values()])
        if evidence is None:
            rows.append((name, against, *[None] * 5))
            continue
        share = share_of_tested(evidence) or None
        rows.append((name, against, share, evidence.better_than_random, evidence.inconclusive, evidence.not_faithful, evidence.flat))
    if found.deciding is not None:
        one = found.deciding
        share = share_of_tested(one) or None
        rows.append((DECIDING, None, share, one.better_than_random, one.inconclusive, one.not_faithful, one.flat))
    note = (
        f"Than random: better if the comprehensiveness is higher, with an interval above 0, for each of {', '.join(operators)}. The other "
        f"columns count verdicts of the service's own evidence. Tested: texts that are not flat and have 19 random sets. {VERDICT_ERASES}"
    )
    if found.deciding is not None:
        note += f" {DECIDING_ERASES}"
    return Table("Verdicts", header, tuple(rows), note)


def costs(found: DatasetFound) -> Table:
    """Stability, residual and cost of the methods with word scores."""
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
        "Stable: Spearman's correlation of word scores before and after a change without meaning: the first letter's case, a final full "
        f"stop, a doubled space{_unseen(found)}. Residual: the relative completeness residual of integrated gradients, median to 95th "
        "percentile. Rows: forward passes per text, one of the explain graph counted as 3. Ms: the median time per text on one core."
    )
    return Table("Stability and cost", header, tuple(rows), note)


def _unseen(found: DatasetFound) -> str:
    """Name the changes that do not change the tokens and so are not measured."""
    unseen = ", ".join(f"{change} in {texts:,} texts" for change, texts in found.unseen.items())
    return f"; changes that do not change the tokens are left out ({unseen})" if unseen else ""


def comparisons(found: DatasetFound, operators: Sequence[str]) -> Table:
    """The default compared with every other attribution, attention method and baseline; default_unsigned with attention."""
    header = ["of", "minus that of"]
    for operator in operators:
        header += [operator, "95 %"]
    rows = []
    for one in found.comparisons:
        cells = [cell for operator in operators for cell in _difference(one.operators.get(operator))]
        rows.append((one.better, one.than, *cells, {"better": "yes", "worse": "worse"}.get(status(list(one.operators.values())), "no")))
    note = (
        "Difference in comprehensiveness on the same texts. Better: the interval is above 0 with every operator. "
        "Occlusion and Shapley values erase words by attention_mask themselves, which favours them here. "
    )
    if any(one.better == UNSIGNED for one in found.comparisons):
        note += SIGN
    return Table("The default compared with the others", (*header, "better"), tuple(rows), note)


def heads(found: HeadsFound) -> Table:
    """The heads with the largest effect on the answers."""
    effect = np.array(found.effect)
    order = np.argsort(-effect, axis=None, kind="stable")[:HEADS_SHOWN]
    rows = []
    for place in order:
        layer, head = (int(one) for one in np.unravel_index(place, effect.shape))
        rows.append(
            (layer + 1, head + 1, float(effect[layer, head]), found.pattern[layer][head], percent(found.pattern_share[layer][head], 0))
        )
    note = (
        f"The {len(rows)} heads with the largest mean effect on {found.texts:,} texts. Effect: the first-order estimate of how much "
        "switching the head off moves the answer's logit. Pattern: its most frequent attention pattern, with the share of texts."
    )
    return Table("Heads", ("layer", "head", "effect", "pattern", "of texts"), tuple(rows), note)


def patterns(found: HeadsFound) -> Table:
    """The number of heads with each pattern, and the head with the largest lift."""
    counts = Counter(name for labels in found.pattern for name in labels)
    rows = []
    for name in dict.fromkeys([*found.lift, *counts]):
        lift = np.array(found.lift.get(name, [[np.nan]]))
        layer, head = (int(one) for one in np.unravel_index(lift.argmax(), lift.shape))
        clearest = (f"{layer + 1}.{head + 1}", float(lift[layer, head])) if name in found.lift else (None, None)
        rows.append((name, counts[name], *clearest))
    note = (
        "Lift: from 0 for uniform attention to 1 for a pure pattern; the mean over texts. "
        "Clearest in: the head with the largest lift, as layer.head."
    )
    return Table("Patterns", ("pattern", "heads", "clearest in", "lift"), tuple(rows), note)


def plausibility(found: PlausibilityFound) -> Table:
    """Agreement with human rationales, the best first."""
    methods = sorted(found.methods.items(), key=lambda one: -one[1].auprc)
    rows = tuple(
        (name, one.auprc, f"{one.auprc_interval[0]:.3f} to {one.auprc_interval[1]:.3f}", one.f1_at_share, one.f1_at_20)
        for name, one in methods
    )
    note = (
        f"Human rationales in {found.documents:,} reviews; they mark {percent(found.prevalence)} of the words read. AUPRC: area under the "
        "precision-recall curve. F1: for as many words as are marked, and for 20 % of the words. Scores are for the correct label. This is "
        "agreement with people, not faithfulness: a model may be right for reasons that nobody marked, and people did not mark all reasons."
    )
    return Table("Agreement with people", ("method", "AUPRC", "95 %", "F1 at marked share", "F1 at 20 %"), rows, note)


def _difference(one: Difference | None) -> tuple[str | None, str | None]:
    return (None, None) if one is None else (f"{one.mean:+.3f}", f"{one.low:+.3f} to {one.high:+.3f}")


def _told(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"
