"""What the model card says of explanations: how far each way of ranking words can be trusted, in a table and in plain words.

Nothing here is written by hand, and what does not hold is said as plainly as what does.
"""

from collections.abc import Iterator, Sequence

from sentiment.files.html_report import markdown
from sentiment_models.explanations.findings import (
    ATTENTION,
    ATTRIBUTION,
    BASELINE,
    CONTROL,
    UNSIGNED,
    AttentionFound,
    DatasetFound,
    Difference,
    Findings,
)
from sentiment_models.explanations.told import BETTER_AIM, SIGN, VERDICT_ERASES, against, aim, by_status, status
from sentiment_models.explanations.training_findings import TrainingFindings

# How the findings name ways of erasing, in words.
ERASED = {"attention_mask": "out of the attention mask", "mask_token": "by [MASK]", "deletion": "by deletion"}


def explanations(findings: Findings | None, default: str, training: TrainingFindings | None = None) -> str:
    """Compose the section.

    Args:
        findings: the study of this bundle, if there is one.
        default: the attribution that the bundle gives first.
        training: what training small encoders told, if that was done.
    """
    parts = ["## How far explanations can be trusted"]
    if findings is None:
        parts.append("The bundle's explanations were not measured. Each explanation still measures itself on its text, as evidence.")
    else:
        ways = " and ".join(ERASED.get(operator, operator) for operator in findings.operators)
        parts.append(
            "Each method ranks the words of a text; then the first 1, 5, 10, 20 and 50 % of them are erased. *Over random* is how much "
            "more of the predicted label's calibrated probability that takes than erasing as many words in random order, with its "
            f"interval of 95 % over texts. Words are erased in {len(findings.operators)} ways, {ways}: a method is called better only if "
            "it is by each. *Evidence* is the share of texts whose own evidence calls the ranking better than random, of those that could "
            "tell: not flat, and compared with 19 random sets. *Rows* are forward passes a text; times are medians on one core and depend "
            "on the machine."
        )
        first, studied = next(iter(findings.datasets.items()))
        parts.append(
            f"Where no method is asked for the service gives {default}. A text of more than {studied.words_max:,} words, more than any of "
            f"{first}, gets the method that the service itself prefers: its explain graph's first, or else occlusion."
        )
        for name, found in findings.datasets.items():
            parts += [f"### Trust, on {name}", _table(findings, found, default), _listed(_words(findings, found, default))]
        parts += _plausible(findings)
    if training is not None:
        parts += ["### Is attention needed, stable, and hard to fake?", _listed(_trained(training))]
    return "\n\n".join(parts)


def _table(findings: Findings, found: DatasetFound, default: str) -> str:
    header = ("method", "kind", *(f"over random, {ERASED.get(one, one)}" for one in findings.operators), "evidence", "rows", "ms")
    shown = [(name, one) for name, one in found.methods.items() if one.kind in (ATTRIBUTION, ATTENTION, BASELINE, CONTROL)]
    rows = []
    for name, one in sorted(shown, key=lambda pair: pair[0] != default):
        over = [one.operators[operator].over_random if operator in one.operators else None for operator in findings.operators]
        if not any(over):
            continue
        evidence = one.evidence.better_of_tested if one.evidence else None
        rows.append(
            (
                *(f"**{name}**" if name == default else name, one.kind, *(_interval(difference) for difference in over)),
                *("" if evidence is None else f"{evidence:.1%}", f"{one.rows:.0f}", f"{one.ms:.1f}"),
            )
        )
    return markdown(header, rows)


def _words(findings: Findings, found: DatasetFound, default: str) -> Iterator[str]:
    yield (
        f"Measured on {found.texts:,} of {found.rows:,} texts, {found.words:.0f} words in the mean and {found.words_max:,} at most; the "
        f"model is right on {found.accuracy:.1%} of them."
    )
    if default in found.methods:
        yield from _default(findings, found, default)
    yield from _against(found, default)
    if found.attention is not None:
        yield from _attention(found.attention)


def _default(findings: Findings, found: DatasetFound, default: str) -> Iterator[str]:
    one = found.methods[default]
    over = [one.operators[operator].over_random for operator in findings.operators if operator in one.operators]
    given = f"`{default}`, which is given where no method is asked for,"
    yield {
        "better": f"{given} finds words that matter: it is better than random in every way of erasing.",
        "worse": f"{given} is **worse** than random in every way of erasing.",
        "unclear": f"{given} is **not** shown to be better than random in every way of erasing.",
    }[status(over)]
    evidence = one.evidence
    if evidence is not None and evidence.better_of_tested is not None:
        whether = {"reached": "is reached", "missed": "is **missed**", "open": "lies within that, so that **neither** is shown"}[
            aim(evidence)
        ]
        yield (
            f"On a single text its evidence calls it better than random on {evidence.better_of_tested:.1%}"
            f"{_between(evidence.better_interval)} of the {evidence.tested:,} texts that could tell; the aim of {BETTER_AIM:.0%} {whether}."
            f" {VERDICT_ERASES} {evidence.flat:,} texts were flat: too short, or no words that matter enough."
        )
    if one.stability:
        told = ", ".join(f"{value:.2f} ({change})" for change, value in one.stability.items())
        yield f"Under changes that mean nothing the order of its words stays, as Spearman's correlation, at {told}; 1 is unchanged."
    if found.unseen:
        told = ", ".join(f"{change} in {texts:,} texts" for change, texts in found.unseen.items())
        yield f"Not counted among those, since the tokenizer does not see it: {told}."
    if one.residual is not None:
        yield (
            f"Its values miss the sum that they should have by {one.residual[0]:.1%} in the median; on a twentieth of the texts by more "
            f"than {one.residual[1]:.1%}."
        )


def _against(found: DatasetFound, default: str) -> Iterator[str]:
    """The default against each rival, by the paired differences; nothing where another method was the default of the study."""
    for method, kind, called in (
        (default, ATTENTION, "rankings by attention"),
        (default, ATTRIBUTION, "other attributions"),
        (default, BASELINE, "baselines that do not ask the model"),
        (UNSIGNED, ATTENTION, "rankings by attention"),
    ):
        those = against(found, method, kind)
        if not those or (method == UNSIGNED and not against(found, default, kind)):
            continue
        beaten, better, open_ones = ([one.than for one in some] for some in by_status(those).values())
        said = [f"it beats {len(beaten)} of {len(those)} in every way{_named(beaten)}"]
        said += [f"**{len(better)} beat it**{_named(better)}"] if better else []
        said += [f"for {len(open_ones)} neither is shown{_named(open_ones)}"] if open_ones else []
        yield f"{SIGN + ' ' if method == UNSIGNED else ''}`{method}` against {called}: {'; '.join(said)}."


def _attention(found: AttentionFound) -> Iterator[str]:
    """The tests of the papers that doubt attention, on this model."""
    if found.uniform_accuracy:
        yield (
            f"With the attention of every layer made uniform the accuracy is {found.uniform_accuracy[-1]:.4f}, with learned attention "
            f"{found.accuracy:.4f} ({found.uniform_texts:,} texts)."
        )
    if found.tau_loo:
        told = ", ".join(f"{name} {value:+.2f}" for name, value in found.tau_loo.items())
        yield f"Attention and what words do (leaving one out) rank words alike by this Kendall's tau: {told}; 1 would be the same order."
    for allowed, (median, share) in (found.adversarial or {}).items():
        yield (
            f"Last-layer attention can be changed by {median:.3f} nats (Jensen-Shannon, the median; at most 0.693) while the output moves "
            f"by at most {allowed}; on {share:.1%} of {found.adversarial_texts:,} texts by more than half of the most. Where it can, such "
            "a map is one story among others."
        )
    if found.top_weight is not None:
        clear = "matters more than" if found.top_weight.low > 0 else "is **not** shown to matter more than"
        yield (
            f"The largest last-layer weight {clear} a random one: {_interval(found.top_weight)} nats of output over {found.erased_texts:,} "
            "texts."
        )
    if found.flip_share:
        told = ", ".join(f"{name} {value:.0%}" for name, value in found.flip_share.items())
        yield f"Share of last-layer weights to remove until the answer flips, by ranking: {told}; less is a better ranking."
    if found.randomisation:
        told = ", ".join(f"{name} {value:+.2f}" for name, value in found.randomisation.items())
        yield f"With the upper layers drawn anew, values agree with the model's own by this Kendall's tau: {told}; it should be near 0."


def _plausible(findings: Findings) -> list[str]:
    found = findings.plausibility
    if found is None:
        return []
    rows = [
        (name, one.auprc, f"{one.auprc_interval[0]:.3f} to {one.auprc_interval[1]:.3f}", one.f1_at_share)
        for name, one in found.methods.items()
    ]
    note = (
        f"What people marked as reasons in {found.documents:,} documents. It says what looks right to people, not what moves the model. "
        f"They marked {found.prevalence:.1%} of the words; a random ranking has an AUPRC of {found.methods['random'].auprc:.3f}."
    )
    return ["### Agreement with people", note, markdown(("method", "AUPRC", "95 %", "F1 at their share"), rows)]


def _trained(found: TrainingFindings) -> Iterator[str]:
    yield (
        f"Small encoders, trained from nothing on {found.train_texts:,} texts and judged on {found.heldout_texts:,} others; they say what "
        "such a task tells of attention, not what this bundle's does."
    )
    if found.uniform is not None:
        loss = found.uniform.all_loss
        needed = "Such encoders need attention here" if loss.low > 0 else "Such encoders are **not** shown to gain by attention here"
        yield f"{needed}: frozen uniform in all layers it costs {_interval(loss)} of accuracy, of {found.uniform.learned.mean:.4f}."
    if found.seeds is not None:
        yield (
            f"Trainings that differ in their seed alone put attention {found.seeds.divergence:.3f} nats apart, and uniform attention is "
            f"{found.seeds.divergence_from_uniform:.3f} away: what is nearer than that tells nothing."
        )
    if found.frozen is not None:
        told = ", ".join(f"{name} {_interval(one)}" for name, one in found.frozen.over_uniform.items())
        yield f"As fixed weights of a bag of words, accuracy over uniform ones: {told}. Three encoders lend attention, one adversary."
    if found.adversaries is not None:
        chosen = next(one for one in found.adversaries.curve if one.weight == found.adversaries.chosen)
        yield (
            f"An encoder trained to answer alike with other attention differs by {chosen.divergence:.3f} nats in attention and by "
            f"{chosen.output_change:.3f} in its answers, where another seed differs by {found.adversaries.allowed:.3f} in its answers."
        )


def _interval(difference: Difference | None) -> str:
    return "" if difference is None else f"{difference.mean:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})"


def _between(interval: tuple[float, float] | None) -> str:
    return f" ({interval[0]:.1%} to {interval[1]:.1%})" if interval else ""


def _named(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _listed(lines: Iterator[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
