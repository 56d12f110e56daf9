"""The tables of an evaluation, shared by the terminal, the page and the card. Knows nothing of how they are rendered."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sentiment_models.evaluation.findings import Baseline, Evaluation, Failure, Measurement, Slice, Undecided
from sentiment_models.reports.report import Table

Interval = tuple[float, float]
# Characters of a text shown in a table.
SHOWN_MAX = 160
# Significance level: below it a difference is distinguishable from chance.
P_VALUE_MIN = 0.05
BEHAVIOURS_SKIPPED = "No behavioural tests: they need labels called negative and positive."
ENGLISH = "en"
CALIBRATION, LABELS, BEHAVIOURS, UNDECIDED = "Calibration", "Labels", "Behaviours", "Texts without an answer"
"""Titles of tables that the page adds plots or further tables to."""
ACCURACY_NOTE = (
    "Intervals are bootstrapped. Macro F1: the mean over the labels that texts or answers have, as in scikit-learn. Abstained texts count "
    "as answered. Of a file that lacks a label of the model, the likeliest of the file's labels counts as the answer."
)
# A calibrated model has an ECE of about 0.02 on 1,000 texts, by chance.
POOL_TEXTS_MIN = 2000
# The fields of a data set that have its parts, by what each part has in common. Of generated texts: what they are an example of, what of
# them was kept from training, and their register, such as tweet or ticket.
GENERATED = ("phenomena", "held_out", "registers")
SLICES = dict(zip(("length", "domain", "phenomenon", "what training lacks", "register"), ("lengths", "domains", *GENERATED), strict=True))
EXPECTED = "expected"
"""The column that a terminal has no room for."""


def named(name: str, one: Measurement) -> str:
    """Return the name of a data set, marked if the bundle was trained on it."""
    return f"{name} (also trained on)" if one.also_trained_on else name


def tables(evaluation: Evaluation) -> Iterator[Table]:
    """Yield every table that the evaluation has figures for, the most important first."""
    before = (figures, all_labels, baselines, confusion, mixed, calibration, pools, expected_accuracy, leave_one_out, classes)
    made = [make(evaluation) for make in before]
    made += [slices(evaluation, kind, field) for kind, field in SLICES.items()]
    made += [make(evaluation) for make in (pairs, robustness, behaviours, undecided, size)]
    return (one for one in made if one.rows)


def figures(evaluation: Evaluation) -> Table:
    """Accuracy and macro F1 with their intervals; abstained and truncated texts."""
    rows = tuple(
        (
            named(name, one),
            one.rows,
            one.accuracy,
            interval(one.accuracy_interval),
            one.macro_f1,
            interval(one.macro_f1_interval),
            one.macro_recall,
            share(one.abstained, one.rows),
            share(one.truncated, one.rows),
        )
        for name, one in evaluation.datasets.items()
    )
    header = ("data set", "texts", "accuracy", "95 %", "macro F1", "95 %", "macro recall", "abstained", "truncated")
    return Table("Accuracy", header, rows, ACCURACY_NOTE)


def all_labels(evaluation: Evaluation) -> Table:
    """The answers as they are given, to sets that lack labels of the model."""
    rows = tuple(
        (named(name, one), one.rows, one.accuracy, one.all_labels.accuracy, interval(one.all_labels.accuracy_interval), one.all_labels.ece)
        for name, one in evaluation.datasets.items()
        if one.all_labels
    )
    header = ("data set", "texts", "accuracy", "among all labels", "95 %", "ECE")
    note = "Accuracy: among the labels that the file has. Among all labels: an answer that the file lacks, such as neutral, is wrong."
    return Table("Among all labels", header, rows, note)


def baselines(evaluation: Evaluation) -> Table:
    """Accuracy and macro F1 of other answers to the same texts, the bundle's own last."""
    names = list(dict.fromkeys(name for one in evaluation.datasets.values() for name in one.baselines))
    rows = tuple(
        (named(name, one), *(pair(one.baselines.get(other)) for other in names), f"{one.accuracy:.4f}; {one.macro_f1:.4f}")
        for name, one in evaluation.datasets.items()
    )
    note = "Accuracy; macro F1, among the labels that the file has."
    return Table("Beside other answers", ("data set", *names, evaluation.bundle), rows, note)


def pair(found: Baseline | None) -> str:
    """Format accuracy and macro F1; empty for None."""
    return f"{found.accuracy:.4f}; {found.macro_f1:.4f}" if found else ""


def confusion(evaluation: Evaluation) -> Table:
    """Texts by correct label and by answer."""
    labels = list(next(iter(evaluation.datasets.values())).classes)
    rows = tuple(
        (name, label, *counts)
        for name, one in evaluation.datasets.items()
        for label, counts in zip(labels, one.confusion, strict=True)
        if any(counts)
    )
    note = "Texts by their correct label, and by the answer as it is given."
    return Table("Confusion", ("data set", "label", *(f"answered {label}" for label in labels)), rows, note)


def mixed(evaluation: Evaluation) -> Table:
    """Mixed texts that are found, and texts of one sign that are called mixed."""
    rows = tuple(
        (
            *(name, one.mixed.texts, share(one.mixed.found, one.mixed.texts), interval(one.mixed.found_interval)),
            *(one.mixed.one_sign, share(one.mixed.alarms, one.mixed.one_sign or 1), interval(one.mixed.alarms_interval)),
        )
        for name, one in evaluation.datasets.items()
        if one.mixed
    )
    header = ("data set", "mixed texts", "found", "95 %", "of one sign", "called mixed", "95 %")
    return Table("Mixed texts", header, rows, "Texts that praise and blame, and positive and negative ones that are called mixed.")


def pools(evaluation: Evaluation) -> Table:
    """The calibration error of sets together, whose names have the same part before the slash."""
    rows = tuple(
        (name, one.sets, one.rows, one.accuracy, one.ece if one.rows >= POOL_TEXTS_MIN else f"fewer than {POOL_TEXTS_MIN:,} texts")
        for name, one in evaluation.pools.items()
    )
    note = "Data sets whose names have the same part before the slash, together. ECE: as above; of few texts it is mostly chance."
    return Table("Calibration of pools", ("pool", "data sets", "texts", "accuracy", "ECE"), rows, note)


def calibration(evaluation: Evaluation) -> Table:
    """The calibration error, compared with that of calibrated models."""
    rows = tuple(
        (
            name,
            one.ece,
            interval(one.calibration.ece_of_calibrated),
            f"{one.calibration.p_value:.4f}",
            "no" if one.calibration.p_value >= P_VALUE_MIN else "yes",
        )
        for name, one in evaluation.datasets.items()
    )
    header = ("data set", "ECE", "calibrated, 95 %", "p", "distinguishable from calibrated")
    note = (
        "ECE: expected calibration error over 15 bins of equal width. Calibrated, 95 %: the range that a perfectly calibrated model with "
        "the same probabilities gets by chance. p: the share of such models whose error is at least as large."
    )
    return Table(CALIBRATION, header, rows, note)


def expected_accuracy(evaluation: Evaluation) -> Table:
    """The accuracy that the probabilities let expect, and its error, with and without the answers that abstain."""
    answers = (
        (named(name, one), kind, found)
        for name, one in evaluation.datasets.items()
        for kind, found in (("all", one.expected), ("not abstained", one.expected_without_abstentions))
    )
    rows = tuple(
        (name, kind, found.rows, found.accuracy, found.expected_accuracy, interval(found.by_chance), f"{found.error:+.4f}")
        for name, kind, found in answers
        if found
    )
    header = ("data set", "answers", "texts", "accuracy", "expected accuracy", "by chance, 95 %", "error")
    note = (
        "Expected accuracy: the mean of the answers' probabilities. The server shows it on live texts, without the answers that abstain. "
        "By chance, 95 %: where the accuracy would lie if the probabilities were true. Error: expected minus true accuracy."
    )
    return Table("Expected accuracy", header, rows, note)


def leave_one_out(evaluation: Evaluation) -> Table:
    """The errors of the expected accuracy of each set with temperatures fitted on the others; without rows for a single set."""
    found = evaluation.leave_one_out
    variants = (found.as_served, found.refitted, found.refitted_by_length) if found else ()
    rows: list[tuple[object, ...]] = [
        (name, f"{temperature:.3f}", *(f"{one.by_set[name]:+.4f}" for one in variants))
        for name, temperature in (found.temperatures if found else {}).items()
    ]
    if found:
        rows.append(("mean absolute error", "", *(one.mean_absolute for one in variants)))
        rows.append(("largest error", "", *(f"{one.by_set[one.worst]:+.4f}, {one.worst}" for one in variants)))
    header = ("data set", "temperature", "as served", "refitted", "refitted by length")
    note = (
        "Errors of the expected accuracy, expected minus true, without the answers that abstain. As served: with the bundle's temperature, "
        f"{evaluation.temperature:.3f}. Refitted: with the temperature that fits the other data sets alone, each with the same weight. By "
        "length: with one for each class of length of which the others have 200 texts or more."
    )
    return Table("Expected accuracy, each set left out", header, tuple(rows), note)


def classes(evaluation: Evaluation) -> Table:
    """Precision, recall and F1 of every label."""
    rows = tuple(
        (name, label, found.precision, found.recall, found.f1, found.rows, found.answered)
        for name, one in evaluation.datasets.items()
        for label, found in one.classes.items()
    )
    return Table(LABELS, ("data set", "label", "precision", "recall", "F1", "texts", "answered"), rows)


def slices(evaluation: Evaluation, kind: str, field: str) -> Table:
    """Accuracy by length in tokens, by the file's domain column, or by what was generated: the worst first."""
    rows = tuple(
        (name, key, found.rows, found.accuracy, interval(found.accuracy_interval), found.ece)
        for name, one in evaluation.datasets.items()
        for key, found in _in_order(getattr(one, field), worst_first=field in GENERATED)
    )
    return Table(f"By {kind}", ("data set", kind, "texts", "accuracy", "95 %", "ECE"), rows)


def _in_order(found: Mapping[str, Slice], *, worst_first: bool) -> Iterable[tuple[str, Slice]]:
    return sorted(found.items(), key=lambda item: item[1].accuracy) if worst_first else found.items()


def pairs(evaluation: Evaluation) -> Table:
    """Pairs of generated texts of which both are answered correctly, by phenomenon, the worst first."""
    rows = tuple(
        (name, phenomenon, found.pairs, share(found.right, found.pairs), interval(found.interval))
        for name, one in evaluation.datasets.items()
        for phenomenon, found in sorted(one.pairs.items(), key=lambda item: item[1].right / item[1].pairs)
    )
    note = "The texts of a pair differ in what turns the label. A model that goes by single words answers one of them wrongly."
    return Table("Pairs", ("data set", "phenomenon", "pairs", "both right", "95 %"), rows, note)


def robustness(evaluation: Evaluation) -> Table:
    """Labels that change when a text has typos or another casing."""
    rows = tuple(
        (name, kind, found.rows, share(found.changed, found.rows), found.accuracy_before, found.accuracy_after)
        for name, one in evaluation.datasets.items()
        for kind, found in one.robustness.items()
    )
    note = (
        "Typos: one random swap or omission of a letter per ten words, at least one in a text of five words. "
        "Casing: all lower, all upper or sentence case."
    )
    return Table("Robustness", ("data set", "change", "texts", "labels changed", "accuracy before", "after"), rows, note)


def behaviours(evaluation: Evaluation) -> Table:
    """Failure rates of the behavioural tests."""
    found = evaluation.behaviours
    rows = [(one.name, one.kind, one.wanted, one.cases, one.failures, share(one.failures, one.cases)) for one in found]
    cases, failures = sum(one.cases for one in found), sum(one.failures for one in found)
    if found:
        rows.append(("all", "", "", cases, failures, share(failures, cases)))
    note = (
        "Texts made from templates (CheckList). Functionality: the correct label is known. Invariance: the label must not change. "
        "Direction: the probability of positive must not move the wrong way by more than 0.1."
    )
    return Table(BEHAVIOURS, ("test", "kind", EXPECTED, "cases", "failed", "share"), tuple(rows), note)


def failures(evaluation: Evaluation) -> Table:
    """Examples of failed cases, those with the highest probability or the largest change first."""
    rows = tuple((one.name, *texts_and_answers(failure), failure.wanted) for one in evaluation.behaviours for failure in one.examples)
    note = "At most five per test: those with the highest probability, or with the largest change of it."
    return Table("Failed cases", ("test", "text", "answered", EXPECTED), rows, note)


def undecided(evaluation: Evaluation) -> Table:
    """How many texts without a correct label abstain or are neutral: English ones, other languages, and each kind."""
    found = evaluation.undecided
    groups = (
        ("English without sentiment", {kind: one for kind, one in found.items() if kind == ENGLISH}),
        ("other languages", {kind: one for kind, one in found.items() if kind != ENGLISH}),
        ("all", found),
        *((kind, {kind: one}) for kind, one in found.items() if kind != ENGLISH),
    )
    rows = tuple((name, *_left_open(kinds)) for name, kinds in groups if kinds)
    note = (
        "The texts have no sentiment, or are not in English (kind: language code). Abstain: marked so, whatever their label. Neutral: not "
        "marked, with this label. Left open: either; of other languages only abstain, because a model cannot tell that they are neutral."
    )
    return Table(UNDECIDED, ("kind", "texts", "abstain", "neutral", "left open", "share"), rows, note)


def left_open(kinds: Mapping[str, Undecided]) -> int:
    """How many texts got no opinion: those that abstain, and of English ones those that are neutral."""
    return sum(one.caught + one.neutral * (kind == ENGLISH) for kind, one in kinds.items())


def _left_open(kinds: Mapping[str, Undecided]) -> tuple[object, ...]:
    rows, caught, neutral = (sum(getattr(one, what) for one in kinds.values()) for what in ("rows", "caught", "neutral"))
    return rows, caught, neutral, left_open(kinds), share(left_open(kinds), rows)


def undecided_in_short(evaluation: Evaluation) -> Table:
    """``undecided`` without the rows of single languages."""
    whole = undecided(evaluation)
    return replace(whole, rows=tuple(row for row in whole.rows if row[0] not in evaluation.undecided))


def size(evaluation: Evaluation) -> Table:
    """Cost per text, and the size of the bundle."""
    graph = evaluation.graph
    rows = tuple(
        (name, f"{one.tokens / one.rows:,.1f}", f"{one.core_ms_per_text:,.2f}", f"{one.texts_per_s:,.1f}")
        for name, one in evaluation.datasets.items()
    )
    note = (
        f"{evaluation.threads} threads; times depend on the machine. {graph.file} has {graph.bytes / 1e6:,.1f} MB, "
        f"the whole bundle {graph.bundle_bytes / 1e6:,.1f} MB."
    )
    return Table("Speed and size", ("data set", "tokens per text", "core-ms per text", "texts/s"), rows, note)


def texts_and_answers(failure: Failure) -> tuple[str, str]:
    """Return one text, or both, and the answers with their probabilities."""
    answers = (f"{label} {score:.2f}" for label, score in zip(failure.answers, failure.scores, strict=True))
    return " \u2192 ".join(map(shortened, failure.texts)), " \u2192 ".join(answers)


def shortened(text: str, limit: int = SHOWN_MAX) -> str:
    """Shorten a text to ``limit`` characters on one line."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "\u2026"


def interval(ends: Interval) -> str:
    """Format the ends of an interval."""
    return f"{ends[0]:.4f} to {ends[1]:.4f}"


def rounded_up(bound: float) -> str:
    """A bound in percent, as cards have it."""
    return f"{math.ceil(round(1e4 * bound, 6)) / 100:.2f} %"


def share(part: int, whole: int) -> str:
    """Format a share in per cent."""
    return f"{100 * part / whole:.1f} %"


def weakest(evaluation: Evaluation, most: int) -> Sequence[tuple[str, float, Failure]]:
    """Return the behavioural tests that fail most often: name, share of failures, and the first example."""
    failing = sorted((one for one in evaluation.behaviours if one.failures), key=lambda one: -one.failures / one.cases)
    return [(one.name, one.failures / one.cases, one.examples[0]) for one in failing[:most]]
