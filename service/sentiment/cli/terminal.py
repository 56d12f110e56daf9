"""Words with values on a terminal: widths, colours, bars. Pure; does not know explanations."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from unicodedata import category, combining, east_asian_width

# Values have one scale for all texts. Colours and bars reach their maximum here.
LOGITS_FULL = 2.0
# Backgrounds of the 256-colour palette from weak to strong. Black on each has a contrast of at least 5.8 to 1 (WCAG requires 4.5).
ORANGE = (230, 223, 222, 216, 215, 208)
BLUE = (195, 153, 117, 111, 75, 33)
_BLACK = "38;5;16"
# Smaller values are not coloured: they round to 0.0.
LOGITS_MIN = 0.05
_NO_WIDTH = {"Mn", "Me", "Cf"}


@dataclass(frozen=True, slots=True)
class Piece:
    """Text on the page in one style: on a background for a value in logits, dim, or bold. ``text`` has been made ``visible``."""

    text: str
    value: float = 0.0
    dim: bool = False
    bold: bool = False

    def drawn(self, colour: bool) -> str:
        """The text with its escape sequences."""
        codes = [code for code, wanted in (("1", self.bold), ("2", self.dim)) if wanted]
        if abs(self.value) >= LOGITS_MIN:
            # Also underlined, for users who cannot distinguish the colours.
            codes += [_BLACK, f"48;5;{_background(self.value)}", *(["4"] if self.value < 0 else [])]
        return f"\x1b[{';'.join(codes)}m{self.text}\x1b[0m" if colour and codes else self.text


def columns(text: str) -> int:
    """How many columns of a terminal a text takes: wide characters take two, accents and joiners none."""
    return sum(0 if combining(sign) or category(sign) in _NO_WIDTH else 2 if east_asian_width(sign) in "WF" else 1 for sign in text)


def fitted(text: str, width: int) -> str:
    """The text in exactly ``width`` columns: cut with dots, or filled with spaces."""
    # The column at which each character ends.
    ends = list(accumulate(map(columns, text)))
    if ends and ends[-1] > width:
        text = text[: bisect_right(ends, width - 3)] + "..."
    return text + " " * (width - columns(text))


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


def bar(value: float, half: int, colour: bool) -> str:
    """A bar in 2 x ``half`` + 1 columns, to the right for positive values. It ends at LOGITS_FULL; larger values are marked."""
    length = min(half, round(abs(value) / LOGITS_FULL * half))
    beyond = abs(value) > LOGITS_FULL
    sign = "<" if value < 0 else ">"
    if colour:
        body = Piece((" " * (length - beyond) + sign * beyond)[:: -1 if value < 0 else 1], value).drawn(colour) if length else ""
    else:
        body = ("#" * (length - beyond) + sign * beyond)[:: -1 if value < 0 else 1]
    blank = " " * (half - length)
    return f"{blank}{body}|{' ' * half}" if value < 0 else f"{' ' * half}|{body}{blank}"


def legend(colour: bool) -> str:
    """What colours or bars mean, in at most 80 columns."""
    if not colour:
        return f"values in logits; bars end at {LOGITS_FULL:g}, for every text alike"
    step = LOGITS_FULL / len(ORANGE)
    values = [step * (number + 0.5) for number in range(len(ORANGE))]
    blue = "".join(Piece("  ", -value).drawn(colour) for value in reversed(values))
    orange = "".join(Piece("  ", value).drawn(colour) for value in values)
    return f"-{LOGITS_FULL:g} {blue} 0 {orange} +{LOGITS_FULL:g}  logits, for every text alike"


def _background(value: float) -> int:
    palette = ORANGE if value > 0 else BLUE
    return palette[min(len(palette), math.ceil(abs(value) / LOGITS_FULL * len(palette))) - 1]
