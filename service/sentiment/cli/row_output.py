"""The output of a row each, which an interrupted run leaves to be continued: what it has already, and how it becomes a table."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sentiment.cli.answers import Asked, Names, question_of, table_columns, table_row
from sentiment.cli.input_rows import InputRows
from sentiment.files.line_output import LineOutput
from sentiment.files.tables import Write, json_text


@dataclass
class Failed:
    """Counts the rows without an answer. ``first``: the reason of the first row, if all rows so far have none; else empty."""

    count: int = 0
    first: str = ""

    def add(self, answer: Mapping[str, Any]) -> None:  # Any: JSON
        """Count a row, the object that ``answer_of`` gives."""
        error = answer["error"]
        self.first = self.first or f"{error['code']}: {error['message']}"
        self.count += 1


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


def skip_done(output: LineOutput, rows: Iterator[Asked], source: InputRows, failed: Failed, names: Names) -> None:
    """Skip the rows that an earlier run has processed, and count those that have no answer.

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
        if "error" in known:
            failed.add(known)
