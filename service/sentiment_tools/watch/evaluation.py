"""How good a model is on labelled texts: accuracy, confusion matrix, the surest errors, and what to do about them. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from itertools import accumulate
from typing import Any

from sentiment.observability.agreement import wilson
from sentiment_tools.reports.html_report import plain

# The surest errors that are kept of each pair of labels, and that are shown of all.
ERRORS_MAX = 10
# Characters of a text that are kept: enough to recognize it.
TEXT_MAX = 200
# Thresholds of the table of what acting on sure answers alone would give.
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
STEPS = 1000
# A threshold that keeps a smaller share of the answers saves no work.
KEPT_MIN = 0.2
# With fewer labels of a kind, a figure of it says little: 0.9 among 50 is known to 0.08.
TEXTS_MIN = 50
# A head is learned from some hundred texts, all weights from some thousand: see docs/models/train.md.
HEAD_TEXTS, TRAIN_TEXTS = 200, 2000
# From here on a model does what a person would: two people agree about as often on the sentiment of a text.
GOOD = 0.9


@dataclass(frozen=True, slots=True)
class Judged:
    """An answer whose right label is known. ``scores``: by label, in the model's order; ``place``: in the file, such as line 7."""

    label: str
    scores: Mapping[str, float]
    abstained: bool
    text: str
    place: str


@dataclass(frozen=True, slots=True, order=True)
class Wrong:
    """A wrong answer that does not abstain. ``earlier``: of equally sure ones, the first in the file is kept."""

    score: float
    earlier: int
    label: str
    answered: str
    text: str
    place: str


@dataclass(frozen=True, slots=True)
class Share:
    """Correct answers among ``texts`` texts, with Wilson's 95 % interval."""

    right: int
    texts: int

    @property
    def mean(self) -> float:
        """The share; there is at least one text."""
        return self.right / self.texts

    @property
    def interval(self) -> tuple[float, float]:
        """Between which the share among all such texts lies, if these are a random sample of them."""
        return wilson(self.right, self.texts)

    def json(self) -> dict[str, Any]:  # JSON
        """All but ``texts`` is null without texts."""
        low, high = self.interval if self.texts else (None, None)
        return {"texts": self.texts, "accuracy": self.mean if self.texts else None, "low": low, "high": high}


@dataclass(slots=True)
class Evaluation:
    """Sums over labelled texts. ``labels``: the model's; ``texts``: those that were counted."""

    labels: Sequence[str]
    texts: int = field(init=False, default=0)
    # By right label, the labels from the likeliest to the least likely, and whether the answer abstains. So the answer among any of the
    # labels is known in the end: which labels the file has is known only then.
    _ranked: Counter[tuple[str, tuple[str, ...], bool]] = field(init=False, default_factory=Counter)
    _errors: dict[tuple[str, str], list[Wrong]] = field(init=False, default_factory=dict)
    # Answers by their probability in steps of 1 / STEPS: right ones, and all.
    _by_score: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self._by_score = [[0] * (STEPS + 1) for _ in range(2)]

    def add(self, judged: Judged) -> None:
        """Count a text."""
        ranking = tuple(sorted(judged.scores, key=lambda label: -judged.scores[label]))
        answered, score = ranking[0], judged.scores[ranking[0]]
        self._ranked[judged.label, ranking, judged.abstained] += 1
        step = int(score * STEPS)
        self._by_score[0][step] += answered == judged.label
        self._by_score[1][step] += 1
        if answered != judged.label and not judged.abstained:
            kept = self._errors.setdefault((judged.label, answered), [])
            wrong = Wrong(score, -self.texts, judged.label, answered, judged.text[:TEXT_MAX], judged.place)
            (heappush if len(kept) < ERRORS_MAX else heappushpop)(kept, wrong)
        self.texts += 1

    @property
    def present(self) -> tuple[str, ...]:
        """The labels that the file has, in the model's order."""
        found = {label for label, _, _ in self._ranked}
        return tuple(label for label in self.labels if label in found)

    @property
    def counting(self) -> tuple[str, ...]:
        """The labels that count as answers: those that the file has, for it may lack others on purpose; all if it has only one."""
        return self.present if len(self.present) > 1 else tuple(self.labels)

    def decided(self) -> Share:
        """The answers that do not abstain, as the server's measured accuracy counts them."""
        return self._share(self.labels, with_undecided=False)

    def everything(self) -> Share:
        """All answers, those that abstain by their likeliest label."""
        return self._share(self.labels)

    def among_counting(self) -> Share:
        """All answers, by the likeliest of the labels that count."""
        return self._share(self.counting)

    def confusion(self, label: str) -> dict[str | None, int]:
        """How the texts with this right label were answered: by label, and at None the undecided, whatever their label is."""
        found = Counter[str | None]()
        for (right, ranking, abstained), count in self._ranked.items():
            if right == label:
                found[None if abstained else ranking[0]] += count
        return {name: found[name] for name in (*self.labels, None)}

    def f1(self, label: str) -> float:
        """Of all answers, those that abstain by their likeliest label."""
        told = answered = right = 0
        for (own, ranking, _), count in self._ranked.items():
            told += count * (own == label)
            answered += count * (ranking[0] == label)
            right += count * (own == ranking[0] == label)
        return 2 * right / (told + answered) if told + answered else 0.0

    def macro_f1(self) -> float:
        """The mean over the labels that the file has."""
        return sum(map(self.f1, self.present)) / len(self.present)

    def errors(self) -> list[Wrong]:
        """The surest wrong answers, the surest first: of labels that count."""
        found = [wrong for (_, answered), kept in self._errors.items() if answered in self.counting for wrong in kept]
        return sorted(found, reverse=True)[:ERRORS_MAX]

    def sure(self) -> Iterator[tuple[float, Share]]:
        """By threshold: the answers that are at least so probable."""
        right, every = (list(accumulate(reversed(counts)))[::-1] for counts in self._by_score)
        for threshold in THRESHOLDS:
            step = round(threshold * STEPS)
            yield threshold, Share(right[step], every[step])

    def _share(self, among: Sequence[str], with_undecided: bool = True) -> Share:
        """Of all answers, by the likeliest label ``among`` these."""
        texts = right = 0
        for (label, ranking, abstained), count in self._ranked.items():
            if with_undecided or not abstained:
                texts += count
                right += count * (next(one for one in ranking if one in among) == label)
        return Share(right, texts)


def text_of(found: Evaluation, facts: Mapping[str, str], notes: Sequence[str]) -> str:
    """For a terminal."""
    names = [*found.labels, "undecided"]
    rows = [(label, *counts.values(), f"{found.f1(label):.3f}") for label in found.present if (counts := found.confusion(label))]
    shares = [
        (f"{threshold:.2f}", f"{100 * share.texts / found.texts:.1f} %", f"{share.mean:.4f}" if share.texts else "")
        for threshold, share in found.sure()
    ]
    errors = [f"  {wrong.score:.3f} {wrong.answered}, labelled {wrong.label}, {wrong.place}: {wrong.text}" for wrong in found.errors()]
    parts = [
        "\n".join(f"{name}: {value}" for name, value in facts.items()),
        plain(("", "value", "95 % interval", "texts"), _figures(found)),
        "How texts of each label were answered\n" + plain(("labelled", *names, "F1"), rows),
        "If you act on answers of at least this probability\n" + plain(("probability", "answers", "accuracy"), shares),
        *(["The surest errors: is the answer wrong, or the label?\n" + "\n".join(errors)] if errors else []),
        "What to do next\n" + "\n".join(f"  - {line}" for line in advice(found)),
        *(["\n".join(f"note: {note}" for note in notes)] if notes else []),
    ]
    return "\n\n".join(parts)


def json_of(found: Evaluation, facts: Mapping[str, str], notes: Sequence[str]) -> dict[str, Any]:  # JSON
    """All figures. What is not known is null."""
    errors = [
        {"place": wrong.place, "label": wrong.label, "answered": wrong.answered, "score": wrong.score, "text": wrong.text}
        for wrong in found.errors()
    ]
    table = {label: found.confusion(label) for label in found.present}
    return {
        "meta": dict(facts),
        "notes": list(notes),
        "texts": found.texts,
        "decided": found.decided().json(),
        "all": found.everything().json(),
        "among_labels_of_file": found.among_counting().json(),
        "macro_f1": found.macro_f1(),
        # Two tables, since a label may be called undecided.
        "confusion": {label: {answered: count for answered, count in its.items() if answered is not None} for label, its in table.items()},
        "undecided": {label: its[None] for label, its in table.items()},
        "f1": {label: found.f1(label) for label in found.present},
        "thresholds": [{"probability": threshold, **share.json()} for threshold, share in found.sure()],
        "errors": errors,
        "advice": advice(found),
    }


def _figures(found: Evaluation) -> list[tuple[str, str, str, str]]:
    def row(name: str, share: Share) -> tuple[str, str, str, str]:
        if not share.texts:
            return name, "", "", "0"
        low, high = share.interval
        return name, f"{share.mean:.4f}", f"{low:.4f} to {high:.4f}", f"{share.texts:,}"

    rows = [row("accuracy, without undecided", found.decided()), row("accuracy, undecided by their label", found.everything())]
    if len(found.counting) < len(found.labels):
        rows.append(row(f"accuracy, likelier of {', '.join(found.counting)}", found.among_counting()))
    undecided = found.texts - found.decided().texts
    return [
        *rows,
        ("macro F1", f"{found.macro_f1():.4f}", "", f"{found.texts:,}"),
        ("undecided", f"{100 * undecided / found.texts:.2f} %", "", f"{undecided:,}"),
    ]


def advice(found: Evaluation) -> list[str]:
    """What the figures call for, in sentences."""
    lines = []
    few = [label for label in found.present if sum(found.confusion(label).values()) < TEXTS_MIN]
    if few:
        lines.append(f"Label more texts: fewer than {TEXTS_MIN} are {', '.join(few)}, so figures about these are rough.")
    absent = [label for label in found.labels if label not in found.counting]
    if absent:
        lines.append(
            f"The file has no text labelled {', '.join(absent)}. If yours never are, take the likelier of {', '.join(found.counting)} "
            "by their scores, and read that line."
        )
    # Of fewer texts no figure is worth advice.
    return [*lines, *_by_accuracy(found)] if found.texts >= TEXTS_MIN else lines


def _by_accuracy(found: Evaluation) -> list[str]:
    mean = found.among_counting().mean
    if mean >= GOOD:
        return [f"The answers are right in {100 * mean:.0f} % of the texts. Look at the errors above, and use the model as it is."]
    texts_min = max(TEXTS_MIN, KEPT_MIN * found.texts)
    good = next((threshold for threshold, share in found.sure() if share.texts >= texts_min and share.mean >= GOOD), None)
    if good is None:
        return [_training(found)]
    threshold = (
        f"Threshold: answers of at least {good:.2f} are right in {100 * GOOD:.0f} % or more; send the others to a person "
        "(`score` in an answer; `abstain_below` in a bundle of yours)."
    )
    return [threshold, _training(found)]


def _training(found: Evaluation) -> str:
    if found.texts >= TRAIN_TEXTS:
        return f"Train: {found.texts:,} labelled texts are enough to train the model further (docs/models/train.md)."
    if found.texts >= HEAD_TEXTS:
        return f"New head: {found.texts:,} labelled texts are enough for a head of your own (sentiment-models train --new-head)."
    return (
        f"Label {HEAD_TEXTS} texts or more, as they come: then a head of your own can learn from them (sentiment-models train --new-head)."
    )
