"""Compare two bundles on the same texts: accuracy, flipped answers, significance and cost."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import Field

from sentiment.model.cores import cores_granted
from sentiment_models.errors import ModelsError
from sentiment_models.evaluation.evaluate import Dataset, Measured, graph_measured, refuse_equal_names, run_file
from sentiment_models.evaluation.findings import GraphMeasured
from sentiment_models.evaluation.metrics import calibration_error
from sentiment_models.evaluation.resample import SEED, difference_interval, mcnemar
from sentiment_models.evaluation.tables import P_VALUE_MIN, interval, shortened
from sentiment_models.export.inference import load_served
from sentiment_models.reports.report import Table
from sentiment_models.stored import Stored
from sentiment_tools.reports.html_report import Section, page, paragraph

# Flips shown per file and direction, those where the second bundle is most confident first.
EXAMPLES_MAX = 12
POOLED = "all files"
# Characters of a text shown in a terminal.
TERMINAL_MAX = 90

Precisions = tuple[str | None, str | None]
Stated = tuple[float | None, float | None]
"""A figure of the probabilities that each bundle states; None where it states none, as for ``neutral`` by abstaining."""


class Side(Stored):
    """One of the two bundles."""

    bundle: str
    graph: GraphMeasured


class Flip(Stored):
    """A text that exactly one bundle answers correctly, shortened. ``right`` is the correct label; ``scores`` are probabilities."""

    text: str
    right: str
    answers: tuple[str, str]
    scores: Stated


class Difference(Stored):
    """Both bundles on one file.

    ``lost``: texts that only the first bundle answers correctly. ``gained``: texts that only the second does. ``changed``: texts
    whose label differs. ``interval``: the paired 95 % interval of the accuracy difference, second minus first. ``p_value``:
    McNemar's exact test. ``expected_accuracy``: the mean probability that each states of its answers. ``ece``: expected calibration error.
    """

    rows: int = Field(gt=0)
    accuracy: tuple[float, float]
    lost: int
    gained: int
    changed: int
    interval: tuple[float, float]
    p_value: float
    expected_accuracy: Stated
    ece: Stated
    core_ms_per_text: tuple[float, float]
    lost_examples: tuple[Flip, ...] = ()
    gained_examples: tuple[Flip, ...] = ()

    @property
    def verdict(self) -> str:
        """Which bundle is better, by McNemar's test alone."""
        if self.p_value >= P_VALUE_MIN:
            return "not shown"
        return "B" if self.gained > self.lost else "A"


class Comparison(Stored):
    """Two graphs compared per data set. With several files, POOLED holds all of them together."""

    first: Side
    second: Side
    threads: int
    seed: int
    datasets: dict[str, Difference] = Field(min_length=1)


def compare(
    first: Path, second: Path, datasets: Sequence[Dataset], precisions: Precisions = (None, None), threads: int = 0, seed: int = SEED
) -> Comparison:
    """Run two bundles on labelled files.

    Answers count among the labels that a file has. One of the bundles may lack labels of the other: without ``neutral``, an answer that
    abstains counts as neutral. It states no probability of that, so its expected accuracy and ECE on such a file are withheld.

    Args:
        first: the current bundle.
        second: the candidate bundle.
        datasets: the labelled files.
        precisions: the graph of each bundle; None: the graph that would be served on this machine.
        threads: threads per session; 0: the available cores.
        seed: of the bootstrap.

    Raises:
        ModelsError: each bundle has a label that the other lacks.
        BadData: a file cannot be used, or two data sets have the same name.
        sentiment.errors.BadBundle: a bundle cannot be served on this machine.
    """
    refuse_equal_names(datasets)
    threads = threads or cores_granted()
    sides = [load_served(bundle, precision) for bundle, precision in zip((first, second), precisions, strict=True)]
    labels, others = (side.manifest.labels for side in sides)
    names = max(labels, others, key=len)
    if not {*labels, *others} <= set(names):
        wanted = "compare needs equal labels, or one bundle with all labels of the other"
        raise ModelsError(f"{second} has labels {', '.join(others)}; {first} has {', '.join(labels)}; {wanted}")
    found: dict[str, Difference] = {}
    for dataset in datasets:
        before, after = (run_file(side, dataset, names, threads) for side in sides)
        found[dataset.name] = _difference(before, after, names, seed)
    if len(found) > 1:
        found[POOLED] = _pooled(list(found.values()), seed)
    current, candidate = (Side(bundle=side.bundle.id, graph=graph_measured(side)) for side in sides)
    return Comparison(first=current, second=candidate, threads=threads, seed=seed, datasets=found)


def _difference(before: Measured, after: Measured, labels: Sequence[str], seed: int) -> Difference:
    stated = before.judged.confidence, after.judged.confidence
    answers = before.judged.answers, after.judged.answers
    right = [found == before.labels for found in answers]
    rows = len(before.labels)

    def examples(mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[Flip, ...]:
        surest = sorted(np.flatnonzero(mask).tolist(), key=lambda row: -float(np.nan_to_num(stated[1][row])))
        return tuple(
            Flip(
                text=shortened(text if isinstance(text := before.texts[row], str) else " | ".join(text)),
                right=labels[before.labels[row]],
                answers=(labels[answers[0][row]], labels[answers[1][row]]),
                scores=(_known(stated[0][row], 4), _known(stated[1][row], 4)),
            )
            for row in surest[:EXAMPLES_MAX]
        )

    lost, gained = right[0] & ~right[1], ~right[0] & right[1]
    counts = int(lost.sum()), int(gained.sum())
    return Difference(
        rows=rows,
        accuracy=_pair([one.mean() for one in right]),
        lost=counts[0],
        gained=counts[1],
        changed=int((answers[0] != answers[1]).sum()),
        interval=_pair(difference_interval(*counts, rows, seed)),
        p_value=mcnemar(*counts),
        expected_accuracy=_stated([one.mean() for one in stated]),
        ece=_stated([math.nan if np.isnan(one).any() else calibration_error(one, its) for one, its in zip(stated, right, strict=True)]),
        core_ms_per_text=_pair([1e3 * one.core_s / rows for one in (before, after)], 3),
        lost_examples=examples(lost),
        gained_examples=examples(gained),
    )


def _known(value: float, digits: int = 5) -> float | None:
    return None if math.isnan(value) else round(float(value), digits)


def _stated(values: Sequence[float]) -> Stated:
    first, second = map(_known, values)
    return first, second


def _pair(values: Sequence[float], digits: int = 5) -> tuple[float, float]:
    first, second = (round(float(value), digits) for value in values)
    return first, second


def _pooled(parts: Sequence[Difference], seed: int) -> Difference:
    """Combine all files, each text counted once; without examples. ``ece`` is the mean of those of the files."""
    rows, lost, gained = (sum(getattr(part, name) for part in parts) for name in ("rows", "lost", "gained"))

    def means(name: str) -> list[float]:
        found = [[getattr(part, name)[side] for part in parts] for side in (0, 1)]
        return [math.nan if None in its else sum(one * part.rows for one, part in zip(its, parts, strict=True)) / rows for its in found]

    return Difference(
        rows=rows,
        accuracy=_pair(means("accuracy")),
        lost=lost,
        gained=gained,
        changed=sum(part.changed for part in parts),
        interval=_pair(difference_interval(lost, gained, rows, seed)),
        p_value=mcnemar(lost, gained),
        expected_accuracy=_stated(means("expected_accuracy")),
        ece=_stated(means("ece")),
        core_ms_per_text=_pair(means("core_ms_per_text"), 3),
    )


def tables(comparison: Comparison) -> tuple[Table, Table, Table]:
    """Return the tables of accuracy, of stated probabilities, and of cost."""
    accuracy = Table(
        "Accuracy",
        ("data set", "texts", "A", "B", "B - A", "95 %", "p", "better", "A only right", "B only right", "labels changed"),
        tuple(
            (
                *(name, one.rows, *one.accuracy, f"{one.accuracy[1] - one.accuracy[0]:+.4f}", interval(one.interval)),
                *(f"{one.p_value:.4f}", one.verdict, one.lost, one.gained, one.changed),
            )
            for name, one in comparison.datasets.items()
        ),
        "95 %: paired bootstrap interval of the difference. p: McNemar's exact test on the texts that only one bundle answers correctly. "
        f"At {P_VALUE_MIN} or more, the difference may be chance, and neither is shown to be better.",
    )
    stated = Table(
        "Stated probabilities",
        ("data set", "expected accuracy A", "true", "expected accuracy B", "true", "ECE A", "ECE B"),
        tuple(
            (
                *(name, one.expected_accuracy[0], one.accuracy[0], one.expected_accuracy[1], one.accuracy[1]),
                *one.ece,
            )
            for name, one in comparison.datasets.items()
        ),
        "Expected accuracy: the mean probability that the answers state. Above the true one, they are too sure. ECE: expected calibration "
        "error; 0 is perfect. Both are empty for a bundle that answers neutral by abstaining: it states no probability of that.",
    )
    first, second = comparison.first.graph, comparison.second.graph
    cost = [
        (f"core-ms per text, {name}", f"{one.core_ms_per_text[0]:.2f}", f"{one.core_ms_per_text[1]:.2f}", _ratio(*one.core_ms_per_text))
        for name, one in comparison.datasets.items()
    ]
    for name, a, b in (("graph, MB", first.bytes, second.bytes), ("bundle, MB", first.bundle_bytes, second.bundle_bytes)):
        cost.append((name, f"{a / 1e6:.1f}", f"{b / 1e6:.1f}", _ratio(a, b)))
    return accuracy, stated, Table("Cost", ("", "A", "B", "B / A"), tuple(cost), "Times depend on the machine.")


def in_words(comparison: Comparison) -> list[str]:
    """Say what the comparison shows: what to do, a sentence for each data set, and what the second bundle costs."""
    better = {one.verdict for one in comparison.datasets.values()}
    if better >= {"A", "B"}:
        advice = "Each is better somewhere. Look at the texts that only one answers correctly before you decide."
    elif "B" in better:
        advice = "Take B: it is better, and nowhere shown to be worse."
    elif "A" in better:
        advice = "Keep A: B is worse, and nowhere shown to be better."
    else:
        advice = "Neither is shown to be better: decide by cost, or compare on more texts."
    whole = list(comparison.datasets.values())[-1]
    costs = f"A text costs B {_ratio(*whole.core_ms_per_text) or '?'} times as much CPU time as A."
    return [advice, *(f"{name}: {_sentence(one)}" for name, one in comparison.datasets.items()), costs]


def _sentence(one: Difference) -> str:
    first, second = (f"{100 * share:.1f} %" for share in one.accuracy)
    low, high = (f"{100 * bound:+.1f}" for bound in one.interval)
    correct = f"of {one.rows:,} texts A answers {first} correctly and B {second} ({low} to {high} points)"
    said = f"{one.verdict} is better" if one.verdict in "AB" else "no difference is shown"
    return f"{said}; {correct}; {one.changed:,} get another label."


def as_text(comparison: Comparison) -> str:
    """Format the comparison for a terminal, with the first few flips."""
    narrow = (
        replace(one, rows=tuple((shortened(str(text), TERMINAL_MAX), *rest) for text, *rest in one.rows[:5])) for one in _flips(comparison)
    )
    words = "\n".join(in_words(comparison))
    return "\n\n".join([_names(comparison), words, *(one.text() for one in (*tables(comparison), *narrow))])


def as_page(comparison: Comparison) -> str:
    """Compose a self-contained HTML document."""
    sections = [one.section() for one in (*tables(comparison), *_flips(comparison))]
    return page(
        f"{comparison.first.bundle} compared with {comparison.second.bundle}",
        [Section("Bundles", "".join(map(paragraph, [_names(comparison), *in_words(comparison)]))), *sections],
    )


def _flips(comparison: Comparison) -> Iterator[Table]:
    for name, one in comparison.datasets.items():
        for kind, total, flips in (
            ("right in A, wrong in B", one.lost, one.lost_examples),
            ("wrong in A, right in B", one.gained, one.gained_examples),
        ):
            rows = tuple((one.text, one.right, *map(_answer, one.answers, one.scores)) for one in flips)
            if rows:
                yield Table(f"{name}: {kind}, {len(rows)} of {total:,}", ("text", "right", "A", "B"), rows)


def _answer(label: str, score: float | None) -> str:
    return label if score is None else f"{label} {score:.2f}"


def _names(comparison: Comparison) -> str:
    sides = (comparison.first, comparison.second)
    named = (f"{letter} is {side.bundle} ({side.graph.precision})" for letter, side in zip("AB", sides, strict=True))
    return f"{', '.join(named)}; {comparison.threads} threads."


def _ratio(first: float, second: float) -> str:
    return f"{second / first:.2f}" if first else ""
