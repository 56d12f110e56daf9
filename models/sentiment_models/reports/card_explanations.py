"""What card and record say on explanations: how far each ranking of words can be trusted, in a sentence, and in tables.

All statements follow from measurements, unfavourable ones included.
"""

from collections.abc import Iterator, Sequence

from sentiment.model.bundle import Manifest
from sentiment.model.trust import ExplanationsMeasured
from sentiment_models.explanations.conclusions import BETTER_AIM, SIGN, VERDICT_ERASES, against, aim, by_status, status
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
from sentiment_models.explanations.training_findings import TrainingFindings
from sentiment_models.reports.about import AuthorFacts
from sentiment_tools.reports.html_report import markdown

# Operators in words.
ERASED = {"attention_mask": "by the attention mask", "mask_token": "by [MASK]", "deletion": "by deletion"}


def explanations_in_short(manifest: Manifest, findings: Findings | None, author: AuthorFacts) -> str:
    """Compose the card's section: the default method, and whether its evidence confirms it."""
    title, measured = "## How far explanations can be trusted", manifest.explanations
    if measured is None:
        what = "were studied; the record has the figures" if findings else "were not measured"
        return f"{title}\n\nThe bundle's explanations {what}. Each explanation still has evidence measured on its own text."
    base = f" (measured on {measured.bundle}, before this fine-tuning)" if measured.bundle else ""
    said = f"On {measured.texts:,} texts of {author.name(measured.dataset)}{base}, the default method, `{measured.default_method}`, "
    for one in measured.trust:
        if one.method == measured.default_method:
            said += f"is {'better' if one.better_than_random else '**not** shown to be better'} than random word order in the mean"
            if one.better_of_tested is not None:
                share = f"{100 * one.better_of_tested:.1f} %"
                said += f"; on single texts its evidence confirms it on {share} of the {one.tested:,} that can be tested"
    return f"{title}\n\n{said}. Where heads look is no reason for an answer. Each explanation has evidence measured on its own text."


def explanations(
    findings: Findings | None, default: str, training: TrainingFindings | None = None, measured: ExplanationsMeasured | None = None
) -> str:
    """Compose the record's section.

    Args:
        findings: the study of this bundle, or None.
        default: the bundle's default attribution.
        training: results of ``attention-tests``, or None.
        measured: the study in the bundle's manifest, which a fine-tune has from its base, or None.
    """
    parts = ["## How far explanations can be trusted"]
    if findings is None and measured is not None:
        parts.append(f"The manifest has a study on {measured.texts:,} texts of {measured.studied}; the model card says what it found.")
    elif findings is None:
        parts.append("The bundle's explanations were not measured. Each explanation still has evidence measured on its own text.")
    else:
        ways = " and ".join(ERASED.get(operator, operator) for operator in findings.operators)
        parts.append(
            "Each method ranks the words of a text; then the first 1, 5, 10, 20 and 50 % of them are erased. *Over random* is the drop in "
            f"{_probability(findings)}, minus the drop when as many random words are erased, with its 95 % interval "
            f"over texts. Words are erased in {len(findings.operators)} ways, {ways}: a method is called better only if it is better in "
            "each. *Evidence* is the share of texts whose own evidence rates the ranking better than random, of the texts that are not "
            "flat and have 19 random sets. *Rows* are forward passes per text. Times are medians on one core and depend on the machine."
        )
        first, studied = next(iter(findings.datasets.items()))
        parts.append(
            f"If the caller names no method, the service uses {default}. Texts of more than {studied.words_max:,} words, longer than any "
            f"in {first}, get `two_step_shapley` instead."
        )
        for name, found in findings.datasets.items():
            parts += [f"### Trust, on {name}", _table(findings, found, default), _listed(_words(findings, found, default))]
        parts += _plausible(findings)
    if training is not None:
        parts += ["### Tests of attention on small encoders", _listed(_trained(training))]
    return "\n\n".join(parts)


def _probability(findings: Findings) -> str:
    """Name the measured quantity."""
    whole = "the predicted label's calibrated probability"
    return f"{whole}, as its share in what it and the runner-up have together" if findings.against_runner_up else whole


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
        f"Measured on {found.texts:,} of {found.rows:,} texts, {found.words:.0f} words on average and {found.words_max:,} at most; the "
        f"model's accuracy on them is {found.accuracy:.1%}."
    )
    if default in found.methods:
        yield from _default(findings, found, default)
    yield from _against(found, default)
    if found.attention is not None:
        yield from _attention(found.attention)


def _default(findings: Findings, found: DatasetFound, default: str) -> Iterator[str]:
    one = found.methods[default]
    over = [one.operators[operator].over_random for operator in findings.operators if operator in one.operators]
    method = f"`{default}`, the default,"
    yield {
        "better": f"{method} finds words that matter: it is better than random in every way of erasing.",
        "worse": f"{method} is **worse** than random in every way of erasing.",
        "unclear": f"{method} is **not** shown to be better than random in every way of erasing.",
    }[status(over)]
    evidence = one.evidence
    if evidence is not None and evidence.better_of_tested is not None:
        whether = {"reached": "is reached", "missed": "is **missed**", "open": "is **neither** shown to be reached nor to be missed"}[
            aim(evidence)
        ]
        yield (
            f"The evidence of single texts rates it better than random on {evidence.better_of_tested:.1%}"
            f"{_between(evidence.better_interval)} of the {evidence.tested:,} tested texts. The target of {BETTER_AIM:.0%} {whether}."
            f" {VERDICT_ERASES} {evidence.flat:,} texts were flat: as a whole they move the answer too little."
        )
    if one.stability:
        values = ", ".join(f"{value:.2f} ({change})" for change, value in one.stability.items())
        yield f"Spearman's correlation of its word values before and after changes without meaning: {values}; 1 is unchanged."
    if found.unseen:
        changes = ", ".join(f"{change} in {texts:,} texts" for change, texts in found.unseen.items())
        yield f"Left out there, because the tokens do not change: {changes}."
    if one.residual is not None:
        yield (
            f"The sum of its values is off by {one.residual[0]:.1%} in the median, by more than {one.residual[1]:.1%} on 5 % of the texts."
        )


def _against(found: DatasetFound, default: str) -> Iterator[str]:
    """Yield the comparisons of the default with each kind of method; nothing if the study had another default."""
    for method, kind, called in (
        (default, ATTENTION, "rankings by attention"),
        (default, ATTRIBUTION, "other attributions"),
        (default, BASELINE, "baselines that do not use the model"),
        (UNSIGNED, ATTENTION, "rankings by attention"),
    ):
        those = against(found, method, kind)
        if not those or (method == UNSIGNED and not against(found, default, kind)):
            continue
        beaten, better, unclear = ([one.than for one in some] for some in by_status(those).values())
        parts = [f"it beats {len(beaten)} of {len(those)} in every way{_named(beaten)}"]
        parts += [f"**{len(better)} beat it**{_named(better)}"] if better else []
        parts += [f"{len(unclear)} unclear{_named(unclear)}"] if unclear else []
        yield f"{SIGN + ' ' if method == UNSIGNED else ''}`{method}` compared with {called}: {'; '.join(parts)}."


def _attention(found: AttentionFound) -> Iterator[str]:
    """Yield the results of the tests of attention on this model."""
    if found.uniform_accuracy:
        yield (
            f"With uniform attention in all layers the accuracy is {found.uniform_accuracy[-1]:.4f}; with learned attention it is "
            f"{found.accuracy:.4f} ({found.uniform_texts:,} texts)."
        )
    if found.tau_loo:
        values = ", ".join(f"{name} {value:+.2f}" for name, value in found.tau_loo.items())
        yield f"Rank agreement of attention with leave-one-out (Kendall's tau): {values}; 1 is the same order."
    for allowed, (median, share) in (found.adversarial or {}).items():
        yield (
            f"Last-layer attention can be changed by a median of {median:.3f} nats (Jensen-Shannon; maximum 0.693) while the output "
            f"changes by at most {allowed}; on {share:.1%} of {found.adversarial_texts:,} texts by more than half of the maximum. On such "
            "texts, an attention map is only one of several possible explanations."
        )
    if found.top_weight is not None:
        clear = "matters more than" if found.top_weight.shown > 0 else "is **not** shown to matter more than"
        yield (
            f"The largest last-layer weight {clear} a random one: {_interval(found.top_weight)} nats of output on {found.erased_texts:,} "
            "texts."
        )
    if found.flip_share:
        values = ", ".join(f"{name} {value:.0%}" for name, value in found.flip_share.items())
        yield f"Share of last-layer weights to remove until the answer flips, by ranking: {values}; less is better."
    if found.randomisation:
        values = ", ".join(f"{name} {value:+.2f}" for name, value in found.randomisation.items())
        yield f"Rank agreement of values with those of a model with randomised upper layers (Kendall's tau): {values}; it should be near 0."


def _plausible(findings: Findings) -> list[str]:
    found = findings.plausibility
    if found is None:
        return []
    rows = [
        (name, one.auprc, f"{one.auprc_interval[0]:.3f} to {one.auprc_interval[1]:.3f}", one.f1_at_share)
        for name, one in found.methods.items()
    ]
    note = (
        f"Agreement with human rationales in {found.documents:,} documents. It shows what people find convincing, not what moves the "
        f"model. They mark {found.prevalence:.1%} of the words; a random ranking has an AUPRC of {found.methods['random'].auprc:.3f}."
    )
    return ["### Agreement with people", note, markdown(("method", "AUPRC", "95 %", "F1 at marked share"), rows)]


def _trained(found: TrainingFindings) -> Iterator[str]:
    yield (
        f"Small encoders, trained from scratch on {found.train_texts:,} texts and tested on {found.heldout_texts:,} others. The results "
        "are about attention on such a task, not about this bundle's attention."
    )
    if found.uniform is not None:
        loss = found.uniform.all_loss
        needed = "Such encoders need attention here" if loss.shown > 0 else "Such encoders are **not** shown to need attention here"
        yield f"{needed}: uniform attention in all layers costs {_interval(loss)} of accuracy, from {found.uniform.learned.mean:.4f}."
    if found.seeds is not None:
        yield (
            f"The attention of trainings that differ only in their seed diverges by {found.seeds.divergence:.3f} nats; the divergence from "
            f"uniform attention is {found.seeds.divergence_from_uniform:.3f}. Smaller divergences mean nothing."
        )
    if found.frozen is not None:
        gains = ", ".join(f"{name} {_interval(one)}" for name, one in found.frozen.over_uniform.items())
        encoders = len(found.frozen.accuracy["attention"].seeds)
        yield f"Accuracy as fixed word weights, minus that of uniform weights: {gains} (attention of {encoders} encoders, one adversary)."
    if found.adversaries is not None:
        chosen = next(one for one in found.adversaries.curve if one.weight == found.adversaries.chosen)
        yield (
            f"An encoder trained to give the same answers with other attention differs by {chosen.divergence:.3f} nats in attention and by "
            f"{chosen.output_change:.3f} in its answers; another seed differs by {found.adversaries.allowed:.3f} in its answers."
        )


def _interval(difference: Difference | None) -> str:
    return "" if difference is None else f"{difference.mean:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})"


def _between(interval: tuple[float, float] | None) -> str:
    return f" ({interval[0]:.1%} to {interval[1]:.1%})" if interval else ""


def _named(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _listed(lines: Iterator[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
