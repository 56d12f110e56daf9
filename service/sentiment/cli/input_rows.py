"""The rows that ``classify`` and ``explain`` are asked about: of a file, of standard input, or the texts of the command line."""

import argparse
import sys
from collections.abc import Iterator, Sequence

from sentiment.cli.answers import PAIR
from sentiment.cli.standard_input import standard_input
from sentiment.errors import BadSettings
from sentiment.files.errors import BadFile
from sentiment.files.reading import Table
from sentiment.files.rows import TEXT, Row


class InputRows(Iterator[Row]):
    """The rows of the job. A file that cannot be read to its end ends them, and ``check`` then raises why, after their answers.

    Attributes:
        name: of the file, for messages.
        text, pair: the columns of the texts; ``pair`` is empty for none.
        targets: of every text, or their column.
    """

    def __init__(self, job: argparse.Namespace) -> None:
        """Open the input.

        Raises:
            BadFile: the input is not there, or has no such column. This is checked before the command looks for a server.
        """
        self._table: Table | None = None
        self._broken: BadFile | None = None
        self.name, self.text, self.pair, self.targets = "the command line", TEXT, job.pair, job.targets
        if job.texts:
            self._rows: Iterator[Row] = (Row(f"text {number}", {TEXT: text}) for number, text in enumerate(job.texts, 1))
            return
        self._table = Table(job.input, job.reading) if job.input else standard_input(job.reading)
        self._rows = iter(self._table)
        self.name = self._table.name
        self.text = self._table.key(job.reading.column)
        if isinstance(job.targets, str):
            self.targets = self.key(job.targets, "--targets-column")
        if job.pair:
            self.pair = self._table.key(job.pair, "--pair")
        elif self.text != PAIR and self._table.has(PAIR):
            print(f"{self.name}: the column {PAIR} is not read; choose it with --pair {PAIR}", file=sys.stderr)

    def __enter__(self) -> "InputRows":
        return self

    def __exit__(self, *_error: object) -> None:
        if self._table:
            self._table.close()

    def __next__(self) -> Row:
        try:
            return next(self._rows)
        except BadFile as error:
            self._broken = error
            raise StopIteration from None

    def key(self, column: str, option: str) -> str:
        """The name of another column, as ``Table.key``.

        Raises:
            BadSettings: it is the column of the texts.
            BadFile: there is no such column.
        """
        assert self._table, "the texts of the command line have no columns"
        found = self._table.key(column, option)
        if found == self.text or (self.pair and found == self.pair):
            raise BadSettings(f"{option} {column}: is the column of the texts; choose another one")
        return found

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns, as far as the file has a header."""
        return (self._table.columns if self._table else None) or ()

    @property
    def waits(self) -> bool:
        """Whether the next row may have to be waited for."""
        return self._table is not None and self._table.waits

    def check(self) -> None:
        """Raise the error that ended the rows before the end of the file, if there is one.

        Raises:
            BadFile: as it was raised.
        """
        if self._broken:
            raise self._broken


def count_rows(job: argparse.Namespace) -> int | None:
    """How many rows the input has, as far as it can be read twice. That is soon known, compared with what each row takes."""
    if job.input is None or not job.input.is_file():
        return None
    try:
        with Table(job.input, job.reading, needed=frozenset([job.reading.column])) as table:
            return sum(1 for _ in table)
    except BadFile:
        # Its rows up to there are processed before this is reported.
        return None
