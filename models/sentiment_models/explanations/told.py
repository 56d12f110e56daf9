"""What a study found of one file, in plain sentences: what holds, and what does not. Pure."""

from collections.abc import Sequence

from sentiment_models.explanations.findings import (
    ATTENTION,
    ATTRIBUTION,
    BASELINE,
    CHANCE,
    KINDS,
    UNSIGNED,
    Comparison,
    DatasetFound,
    Difference,
    EvidenceFound,
)

# What the service's default is meant to reach: better than random on so many of the texts that can tell.
BETTER_AIM = 0.9
SIGN = (
    "Attributions have a sign, so that words that speak against the answer are erased last; rankings by attention but rollout_gradient "
    "have none and erase those, too. Part of a lead over them is that alone: default_unsigned ranks by the size of the default's values."
)
VERDICT_ERASES = "The verdict erases words by attention_mask, which is how occlusion and shapley score them."


def in_words(found: DatasetFound, default: str, operators: Sequence[str]) -> list[str]:
    """Say of the default attribution what it beats and what not, and of the others whether they beat chance.

    Args:
        found: of one file, with ``default`` among its methods.
        default: the attribution that is served first.
        operators: the ways of erasing.
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
    """The comparisons of one method with those of a kind."""
    return [one for one in found.comparisons if one.better == method and KINDS.get(one.than) == kind]


def by_status(rivals: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """Comparisons that are "better", "worse" and "unclear" by ``status``."""
    return {wanted: [one for one in rivals if status(list(one.operators.values())) == wanted] for wanted in ("better", "worse", "unclear")}


def aim(told: EvidenceFound) -> str:
    """Tell whether the share of texts that are better than random is at least BETTER_AIM: "reached" or "missed" if its interval is."""
    low, high = told.better_interval or (0.0, 1.0)
    return "reached" if low >= BETTER_AIM else "missed" if high < BETTER_AIM else "open"


def status(differences: Sequence[Difference | None]) -> str:
    """Tell "better" or "worse" if every difference is clear and of that sign, else "unclear"."""
    if differences and all(one is not None and one.low > 0 for one in differences):
        return "better"
    return "worse" if differences and all(one is not None and one.high < 0 for one in differences) else "unclear"


def signed(one: Difference, digits: int = 3) -> str:
    """A difference with its interval."""
    mean, low, high = (f"{value:+.{digits}f}" for value in (one.mean, one.low, one.high))
    return f"{mean} ({low} to {high})"


def percent(share: float, digits: int = 1) -> str:
    """A share as people write it."""
    return f"{100 * share:.{digits}f} %"


def _over(found: DatasetFound, method: str, operators: Sequence[str]) -> list[Difference | None]:
    told = found.methods[method].operators
    return [told[operator].over_random if operator in told else None for operator in operators]


def _figures(differences: Sequence[Difference | None], operators: Sequence[str]) -> str:
    return ", ".join(f"by {operator} {signed(one)}" for operator, one in zip(operators, differences, strict=True) if one is not None)


def _ways(operators: Sequence[str]) -> str:
    return "both ways" if len(operators) == 2 else f"all {len(operators)} ways" if len(operators) > 1 else "the one way"


def _over_chance(found: DatasetFound, default: str, operators: Sequence[str]) -> str:
    differences = _over(found, default, operators)
    says = {
        "better": f"{default}, the default, beats random orders under {_ways(operators)} of erasing: its first words take more of the "
        "probability when they are erased",
        "worse": f"{default}, the default, does worse than random orders under {_ways(operators)} of erasing: its first words take less of "
        "the probability when they are erased",
        "unclear": f"{default}, the default, is not shown to beat random orders under {_ways(operators)} of erasing; what its first words "
        "take of the probability, less what random ones do",
    }[status(differences)]
    return f"{says}: {_figures(differences, operators)}."


def _keeping(found: DatasetFound, default: str, operators: Sequence[str]) -> str:
    told = found.methods[default].operators
    differences = [told[operator].under_random if operator in told else None for operator in operators]
    says = {
        "better": "Kept alone, its first words also keep more of the probability than random ones",
        "worse": "Kept alone, its first words keep less of the probability than random ones",
        "unclear": "Kept alone, its first words are not shown to keep more of the probability than random ones",
    }[status(differences)]
    return f"{says}: {_figures(differences, operators)}."


def _against(default: str, rivals: Sequence[Comparison], called: str) -> str:
    """One sentence over all methods of a kind."""
    beaten, worse, unclear = by_status(rivals).values()
    if len(beaten) == len(rivals):
        return f"{default} beats every {called} method by every way of erasing: {_names(beaten)}."
    parts = [f"beats {_names(beaten)}"] if beaten else []
    parts += [f"does not clearly beat {_names(unclear, figures=True)}"] if unclear else []
    parts += [f"does worse than {_names(worse, figures=True)}"] if worse else []
    return f"Of {called} methods {default} {'; it '.join(parts)}."


def _names(comparisons: Sequence[Comparison], figures: bool = False) -> str:
    if not figures:
        return ", ".join(one.than for one in comparisons)
    return ", ".join(f"{one.than} [{_figures(list(one.operators.values()), list(one.operators))}]" for one in comparisons)


def _not_over_chance(found: DatasetFound, default: str, operators: Sequence[str]) -> list[str]:
    """Methods that are no better than orders at random by some way of erasing."""
    told = [name for name, method in found.methods.items() if method.kind in (ATTENTION, ATTRIBUTION) and name != default]
    unclear, worse = ([name for name in told if status(_over(found, name, operators)) == wanted] for wanted in ("unclear", "worse"))
    lines = [f"Not shown to be better than random orders by every way of erasing: {', '.join(unclear)}."] if unclear else []
    return lines + ([f"Worse than random orders by every way of erasing: {', '.join(worse)}."] if worse else [])


def _baselines(found: DatasetFound, default: str, operators: Sequence[str]) -> list[str]:
    """The best of the baselines that know nothing of this model."""
    known = [name for name, method in found.methods.items() if method.kind == BASELINE and name not in CHANCE]
    if not known:
        return []

    def taken(name: str) -> list[float]:
        return [found.methods[name].operators[operator].comprehensiveness for operator in operators]

    best = max(known, key=lambda name: sum(taken(name)))
    theirs, ours = (" and ".join(f"{value:.3f}" for value in taken(name)) for name in (best, default))
    return [f"The best baseline that does not ask the model is {best}: comprehensiveness {theirs}, that of {default} {ours}."]


def _evidence(found: DatasetFound, default: str) -> list[str]:
    told = found.methods[default].evidence
    if told is None or told.better_of_tested is None:
        return ["No text could tell the best order from chance with the service's own evidence: all were flat or too short."]
    whether = {"reached": "is reached", "missed": "is missed", "open": "lies within that: neither is shown"}[aim(told)]
    return [
        f"The service's own evidence calls {default} better than random on {share_of_tested(told)} of the {told.tested:,} texts that are "
        f"not flat and have 19 random sets; the aim of {percent(BETTER_AIM, 0)} {whether}. {VERDICT_ERASES}"
    ]


def share_of_tested(told: EvidenceFound) -> str:
    """The share of tested texts that are better than random, with its interval; empty where none was tested."""
    if told.better_of_tested is None:
        return ""
    interval = f" ({' to '.join(percent(one) for one in told.better_interval)})" if told.better_interval else ""
    return percent(told.better_of_tested) + interval
