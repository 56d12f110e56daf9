"""The answer to a text as ``sentiment classify`` shows it: a line, and below it one for each sentence and target. Pure."""

from collections.abc import Iterator, Mapping

from sentiment.cli.answers import Asked, reason_of
from sentiment.cli.terminal import LOGITS_FULL, Hue, Piece, flowed
from sentiment.client import CallFailed, Result
from sentiment.client.results import Prediction, marks_of, unanswered_sentences
from sentiment.files.rows import Unread
from sentiment.files.visible import visible

# Columns of a part's kind, below the text.
KIND = 11
# A terminal that is narrower is written beyond its edge.
TEXT_COLUMNS_MIN = 20


def answer_lines(asked: Asked, result: Result, width: int | None, hues: Mapping[str, Hue]) -> Iterator[str]:
    """The lines of a row. An answer without sentences and targets is one line.

    ``width``: columns of the terminal, at which lines of answers with sentences or targets are broken; None for none. ``hues``: of the
    labels; empty for no colour. What is undecided has none.
    """
    text = "" if isinstance(asked.text, Unread) else asked.text
    if isinstance(result, CallFailed):
        code, reason = reason_of(asked, result)
        yield f"{'-':10} {'':6}  {_shown(text)}  ({code}: {visible(reason)})"
        return
    if not (result.sentences or result.targets):
        yield from _entry("", result, text, None, hues)
        return
    yield from _entry("", result, text, width, hues)
    for sentence in result.sentences:
        yield from _entry("  sentence", sentence, sentence.text, width, hues)
    if unanswered := unanswered_sentences(result):
        yield f"  {unanswered}"
    for target in result.targets.values():
        yield from _entry("  target", target, target.target, width, hues)


def _entry(kind: str, answer: Prediction, text: str, width: int | None, hues: Mapping[str, Hue]) -> Iterator[str]:
    """An answer and its text, which is broken at the terminal's width."""
    label, kind = visible(answer.label), f"{kind:{KIND if kind else 0}}"
    head = f"{kind}{label:10} {answer.score:.4f}  "
    hue = None if answer.abstain else hues.get(answer.label)
    first = head if hue is None else f"{kind}{Piece(label, LOGITS_FULL, hue).drawn(True)}{head[len(kind) + len(label) :]}"
    # The label may say it already.
    marks = [mark for mark in marks_of(answer) if mark != answer.label]
    said = [*_shown(text).split(), *([f" ({', '.join(marks)})"] if marks else [])]
    if width is None:
        yield first + " ".join(said)
        return
    for line in flowed(([Piece(word)] for word in said), max(TEXT_COLUMNS_MIN, width - len(head)), colour=False) or [""]:
        yield first + line
        first = " " * len(head)


def _shown(text: str) -> str:
    # Control characters and lone surrogates are shown as escapes: a terminal acts on the first, and the others have no UTF-8.
    return visible(" ".join(text.split()))
