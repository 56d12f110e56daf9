"""Texts of many kinds with the boundaries of their sentences, set by hand: ``sentences.txt`` beside this module.

A line is a text, ``|`` stands behind each sentence but the last, and ``\\n`` and ``\\r`` are line breaks. ``# `` starts a kind.
What the boundaries follow:

- A sentence ends at its end mark with the quotes and brackets that close there and the emoji, emoticons, hashtags and links behind it.
- An emoji or emoticon without an end mark ends a sentence if a new one follows.
- Sentences within quotes and brackets count. A quote goes on with its "she said".
- An ellipsis ends a sentence if a new one follows, not where somebody hesitates.
- Paragraphs, list items, headings and lines of a form are sentences; a wrapped line, and a greeting before a line break, are not.
- A part without a word is not a sentence of its own. The number of a list item belongs to its item.
"""

from dataclasses import dataclass
from pathlib import Path

_ESCAPES = {"\\n": "\n", "\\r": "\r"}


@dataclass(frozen=True, slots=True)
class Marked:
    """A text, the offsets at which its sentences but the first start, and its kind."""

    text: str
    starts: tuple[int, ...]
    kind: str


def marked_texts() -> list[Marked]:
    """All texts of the file, in order."""
    kind, found = "", []
    for line in Path(__file__).with_name("sentences.txt").read_text(encoding="utf-8").split("\n"):
        if line.startswith("# "):
            kind = line[2:]
        elif line:
            found.append(_marked(line, kind))
    return found


def starts_after_space(text: str, offsets: list[int]) -> tuple[int, ...]:
    """The offsets moved behind white space, without the start of the text: so splitters that count it differently compare."""
    moved = {len(text) - len(text[offset:].lstrip()) for offset in offsets}
    return tuple(sorted(moved - {len(text) - len(text.lstrip()), len(text)}))


def _marked(line: str, kind: str) -> Marked:
    for written, meant in _ESCAPES.items():
        line = line.replace(written, meant)
    *before, last = line.split("|")
    text = "".join([*before, last])
    ends = [len("".join(before[: count + 1])) for count in range(len(before))]
    return Marked(text, starts_after_space(text, ends), kind)
