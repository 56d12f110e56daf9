"""The model card's sections on measurements: figures of the served graph, weaknesses. All figures are measured."""

from collections.abc import Iterator, Sequence

from sentiment.model.bundle import Manifest
from sentiment_models.evaluation import tables
from sentiment_models.evaluation.baselines import COMMONEST
from sentiment_models.evaluation.findings import Evaluation, Measurement
from sentiment_models.export.golden import misread
from sentiment_tools.reports.html_report import markdown

# Characters of a quoted text, and behaviours whose failures are quoted.
QUOTED_MAX = 90
BEHAVIOURS_QUOTED_MAX = 3
# Slices with fewer texts say little.
SLICE_ROWS_MIN = 30


def summary(manifest: Manifest, evaluations: Sequence[Evaluation]) -> str:
    """Compose the card's table: the served graph beside other answers to the same texts."""
    served, calibration = served_evaluation(manifest, evaluations), manifest.calibration
    said = f"Probability is softmax(logits / {calibration.temperature}); below {calibration.abstain_below} an answer is marked `abstain`. "
    if calibration.uncalibrated:
        said = "**Not calibrated**: a probability is softmax(logits), which is often too sure, and no answer is marked `abstain`. "
    if manifest.mixed:
        said += f"A text is said to be mixed from a probability of {manifest.mixed.at} on. "
    if served is None:
        return f"## Figures\n\n{said}Not evaluated."
    others = list(dict.fromkeys(name for one in served.datasets.values() for name in one.baselines))
    rows = []
    for name, one in served.datasets.items():
        low, high = one.accuracy_interval
        beside = [f"{one.baselines[other].accuracy:.3f}" if other in one.baselines else "" for other in others]
        rows.append(
            (
                *(tables.named(name, one), one.rows, *beside, f"{one.accuracy:.4f} ({low:.3f} to {high:.3f})"),
                *(f"{one.macro_f1:.3f}", f"{one.ece:.3f}", tables.share(one.abstained, one.rows)),
            )
        )
    texts, open_ = sum(one.rows for one in served.undecided.values()), tables.left_open(served.undecided)
    undecided = f" Of {texts:,} texts without a correct label, {tables.share(open_, texts)} are {_left_open(manifest)}." if texts else ""
    explained = "the accuracy of always answering it" if others == [COMMONEST] else "the accuracy of other answers"
    return (
        "## Figures\n\n"
        f"{said}*Accuracy*, with its 95 % interval, and *macro F1* are among the labels that a set has. "
        f"*{', '.join(others)}*: {explained}. *ECE*: calibration error over 15 bins.{undecided}\n\n"
        + markdown(("data set", "texts", *others, "accuracy", "macro F1", "ECE", "abstained"), rows)
    )


def confusion(manifest: Manifest, evaluations: Sequence[Evaluation], names: Sequence[str]) -> Iterator[str]:
    """Yield a section with the confusion matrices of those data sets that the served graph was measured on; nothing without any."""
    served = served_evaluation(manifest, evaluations)
    found = {name: served.datasets[name] for name in names if name in served.datasets} if served else {}
    if served and found:
        table = tables.confusion(served.model_copy(update={"datasets": found}))
        yield f"## {table.title}\n\n{table.note}\n\n{markdown(table.header, table.rows)}"


def _left_open(manifest: Manifest) -> str:
    return "marked `abstain`, or English and `neutral`" if manifest.neutral else "marked `abstain`"


def served_evaluation(manifest: Manifest, evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """Merge the evaluations of the graph that is served first: all its data sets, and the latest behaviours and undecided texts."""
    served = [one for one in evaluations if one.graph.file == manifest.graphs.classify[0].file]
    if not served:
        return None
    return served[-1].model_copy(
        update={
            "datasets": {name: found for one in served for name, found in one.datasets.items()},
            "behaviours": next((one.behaviours for one in reversed(served) if one.behaviours), ()),
            "undecided": next((one.undecided for one in reversed(served) if one.undecided), {}),
        }
    )


def weaknesses(manifest: Manifest, evaluations: Sequence[Evaluation]) -> str:
    """Compose the section of weaknesses: the worst value of every figure, and examples of wrong answers."""
    served = served_evaluation(manifest, evaluations)
    lines = [*(_worst(manifest, served) if served else ()), *_golden(manifest)]
    lines += [
        "Other kinds of text than those in the tables above were not measured, nor was fairness towards groups of people.",
        *["int8 rounds: a text near the decision border may get another label from the fp32 graph."] * (len(manifest.graphs.classify) > 1),
        *(
            f"Answers of {graph.file} depend on the other texts of a batch, by up to {graph.invariance:.2g} of a probability. Servers run "
            "each text by itself unless inexact_models is batch."
            for graph in manifest.graphs.classify
            if not graph.exact
        ),
    ]
    return "\n".join(["## Weaknesses", "", *(f"- {line}" for line in lines), *(_failing(served) if served else ())])


def _worst(manifest: Manifest, served: Evaluation) -> Iterator[str]:
    unseen = [(name, one) for name, one in served.datasets.items() if not one.also_trained_on]
    if unseen:
        yield from _lowest(manifest, unseen)
    else:
        yield "All data sets above are files that it was trained on: **how well it answers new texts was not measured**."
    undecided = {kind: one for kind, one in served.undecided.items() if one.rows >= SLICE_ROWS_MIN}
    answered = {kind: one.rows - tables.left_open({kind: one}) for kind, one in undecided.items()}
    if any(answered.values()):
        kind = max(answered, key=lambda kind: answered[kind] / undecided[kind].rows)
        named = "English texts without sentiment" if kind == tables.ENGLISH else f"texts of kind {kind}"
        neither = f" or `{manifest.neutral}`" if manifest.neutral and kind == tables.ENGLISH else ""
        count = f"{answered[kind]:,} of {undecided[kind].rows:,} {named}"
        yield f"Texts without a correct label get one: {count} were not marked `abstain`{neither}."


def _lowest(manifest: Manifest, figures: Sequence[tuple[str, Measurement]]) -> Iterator[str]:
    """Yield the worst figures of data sets that the bundle was not trained on."""
    name, worst = min(figures, key=lambda pair: pair[1].accuracy)
    errors = round(worst.rows * (1 - worst.accuracy))
    yield f"The lowest accuracy of a data set is {worst.accuracy:.4f}, on {name}: {errors:,} wrong answers of {worst.rows:,}."
    counted = [(name, one.expected_without_abstentions) for name, one in figures if one.expected_without_abstentions]
    if counted:
        name, furthest = max(counted, key=lambda pair: abs(pair[1].error))
        yield (
            f"Expected accuracy is furthest from the true one on {name}: {furthest.expected_accuracy:.3f}, true "
            f"{furthest.accuracy:.3f}, of {furthest.rows:,} answers that do not abstain."
        )
    name, worst = max(figures, key=lambda pair: pair[1].truncated / pair[1].rows)
    if worst.truncated:
        share = tables.share(worst.truncated, worst.rows)
        yield f"{share} of the texts of {name} are longer than {manifest.max_tokens} tokens, and were read in part."
    for by, part_of in (("length", "lengths"), ("domain", "domains"), ("phenomenon", "phenomena")):
        cut = {name: getattr(one, part_of) for name, one in figures}
        slices = [(name, key, part) for name, parts in cut.items() for key, part in parts.items() if part.rows >= SLICE_ROWS_MIN]
        if len(slices) > 1:
            name, key, part = min(slices, key=lambda found: found[2].accuracy)
            yield f"By {by}, accuracy is lowest on {name}, {key}: {part.accuracy:.4f} on {part.rows:,} texts."
    changes = [(name, kind, found) for name, one in figures for kind, found in one.robustness.items() if found.changed]
    if changes:
        name, kind, found = max(changes, key=lambda change: change[2].changed / change[2].rows)
        yield f"The perturbation that changes most labels is {kind}: {tables.share(found.changed, found.rows)} of those of {name}."


def _golden(manifest: Manifest) -> Iterator[str]:
    whole = [(golden.text, golden.label) for golden in manifest.golden if golden.text_pair is None]
    wrong = misread(whole, manifest.labels)
    if wrong:
        quoted = "; ".join(f'"{tables.shortened(text, QUOTED_MAX)}" ({label})' for text, label in wrong)
        # Golden answers are those of fp32, or of an own ONNX file, which is alone.
        reference = manifest.graphs.classify[-1].precision
        yield f"The {reference} graph answers {len(wrong)} of the {len(whole)} hand-written golden texts wrongly: {quoted}."


def _failing(served: Evaluation) -> Iterator[str]:
    """Yield the behaviours that fail most often, each with one example."""
    weakest = tables.weakest(served, BEHAVIOURS_QUOTED_MAX)
    if weakest:
        rows = [(name, f"{100 * share:.1f} %", *tables.texts_and_answers(failure), failure.wanted) for name, share, failure in weakest]
        yield "\nBehaviours that fail most often, each with an example:\n"
        yield markdown(("test", "failed", "text", "answered", "expected"), rows)
