"""Tables of the tests of attention, with an interpretation of the figures and the result of the paper."""

from collections.abc import Iterator

from sentiment_models.explanations.conclusions import percent, signed
from sentiment_models.explanations.findings import AttentionFound
from sentiment_models.reports.report import Table

# ln 2, the Jensen-Shannon divergence of distributions without overlap.
FARTHEST = 0.693
# A mean tau below the first is called weak, one above the second strong.
WEAK, STRONG = 0.3, 0.6
PAPER = {
    "correlation": "Jain and Wallace (2019, on BiRNNs) found weak correlation with both and concluded that attention is not importance.",
    "adversarial": "Jain and Wallace (2019) found very different attention with nearly the same answer for many texts. Wiegreffe and "
    "Pinter (2019) object that the search treats each text separately and does not find a model that attends in this way.",
    "erasure": "Serrano and Smith (2019) found that the highest weight usually matters more than another but seldom flips the decision, "
    "and that rankings by gradients flip it with fewer removed weights than rankings by attention.",
    "uniform": "Wiegreffe and Pinter (2019) retrain with uniform attention and find that several tasks lose little. Here nothing is "
    "retrained, so the loss shown is an upper bound.",
    "randomisation": "Adebayo and others (2018): an explanation that stays the same for a randomised model does not explain the model.",
}


def attention_tables(found: AttentionFound) -> Iterator[Table]:
    """Yield a table for each test that has results."""
    if found.tau_gradient or found.tau_loo:
        yield _correlation(found)
    if found.adversarial:
        yield _adversarial(found)
    if found.top_weight is not None and found.top_weight_flips is not None:
        yield _top_weight(found)
    if found.flip_share:
        yield _flips(found)
    if found.uniform_accuracy:
        yield _uniform(found)
    if found.randomisation:
        yield _randomisation(found)


def not_measured(found: AttentionFound) -> str:
    """Say which tests have no result and why; empty if all have one."""
    if not found.adversarial:
        left = "Not measured for this architecture: adversarial attention, erasure of attention, model randomisation."
    else:
        left = "" if found.randomisation else "Model randomisation was not measured: none of its texts has two words."
    if found.tau_gradient or found.tau_loo:
        return left
    missing = "The correlation of attention with gradients and erasure was not measured: no text has two words, or no such method ran."
    return f"{left} {missing}".strip()


def _correlation(found: AttentionFound) -> Table:
    names = dict.fromkeys((*found.tau_gradient, *found.tau_loo))
    rows = tuple((name, found.tau_gradient.get(name), found.tau_loo.get(name)) for name in names)
    highest = max((*found.tau_gradient.values(), *found.tau_loo.values()))
    if highest < WEAK:
        means = "Here, too, attention agrees weakly with gradients and erasure."
    elif highest < STRONG:
        means = "Here attention agrees partly with gradients and erasure."
    else:
        means = "Here attention agrees strongly with gradients or erasure."
    note = f"Kendall's tau-b: 0 for no agreement, 1 for the same order. {means} {PAPER['correlation']}"
    return Table("Attention and other importance measures", ("attention", "with |gradient x input|", "with |leave one out|"), rows, note)


def _adversarial(found: AttentionFound) -> Table:
    assert found.adversarial is not None
    shown = found.adversarial_shown or {}
    rows = []
    for change, (median, far) in found.adversarial.items():
        mean = shown.get(change)
        rows.append((change, median, percent(far, 0), None if mean is None else mean[0], None if mean is None else percent(mean[1], 0)))
    least = min(found.adversarial, key=float)
    median, far = found.adversarial[least]
    means = (
        f"On {found.adversarial_texts:,} texts, while the answer changed by at most {least} (total variation), the attention of the last "
        f"layer's heads could be moved by a median of {median:.3f} nats (maximum {FARTHEST}); on {percent(far, 0)} of the texts by more "
        "than half of the maximum. "
    )
    if far > 0.5:
        means += "So here, too, most texts have very different attention with the same answer."
    else:
        means += "So for most texts, the search found no very different attention. It gives a lower bound: some may exist."
    header = ("answer may change by", "heads, median", "far on", "mean of heads, median", "far on")
    if least in shown:
        means += f" The mean of the heads, which a map shows, could be moved by a median of {shown[least][0]:.3f}."
    means += " The token's own state bypasses the last layer's attention, which limits the effect of all its weights."
    return Table("Adversarial attention", header, tuple(rows), f"{means} {PAPER['adversarial']}")


def _top_weight(found: AttentionFound) -> Table:
    assert found.top_weight is not None
    assert found.top_weight_flips is not None
    top, other = found.top_weight_flips
    one = found.top_weight
    rows = (("the highest", percent(top)), ("another at random", percent(other)))
    effect = "more than" if one.shown > 0 else "less than" if one.shown < 0 else "not clearly more or less than"
    means = (
        f"Removing the highest weight of the last layer moves the answer {effect} removing another: the difference in Jensen-Shannon "
        f"divergence is {signed(one, 5)} on {found.erased_texts:,} texts. Its removal flips the decision on {percent(top)} of them."
    )
    return Table("Removing one attention weight", ("weight removed", "decision flips"), rows, f"{means} {PAPER['erasure']}")


def _flips(found: AttentionFound) -> Table:
    assert found.flip_share is not None
    flips = found.flips or {}
    ranked = sorted(found.flip_share.items(), key=lambda one: one[1])
    rows = tuple((name, percent(share), percent(flips[name]) if name in flips else None) for name, share in ranked)
    if ranked[0][1] == 1 and not any(flips.values()):
        means = "No ranking flips a decision on any text, so none is shown to be better than another."
    else:
        means = f"The ranking by {ranked[0][0]} needs the fewest removals"
        place = [name for name, _ in ranked].index("attention") + 1 if "attention" in found.flip_share else 0
        means += "." if place <= 1 else f"; attention is number {place} of {len(ranked)}."
    note = f"The share of the last layer's weights to remove until the decision flips; 100 % if it never flips. {means} {PAPER['erasure']}"
    return Table("Removing attention until the decision flips", ("ranked by", "weights removed", "flips on"), rows, note)


def _uniform(found: AttentionFound) -> Table:
    *layers, everywhere = found.uniform_accuracy
    rows = [("learned", found.accuracy, None)]
    rows += [(f"uniform in layer {number}", value, f"{value - found.accuracy:+.3f}") for number, value in enumerate(layers, 1)]  # type: ignore[misc]
    rows.append(("uniform in all layers", everywhere, f"{everywhere - found.accuracy:+.3f}"))  # type: ignore[arg-type]
    lost = found.accuracy - everywhere
    if lost > 0:
        means = f"With uniform attention in all layers, accuracy on {found.uniform_texts:,} texts is {lost:.3f} lower."
    else:
        higher = f"{-lost:.3f} higher" if lost else "the same"
        means = f"With uniform attention in all layers, no accuracy is lost: on {found.uniform_texts:,} texts it is {higher}."
    return Table("Uniform attention", ("attention", "accuracy", "change"), tuple(rows), f"{means} {PAPER['uniform']}")


def _randomisation(found: AttentionFound) -> Table:
    assert found.randomisation is not None
    sizes = found.randomisation_sizes or {}
    rows = tuple((name, value, sizes.get(name)) for name, value in found.randomisation.items())
    note = (
        f"Rank agreement of word values with those of the model with randomised upper layers, on {found.randomisation_texts:,} texts. "
        f"Near 0 is good: the values then depend on what the model learned. {PAPER['randomisation']}"
    )
    return Table("Model randomisation", ("method", "tau", "tau of absolute values"), rows, note)
