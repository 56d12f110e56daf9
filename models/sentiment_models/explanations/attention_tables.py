"""Whether attention explains: each test as a table with what its figures mean and what its paper found."""

from collections.abc import Iterator

from sentiment_models.evaluation.tables import Table
from sentiment_models.explanations.findings import AttentionFound
from sentiment_models.explanations.told import percent, signed

# ln 2: two attentions that share nothing.
FARTHEST = 0.693
# Mean tau below it is called weak, above the other strong.
WEAK, STRONG = 0.3, 0.6
PAPER = {
    "correlation": "Jain and Wallace (2019, on BiRNNs) found it weak with both, and concluded that attention is not importance.",
    "adversarial": "Jain and Wallace (2019) found for many texts attention that is far off with nearly the same answer. Wiegreffe and "
    "Pinter (2019) answer that this searches each text alone, not for a model that would attend so.",
    "erasure": "Serrano and Smith (2019) found that the highest weight mostly counts for more than another, but seldom flips the decision, "
    "and that rankings by gradients flip it with fewer weights removed than attention does.",
    "uniform": "Wiegreffe and Pinter (2019) train anew with uniform attention and find several tasks that lose little by it; here nothing "
    "is trained anew, so that the loss shown is the most that it could be.",
    "randomisation": "Adebayo and others (2018): an explanation that stays when the model is drawn anew does not explain the model.",
}


def attention_tables(found: AttentionFound) -> Iterator[Table]:
    """Yield a table for each test that was done."""
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
    """What was left out, for the architecture's sake or for want of words; empty: nothing."""
    if not found.adversarial:
        left = "Not measured for this architecture: adversarial attention, erasure of attention, model randomisation."
    else:
        left = "" if found.randomisation else "Model randomisation was not measured: no text drawn for it has two words."
    if found.tau_gradient or found.tau_loo:
        return left
    return f"{left} Attention was not correlated with gradients and erasures: no text has words in an order.".strip()


def _correlation(found: AttentionFound) -> Table:
    names = dict.fromkeys((*found.tau_gradient, *found.tau_loo))
    rows = tuple((name, found.tau_gradient.get(name), found.tau_loo.get(name)) for name in names)
    highest = max((*found.tau_gradient.values(), *found.tau_loo.values()))
    if highest < WEAK:
        means = "Here, too, attention ranks words hardly as gradients and erasures do."
    elif highest < STRONG:
        means = "Here attention ranks words in part as gradients and erasures do."
    else:
        means = "Here attention ranks words much as gradients or erasures do."
    note = f"Kendall's tau-b: 0 for no agreement, 1 for the same order. {means} {PAPER['correlation']}"
    return Table("Attention against other importance", ("attention", "with |gradient x input|", "with |leave one out|"), rows, note)


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
        f"Over {found.adversarial_texts:,} texts, with the answer changed by at most {least} (total variation), the attention of the "
        f"last layer's heads could be moved by {median:.3f} nats in the median, of at most {FARTHEST}; on {percent(far, 0)} of them by "
        "more than half of that. "
    )
    if far > 0.5:
        means += "So here, too, the same answer comes with very different attention on most texts."
    else:
        means += "So on most texts none was found that is very different. A search tells the least that there is: there may be some."
    header = ("answer may change by", "heads, median", "far on", "mean of heads, median", "far on")
    if least in shown:
        means += f" The mean of the heads, which is what a map shows, could be moved by {shown[least][0]:.3f} in the median."
    means += " Past the last layer's attention runs what the token itself carries; that bounds what any of its weights can do."
    return Table("Adversarial attention", header, tuple(rows), f"{means} {PAPER['adversarial']}")


def _top_weight(found: AttentionFound) -> Table:
    assert found.top_weight is not None
    assert found.top_weight_flips is not None
    top, other = found.top_weight_flips
    one = found.top_weight
    rows = (("the highest", percent(top)), ("another at random", percent(other)))
    effect = "more than" if one.low > 0 else "less than" if one.high < 0 else "not clearly more or less than"
    means = (
        f"Removing the highest weight of the last layer moves the answer {effect} removing another: by {signed(one, 5)} in Jensen-Shannon "
        f"divergence over {found.erased_texts:,} texts. It alone flips the decision on {percent(top)} of them."
    )
    return Table("Removing one attention weight", ("weight removed", "decision flips"), rows, f"{means} {PAPER['erasure']}")


def _flips(found: AttentionFound) -> Table:
    assert found.flip_share is not None
    flips = found.flips or {}
    ranked = sorted(found.flip_share.items(), key=lambda one: one[1])
    rows = tuple((name, percent(share), percent(flips[name]) if name in flips else None) for name, share in ranked)
    if ranked[0][1] == 1 and not any(flips.values()):
        means = "No ranking flips a decision on any text, so that none is shown to be better than another."
    else:
        means = f"The fewest weights have to go when they are ranked by {ranked[0][0]}"
        place = [name for name, _ in ranked].index("attention") + 1 if "attention" in found.flip_share else 0
        means += "." if place <= 1 else f"; attention itself is number {place} of {len(ranked)}."
    note = f"The share of the last layer's weights to remove until the decision flips, all where it never does. {means} {PAPER['erasure']}"
    return Table("Removing attention until the decision flips", ("ranked by", "weights removed", "flips on"), rows, note)


def _uniform(found: AttentionFound) -> Table:
    *layers, everywhere = found.uniform_accuracy
    rows = [("learned", found.accuracy, None)]
    rows += [(f"uniform in layer {number}", value, f"{value - found.accuracy:+.3f}") for number, value in enumerate(layers, 1)]  # type: ignore[misc]
    rows.append(("uniform in all layers", everywhere, f"{everywhere - found.accuracy:+.3f}"))  # type: ignore[arg-type]
    lost = found.accuracy - everywhere
    if lost > 0:
        means = f"Without any learned attention {lost:.3f} of the accuracy is lost over {found.uniform_texts:,} texts."
    else:
        higher = f"{-lost:.3f} higher" if lost else "the same"
        means = f"Without any learned attention nothing is lost: the accuracy over {found.uniform_texts:,} texts is {higher}."
    return Table("Uniform attention", ("attention", "accuracy", "change"), tuple(rows), f"{means} {PAPER['uniform']}")


def _randomisation(found: AttentionFound) -> Table:
    assert found.randomisation is not None
    sizes = found.randomisation_sizes or {}
    rows = tuple((name, value, sizes.get(name)) for name, value in found.randomisation.items())
    note = (
        f"Rank agreement of word values with those of the same model whose last layers were drawn anew, over {found.randomisation_texts:,} "
        f"texts; near 0 is good, for then the values depend on what was learned. {PAPER['randomisation']}"
    )
    return Table("Model randomisation", ("method", "tau", "of sizes alone"), rows, note)
