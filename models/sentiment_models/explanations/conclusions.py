"""The conclusions of a study of one file, in sentences. Pure."""

from collections.abc import Sequence

from sentiment_models.explanations.findings import (
    ATTENTION,
    ATTRIBUTION,
    BASELINE,
    CHANCE,
    KINDS,
    TEXTS_MIN,
    UNSIGNED,
    Comparison,
    DatasetFound,
    Difference,
    EvidenceFound,
)

# The target for the default: the share of tested texts on which its ranking is better than random.
BETTER_AIM = 0.9
SIGN = (
    "Attributions have a sign, so words against the answer are erased last. Attention rankings except rollout_gradient have no sign and "
    "erase such words too, which explains a part of their deficit. For comparison, default_unsigned ranks by the absolute values of the "
    "default."
)
VERDICT_ERASES = "The verdict erases words by attention_mask, as occlusion and shapley do."
DECIDING_ERASES = "Deciding words are searched by attention_mask, and their verdict erases them by mask_token and by deletion."


def in_words(found: DatasetFound, default: str, operators: Sequence[str]) -> list[str]:
    """Say which methods the default attribution beats, and whether the others beat random orders.

    Args:
        found: the study of one file, with ``default`` among its methods.
        default: the default attribution.
        operators: the operators of the study.
    """
    sentences = [_over_chance(found, default, operators), _keeping(found, default, operators)]
    for kind, called in ((ATTENTION, "attention"), (ATTRIBUTION, "other attribution"), (BASELINE, "baseline")):
        rivals = against(found, default, kind)
        if rivals:
            sentences.append(_against(default, rivals, called))
    unsigned = against(found, UNSIGNED, ATTENTION)
    if unsigned:
        sentences += [SIGN, _against(UNSIGNED, unsigned, "attention")]
    sentences += [*_not_over_chance(found, default, operators), *_baselines(found, default, operators), *_evidence(found, default)]
    return sentences


def against(found: DatasetFound, method: str, kind: str) -> list[Comparison]:
    """Return the comparisons of one method with the methods of a kind."""
    return [one for one in found.comparisons if one.better == method and KINDS.get(one.than) == kind]


def by_status(rivals: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """Group comparisons into "better", "worse" and "unclear" by ``status``."""
    return {group: [one for one in rivals if status(list(one.operators.values())) == group] for group in ("better", "worse", "unclear")}


def aim(evidence: EvidenceFound) -> str:
    """Compare the share of texts better than random with BETTER_AIM: "reached" or "missed" if its whole interval is, else "open".

    It is open with fewer than TEXTS_MIN texts, too.
    """
    if evidence.tested < TEXTS_MIN or evidence.better_interval is None:
        return "open"
    low, high = evidence.better_interval
    return "reached" if low >= BETTER_AIM else "missed" if high < BETTER_AIM else "open"


def status(differences: Sequence[Difference | None]) -> str:
    """Return "better" or "worse" if every difference is shown to be above or below 0, else "unclear"."""
    if differences and all(one is not None and one.shown > 0 for one in differences):
        return "better"
    return "worse" if differences and all(one is not None and one.shown < 0 for one in differences) else "unclear"


def signed(one: Difference, digits: int = 3) -> str:
    """Format a difference with its interval."""
    mean, low, high = (f"{value:+.{digits}f}" for value in (one.mean, one.low, one.high))
    return f"{mean} ({low} to {high})"


def percent(share: float, digits: int = 1) -> str:
    """Format a share in per cent."""
    return f"{100 * share:.{digits}f} %"


def _random(found: DatasetFound, method: str, operators: Sequence[str], side: str = "over") -> list[Difference | None]:
    by_operator = found.methods[method].operators
    return [getattr(by_operator[operator], f"{side}_random") if operator in by_operator else None for operator in operators]


def _figures(differences: Sequence[Difference | None], operators: Sequence[str]) -> str:
    return ", ".join(f"by {operator} {signed(one)}" for operator, one in zip(operators, differences, strict=True) if one is not None)


def _all(operators: Sequence[str]) -> str:
    return "both operators" if len(operators) == 2 else f"all {len(operators)} operators" if len(operators) > 1 else "the operator"


def _over_chance(found: DatasetFound, default: str, operators: Sequence[str]) -> str:
    differences = _random(found, default, operators)
    says = {
        "better": f"{default}, the default, beats random orders with {_all(operators)}: erasing its first words lowers the probability "
        "more than erasing random words",
        "worse": f"{default}, the default, does worse than random orders with {_all(operators)}: erasing its first words lowers the "
        "probability less than erasing random words",
        "unclear": f"{default}, the default, is not shown to beat random orders with {_all(operators)}; the drop in probability, minus "
        "that of random words",
    }[status(differences)]
    return f"{says}: {_figures(differences, operators)}."


def _keeping(found: DatasetFound, default: str, operators: Sequence[str]) -> str:
    differences = _random(found, default, operators, "under")
    says = {
        "better": "Kept alone, its first words keep more of the probability than random ones",
        "worse": "Kept alone, its first words keep less of the probability than random ones",
        "unclear": "Kept alone, its first words are not shown to keep more of the probability than random ones",
    }[status(differences)]
    return f"{says}: {_figures(differences, operators)}."


def _against(default: str, rivals: Sequence[Comparison], called: str) -> str:
    """Return one sentence on all methods of a kind."""
    beaten, worse, unclear = by_status(rivals).values()
    if len(beaten) == len(rivals):
        return f"{default} beats every {called} method with every operator: {_names(beaten)}."
    parts = [f"beats {_names(beaten)}"] if beaten else []
    parts += [f"does not clearly beat {_names(unclear, figures=True)}"] if unclear else []
    parts += [f"does worse than {_names(worse, figures=True)}"] if worse else []
    return f"Compared with {called} methods, {default} {'; it '.join(parts)}."


def _names(comparisons: Sequence[Comparison], figures: bool = False) -> str:
    if not figures:
        return ", ".join(one.than for one in comparisons)
    return ", ".join(f"{one.than} [{_figures(list(one.operators.values()), list(one.operators))}]" for one in comparisons)


def _not_over_chance(found: DatasetFound, default: str, operators: Sequence[str]) -> list[str]:
    """Name the methods that are not better than random orders."""
    others = [name for name, method in found.methods.items() if method.kind in (ATTENTION, ATTRIBUTION) and name != default]
    unclear, worse = ([name for name in others if status(_random(found, name, operators)) == group] for group in ("unclear", "worse"))
    lines = [f"Not shown to be better than random orders with every operator: {', '.join(unclear)}."] if unclear else []
    return lines + ([f"Worse than random orders with every operator: {', '.join(worse)}."] if worse else [])


def _baselines(found: DatasetFound, default: str, operators: Sequence[str]) -> list[str]:
    """Name the best baseline that does not use the model."""
    known = [name for name, method in found.methods.items() if method.kind == BASELINE and name not in CHANCE]
    if not known:
        return []

    def taken(name: str) -> list[float]:
        return [found.methods[name].operators[operator].comprehensiveness for operator in operators]

    best = max(known, key=lambda name: sum(taken(name)))
    theirs, ours = (" and ".join(f"{value:.3f}" for value in taken(name)) for name in (best, default))
    return [f"The best baseline that does not use the model is {best}: comprehensiveness {theirs}; {default}: {ours}."]


def _evidence(found: DatasetFound, default: str) -> list[str]:
    evidence = found.methods[default].evidence
    if evidence is None or evidence.better_of_tested is None:
        return ["The service's own evidence could not test any text: all were flat or too short."]
    whether = {"reached": "is reached", "missed": "is missed", "open": "is neither shown to be reached nor to be missed"}[aim(evidence)]
    said = [
        f"The service's own evidence rates {default} better than random on {share_of_tested(evidence)} of the {evidence.tested:,} texts "
        f"that are not flat and have 19 random sets. The target of {percent(BETTER_AIM, 0)} {whether}. {VERDICT_ERASES}"
    ]
    searched = found.deciding
    if searched is not None and searched.better_of_tested is not None:
        said.append(
            f"The deciding words are better than random on {share_of_tested(searched)} of the {searched.tested:,} texts where they can be "
            f"tested. {DECIDING_ERASES}"
        )
    return said


def share_of_tested(evidence: EvidenceFound) -> str:
    """Format the share of tested texts with a ranking better than random, with its interval; empty if none was tested."""
    if evidence.better_of_tested is None:
        return ""
    interval = f" ({' to '.join(percent(one) for one in evidence.better_interval)})" if evidence.better_interval else ""
    return percent(evidence.better_of_tested) + interval
