"""Records of delimited text (RFC 4180 with any delimiter). Pure: takes lines, and knows no files.

Not the csv module: in its strict mode it cannot tell where a quote opened, refuses a carriage return outside of quotes, and cannot go on
after a bad record. Most lines have no quote, and are only split.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

QUOTE = '"'
# A field may hold a whole document. A longer record is that of a quote which is not closed.
RECORD_CHARACTERS_MAX = 2**26
AFTER_QUOTE = "a quoted field must end at its closing quote; double the quotes in it, or choose --no-quotes if no field is quoted"


@dataclass(frozen=True, slots=True)
class Record:
    """A record: the ``line`` that it begins in, from 1, how many ``lines`` it covers, and its fields; none for an empty line.

    ``error``: why it has no fields; never quotes the record.
    """

    line: int
    lines: int
    fields: list[str]
    error: str = ""


class OpenQuote(Exception):
    """A quote opens in ``line`` and is not closed where a field may end, so that nothing tells where the next record begins."""

    def __init__(self, line: int, begun: int) -> None:
        """``begun``: the line in which the record begins."""
        super().__init__(f"the quote that opens in line {line} is not closed")
        self.line, self.begun = line, begun


def bare(line: str) -> str:
    """A line without its line end, which is LF or CR LF."""
    return line.removesuffix("\n").removesuffix("\r")


def records(lines: Iterable[str], delimiter: str = ",", *, quotes: bool = True, first: int = 1) -> Iterator[Record]:
    """The records of lines, which have their line ends. Takes only the lines that a record needs.

    A field is quoted if it begins with a quote; elsewhere a quote is a character like any other. What stands after a closing quote is an
    error of the record, if the record is one line with an even number of quotes: the next line then begins a record however the line was
    meant.

    Args:
        lines: of the text, without a byte order mark.
        delimiter: one character.
        quotes: False if no field is quoted.
        first: the number of the first line.

    Raises:
        OpenQuote: a quote is not closed before the text ends, within RECORD_CHARACTERS_MAX, or before a field ends.
    """
    source = iter(lines)
    number = first
    for line in source:
        if not quotes or QUOTE not in line:
            text = bare(line)
            yield Record(number, 1, text.split(delimiter) if text else [])
            number += 1
        else:
            record = _quoted(line, source, delimiter, number)
            number += record.lines
            yield record


def _quoted(line: str, following: Iterator[str], delimiter: str, begun: int) -> Record:
    """The record that begins with a line that has a quote."""
    fields: list[str] = []
    text, number, opened, place, characters = bare(line), begun, begun, 0, len(line)
    while place >= 0:
        if not line.startswith(QUOTE, place):
            end = text.find(delimiter, place)
            fields.append(text[place:] if end < 0 else text[place:end])
            place = -1 if end < 0 else end + 1
            continue
        opened, parts = number, []
        place += 1
        while (end := line.find(QUOTE, place)) < 0 or line.startswith(QUOTE, end + 1):
            # A doubled quote stands for one; without a quote the field goes on in the next line.
            parts.append(line[place:] if end < 0 else line[place : end + 1])
            place = end + 2
            if end < 0:
                line = next(following, "")
                characters += len(line)
                if not line or characters > RECORD_CHARACTERS_MAX:
                    raise OpenQuote(opened, begun)
                text, place, number = bare(line), 0, number + 1
        fields.append("".join([*parts, line[place:end]]))
        place = end + 2
        if end + 1 < len(text) and not text.startswith(delimiter, end + 1):
            if number > begun or line.count(QUOTE) % 2:
                raise OpenQuote(opened, begun)
            return Record(begun, 1, [], AFTER_QUOTE)
        if end + 1 >= len(text):
            place = -1
    return Record(begun, number - begun + 1, fields)


def delimiter_of(header: str, column: str) -> str:
    """The delimiter of a table by its header: one that gives a field of the column's name, else the one with most fields, else a comma."""

    def fitness(delimiter: str) -> tuple[bool, int]:
        try:
            names = next(records([header], delimiter), Record(1, 1, [])).fields
        except OpenQuote:
            names = []
        return column in names and len(names) > 1, len(names)

    # The first of equals.
    return max(",;\t", key=fitness)
