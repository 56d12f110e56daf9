"""Text of others, safe to print: what a terminal acts on is shown as escapes; and how wide it is there. Pure."""

import re
from bisect import bisect_right
from itertools import accumulate
from unicodedata import category, combining, east_asian_width

_JOINERS = "\u200c\u200d"
# Control characters and writing directions that json.dumps does not escape, although a terminal may act on them.
_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_NO_WIDTH = {"Mn", "Me", "Cf"}


def visible(text: str) -> str:
    """The text on one line, safe to print: white space becomes a space; control characters, changes of the writing direction and code
    points without a character become escapes.
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def visible_lines(text: str) -> str:
    """As ``visible``, line by line."""
    return "\n".join(map(visible, text.split("\n")))


def visible_json(text: str) -> str:
    """JSON of the same value, safe to print."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


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


def _visible(sign: str) -> str:
    if sign.isspace():
        return " "
    kind = category(sign)
    if kind in ("Cc", "Cs", "Co", "Cn") or (kind == "Cf" and sign not in _JOINERS):
        return sign.encode("unicode_escape").decode()
    return sign
