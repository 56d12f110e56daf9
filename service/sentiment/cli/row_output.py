"""The output of a row each, which an interrupted run leaves to be continued: what it has already, and how it becomes a table."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sentiment.cli.answers import Asked, Names, question_of, table_columns, table_row
from sentiment.cli.input_rows import InputRows
from sentiment.files.line_output import LineOutput
from sentiment.files.tables import Write, json_text
from sentiment.files.visible import visible


@dataclass
class Tally:
    """Counts the rows without an answer, and knows the models of the others.

    ``first``: the reason of the first row without an answer. ``digests``: of the models.
    """

    failed: int = 0
    first: str = ""
    digests: set[str] = field(default_factory=set)

    def add(self, answer: Mapping[str, Any]) -> None:  # Any: JSON
        """Count a row by its object."""
        if "error" in answer:
            self.failed += 1
            self.first = self.first or error_text(answer)
        else:
            self.digests.add(answer["model"]["digest"])

    def report(self, texts: int, what: str) -> None:
        """Say on standard error how many of the texts have none of ``what``, and whether the model changed on the way."""
        if self.failed:
            why = f"; the first: {visible(self.first)}" if self.failed == texts else ""
            print(f"{self.failed} of {texts} texts have no {what}{why}", file=sys.stderr)
        if len(self.digests) > 1:
            digests = visible(", ".join(sorted(self.digests)))
            print(f"the model changed during the run: the answers are from digests {digests}", file=sys.stderr)


def error_text(answer: Mapping[str, Any]) -> str:  # Any: JSON
    """Why a row has no answer."""
    return f"{answer['error']['code']}: {answer['error']['message']}"


@contextmanager
def said_on_interrupt(rows: Callable[[], int]) -> Iterator[None]:
    """If the user ends the work in it with Ctrl-C, say how many rows the output has, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\ninterrupted: {rows():,} rows are kept; repeat the command to continue", file=sys.stderr)
        raise


def complete(output: LineOutput, write: Write | None, source: InputRows, names: Names, last: Mapping[str, type]) -> None:
    """Give the output its name, as a table if it is one. ``last``: the table's columns of the answer."""
    if write is None:
        output.complete()
        return

    def answers() -> Iterator[Mapping[str, Any]]:  # Any: JSON
        return map(json.loads, output.whole())

    if output.path.suffix.lower() == ".json":
        output.complete(lambda stream: write(answers, {}, stream))
        return
    columns = table_columns(answers(), names.kept(source.columns).values(), names, last)
    output.complete(lambda stream: write(lambda: map(table_row, answers()), columns, stream))


def skip_done(output: LineOutput, rows: Iterator[Asked], source: InputRows, tally: Tally, names: Names) -> None:
    """Skip the rows that an earlier run has processed, and count them.

    Raises:
        BadSettings: the output's lines do not match the rows.
        BadFile: the input cannot be read so far.
    """
    for number, line in enumerate(output.kept(), 1):
        try:
            known = json.loads(line)
            answered = names.asked_in(known)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise output.other("is not a line of this command", number) from error
        if not ("label" in known or "error" in known):
            raise output.other("is not a line of this command", number)
        asked = next(rows, None)
        if asked is None:
            source.check()
            raise output.other(f"{source.name} has {number - 1} texts, fewer than this output", number)
        if answered != json.loads(json_text(question_of(asked, targets="label" in known))):
            raise output.other(f"does not match text {number} of {source.name}, which has changed or is another file", number)
        tally.add(known)
