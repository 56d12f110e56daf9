"""Words with values on a terminal: widths, colours, bars. Does not know explanations."""

import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import NamedTuple

from sentiment.files.visible import columns

# Values have one scale for all texts. Colours and bars reach their maximum here.
LOGITS_FULL = 2.0
_BLACK = "38;5;16"
# Smaller values are not coloured: they round to 0.0.
LOGITS_MIN = 0.05


def coloured(color: str) -> bool:
    """Whether to use colours. auto: on a terminal that has them, unless NO_COLOR is set (no-color.org)."""
    if color != "auto":
        return color == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@dataclass(frozen=True, slots=True)
class Hue:
    """The colour of a label. ``name``: in words, with its mark.

    ``backgrounds``: of the 256-colour palette, from weak to strong. Black on each has a contrast of at least 5.8 to 1 (WCAG requires 4.5).
    ``marks``: codes of the style that says the same to users who cannot distinguish the colours.
    """

    name: str
    backgrounds: tuple[int, ...]
    marks: tuple[str, ...] = ()


ORANGE = Hue("orange and bold", (230, 223, 222, 216, 215, 208), ("1",))
BLUE = Hue("blue and underlined", (195, 153, 117, 111, 75, 33), ("4",))
GREY = Hue("grey and italic", (255, 253, 251, 249, 247, 245), ("3",))
GREEN = Hue("green, bold and italic", (194, 157, 120, 114, 78, 41), ("1", "3"))
VIOLET = Hue("violet, bold and underlined", (225, 219, 183, 177, 141, 135), ("1", "4"))
# Labels of these names have these hues in any model, as in the viewer (label_hues.js).
NAMED = {"negative": BLUE, "positive": ORANGE, "neutral": GREY}
HUES = (*NAMED.values(), GREEN, VIOLET)


class Hues(NamedTuple):
    """The hues of values below and above zero."""

    against: Hue
    towards: Hue

    def of(self, value: float) -> Hue:
        """The hue of a value."""
        return self.against if value < 0 else self.towards


def label_hues(labels: Sequence[str]) -> dict[str, Hue]:
    """The hue of each label of a model. Labels of other names take those that are left, in order; beyond five labels they come again."""
    named = {label: NAMED[label.lower()] for label in labels if label.lower() in NAMED}
    free = cycle(hue for hue in HUES if hue not in named.values())
    return {label: named.get(label) or next(free) for label in labels}


def direction_hues(labels: Sequence[str], towards: str, against: str | None) -> Hues:
    """The hues of values for a label and against another; None: all others, which have a hue that no label has, as far as there is one."""
    hues = label_hues(labels)
    spare = next((hue for hue in reversed(HUES) if hue not in hues.values()), HUES[-1])
    return Hues(spare if against is None else hues.get(against, spare), hues.get(towards, spare))


@dataclass(frozen=True, slots=True)
class Piece:
    """Text on the page in one style: on a background for a value in logits, dim, or bold. ``text`` has been made ``visible``.

    ``hue``: of the label that the value speaks for.
    """

    text: str
    value: float = 0.0
    hue: Hue = ORANGE
    dim: bool = False
    bold: bool = False

    def drawn(self, colour: bool) -> str:
        """The text with its escape sequences."""
        codes = [code for code, wanted in (("1", self.bold), ("2", self.dim)) if wanted]
        if abs(self.value) >= LOGITS_MIN:
            codes += [_BLACK, f"48;5;{_background(self.value, self.hue)}", *self.hue.marks]
        return f"\x1b[{';'.join(codes)}m{self.text}\x1b[0m" if colour and codes else self.text


def flowed(atoms: Iterable[Sequence[Piece]], width: int, colour: bool) -> list[str]:
    """Lines of at most ``width`` columns. Atoms are separated by spaces and never broken; a longer one has its own line."""
    lines: list[str] = []
    line, used = "", 0
    for atom in atoms:
        size = sum(columns(piece.text) for piece in atom)
        if used and used + 1 + size > width:
            lines.append(line)
            line, used = "", 0
        if used:
            line, used = line + " ", used + 1
        line, used = line + "".join(piece.drawn(colour) for piece in atom), used + size
    return [*lines, line] if used else lines


def bar(value: float, half: int, colour: bool, hues: Hues) -> str:
    """A bar in 2 x ``half`` + 1 columns, to the right for positive values. It ends at LOGITS_FULL; larger values are marked."""
    length = min(half, round(abs(value) / LOGITS_FULL * half))
    beyond = abs(value) > LOGITS_FULL
    sign = "<" if value < 0 else ">"
    body = ((" " if colour else "#") * (length - beyond) + sign * beyond)[:: -1 if value < 0 else 1]
    if body:
        body = Piece(body, value, hues.of(value)).drawn(colour)
    blank = " " * (half - length)
    return f"{blank}{body}|{' ' * half}" if value < 0 else f"{' ' * half}|{body}{blank}"


def legend(colour: bool, hues: Hues) -> str:
    """What colours or bars mean, in at most 80 columns."""
    if not colour:
        return f"values in logits; bars end at {LOGITS_FULL:g}, for every text alike"
    steps = len(hues.towards.backgrounds)
    values = [LOGITS_FULL / steps * (number + 0.5) for number in range(steps)]
    against = "".join(Piece("  ", value, hues.against).drawn(colour) for value in reversed(values))
    towards = "".join(Piece("  ", value, hues.towards).drawn(colour) for value in values)
    return f"-{LOGITS_FULL:g} {against} 0 {towards} +{LOGITS_FULL:g}  logits, for every text alike"


def _background(value: float, hue: Hue) -> int:
    palette = hue.backgrounds
    return palette[min(len(palette), math.ceil(abs(value) / LOGITS_FULL * len(palette))) - 1]
