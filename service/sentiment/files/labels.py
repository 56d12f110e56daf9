"""What the values of a file's labels mean: names of a model's labels, or their numbers from 0. Knows no file format."""

import re
from collections.abc import Sequence

# As a table has them; pandas writes a column of whole numbers with gaps as 1.0.
_WHOLE = re.compile(r"([0-9]{1,9})(\.0+)?")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


class WrongLabel(Exception):
    """A value is not a label. The message has neither the file nor the value: a wrong column may hold texts."""


class Labels:
    """Reads the labels of one file, in its order.

    Names win over numbers. A number is a label's place, from 0, only if no name is a number itself: with names 1 to 5, 0 is not a label.
    A file has names or numbers, not both.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """``names``: those of the model, in the order of their numbers."""
        self._places = {name: place for place, name in enumerate(names)}
        self._numbered = not any(map(_NUMBER.fullmatch, names))
        # The first value of each kind: where it stands.
        self._first: dict[str, str] = {}

    @property
    def expected(self) -> str:
        """What a label must be."""
        names = ", ".join(self._places)
        return f"0 to {len(self._places) - 1} or one of {names}" if self._numbered else f"one of {names}"

    def place(self, value: str, where: str) -> int:
        """The number of the label that a value means; ``where``: such as "line 7", for the error.

        Raises:
            WrongLabel: it is neither a name nor a number, or the file had the other kind before.
        """
        whole = found[1] if (found := _WHOLE.fullmatch(value)) else value
        name = value if value in self._places else whole
        if name in self._places:
            kind, place = "a name", self._places[name]
        elif self._numbered and found and int(whole) < len(self._places):
            kind, place = "a number", int(whole)
        else:
            raise WrongLabel(f"must be {self.expected}")
        self._first.setdefault(kind, where)
        if len(self._first) > 1:
            other = next(one for one in self._first if one != kind)
            raise WrongLabel(f"is {kind}, but {self._first[other]} has {other}; use names or numbers throughout")
        return place
