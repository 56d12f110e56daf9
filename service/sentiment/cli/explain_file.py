"""``sentiment explain --input``: explains each row of a file, in order and in bounded memory, and sums them up."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from sentiment.cli.answers import Names, item_of
from sentiment.cli.calling import source_of
from sentiment.cli.column_text import column_page
from sentiment.cli.explained_row import KEYS, explained_columns, explained_of, labels_of, row_of
from sentiment.cli.input_rows import InputRows, count_rows
from sentiment.cli.row_output import Tally, complete, error_text, said_on_interrupt, skip_done
from sentiment.cli.terminal import coloured
from sentiment.client import CallFailed, Explanation
from sentiment.client.columns import Item
from sentiment.client.results import of_every_text
from sentiment.errors import BadSettings
from sentiment.explain.methods.column import Column, Explained, Part, Row, column
from sentiment.files.errors import BadFile
from sentiment.files.line_output import LineOutput
from sentiment.files.output import STANDARD_OUTPUT, beside
from sentiment.files.progress import TextProgress
from sentiment.files.reading import Table
from sentiment.files.rows import TEXT
from sentiment.files.tables import json_text, writer_of
from sentiment.files.visible import visible, visible_json

if TYPE_CHECKING:
    from sentiment.client import Client
    from sentiment.local import Local

# How long one text waits for a server that is busy with others.
WAIT_S_MAX = 3600.0
# Gives the objects of all rows in order, as often as it is called.
Objects = Callable[[], Iterator[Mapping[str, Any]]]  # Any: JSON


def explain_file(job: argparse.Namespace) -> int:
    """Explain the rows of the job's input, and print what they say together. The job: the command's options.

    Returns:
        How many rows have no explanation; each has its reason in the output, or without one on standard error.

    Raises:
        BadSettings: the output was begun with other texts or settings.
        BadFile: the input cannot be read to its end; the rows before are explained.
        SentimentError: the output cannot be used, or no text can be explained.
    """
    path = None if job.output == STANDARD_OUTPUT else job.output
    with ExitStack() as stack:
        if path and job.input and path.exists() and path.samefile(job.input):
            raise BadSettings(f"--output {path}: is the input; choose another output")
        write = writer_of(path, escape_formulas=job.escape_formulas) if path else None
        source = stack.enter_context(InputRows(job))
        by = source.key(job.by, "--by") if job.by else None
        output = stack.enter_context(LineOutput(path, overwrite=job.overwrite)) if path else None
        answerer = stack.enter_context(source_of(job))
        model = answerer.get_model(job.model)
        names = Names(source.text, source.pair, not job.drop, tuple(model.labels), answer=KEYS)
        tally, asked = Tally(), (names.asked(row) for row in source)
        if output:
            output.begin({**_recorded(job), "model digest": model.id.digest}, job.restart)
            skip_done(output, asked, source, tally, names)
        before = output.lines if output else 0
        kept = output or stack.enter_context(_Kept())

        def objects() -> Iterator[Mapping[str, Any]]:  # Any: JSON
            return map(json.loads, kept.whole())

        progress = TextProgress(before, job.output != STANDARD_OUTPUT or not sys.stdout.isatty(), count_rows(job))
        if output:
            stack.enter_context(said_on_interrupt(lambda: before + progress.texts))
        for each in asked:
            answer = explained_of(each, _explained(answerer, item_of(each), job))
            tally.add(answer)
            kept.write(json_text(answer), at_once=True)
            if job.output == STANDARD_OUTPUT:
                print(visible_json(json_text(answer)), flush=True)
            progress.advance()
        progress.close()
        if not job.output:
            for number, row in enumerate(objects(), 1):
                if "error" in row:
                    print(visible(f"row {number} has no explanation: {error_text(row)}"), file=sys.stderr)
        tally.report(before + progress.texts, "explanation")
        source.check()
        group = None if by is None else names.kept([by])[by]
        summary = _summary(objects, group, list(model.labels), job)
        if output:
            complete(output, write, source, names, explained_columns(names))
        print(summary, file=beside(job.output))
        return tally.failed


def summarize_file(job: argparse.Namespace) -> None:
    """Print the summary of an output of this command again, from the output alone, with groups of the job's own.

    Raises:
        BadSettings: the input is not such an output.
        BadFile: the input cannot be read to its end.
    """

    def objects() -> Iterator[Mapping[str, Any]]:  # Any: JSON
        with Table(job.input, job.reading) as table:
            for row in table:
                if row.error:
                    raise BadFile(f"{table.name}: {row.place}: {row.error}")
                yield row.values

    with Table(job.input, job.reading) as table:
        by = table.key(job.by, "--by") if job.by else None
        labels = labels_of(dict.fromkeys(table.columns)) if table.columns is not None else None
    labels = next((found for one in objects() if (found := labels_of(one))), []) if labels is None else labels
    try:
        print(_summary(objects, by, labels, job))
    except BadSettings as error:
        raise BadSettings(f"--input {job.input}: {error}") from error


class _Kept:
    """Keeps lines in a file without a name, for as long as the command runs."""

    def __enter__(self) -> "_Kept":
        self._stream = tempfile.TemporaryFile()  # closed below
        return self

    def __exit__(self, *_error: object) -> None:
        self._stream.close()

    def write(self, line: str, *, at_once: bool) -> None:  # noqa: ARG002  # as LineOutput
        """Append a line.

        Raises:
            BadFile: the disk is full.
        """
        try:
            self._stream.write(line.encode() + b"\n")
        except OSError as error:
            raise BadFile(f"{tempfile.gettempdir()}: cannot be written: {error.strerror}; choose another place with TMPDIR") from error

    def whole(self) -> Iterator[bytes]:
        """All lines so far."""
        self._stream.seek(0)
        return iter(self._stream)


def _recorded(job: argparse.Namespace) -> dict[str, object]:
    """The options that the lines of the output depend on."""
    options = {"column": job.reading.column, "pair": job.pair or "", "drop": job.drop, "truncation": job.truncation}
    asked = {"label": job.label, "against": job.options.against, "label alone": job.options.label_alone, "steps": job.options.steps}
    return options | asked | {"about": job.about, "method": list(job.options.methods)}


def _explained(answerer: "Client | Local", item: Item, job: argparse.Namespace) -> Explanation | CallFailed:
    """The explanation of a row. One at a time: a server explains on one core, and the others may wait for their turn, too.

    Raises:
        CallFailed: no text can be explained.
    """
    texts: Any = [item]  # explain_all takes what is unusable, too
    given = {"model": job.model, "label": job.label, "target": job.about, "truncation": job.truncation, "options": job.options}
    ask = partial(answerer.explain_all, texts, **given)
    until = time.monotonic() + WAIT_S_MAX
    while True:
        (found,) = ask(timeout_s=job.timeout)
        if isinstance(found, Explanation):
            return found
        # A text may be unusable, or not name the target.
        wrong = [violation.field for violation in found.violations if not violation.field.startswith((TEXT, "target"))]
        if wrong or of_every_text(found) or found.code is grpc.StatusCode.FAILED_PRECONDITION:
            raise found
        busy = found.code is grpc.StatusCode.RESOURCE_EXHAUSTED and found.retry_after_s is not None and found.retry_after_s < WAIT_S_MAX
        if not busy or time.monotonic() > until:
            return found


def _summary(objects: Objects, by: str | None, labels: list[str], job: argparse.Namespace) -> str:
    """What the rows say together, to be printed. ``by``: the column of the groups."""

    def rows() -> Iterator[Row]:
        return (row_of(one, by) for one in objects())

    found = column(rows, labels, grouped=by is not None)
    examples = _examples(found, rows())
    if job.json:
        shown = {"by": by, **asdict(found), "examples": {str(number): text for number, text in examples.items()}}
        return visible_json(json.dumps(shown, ensure_ascii=False, allow_nan=False))
    return column_page(found, by, examples, colour=coloured(job.color), width=shutil.get_terminal_size().columns)


def _examples(found: Column, rows: Iterator[Row]) -> dict[int, str]:
    """The texts of the examples by the numbers of their rows."""
    parts: tuple[Part, ...] = (found.whole, *found.groups)
    terms = (term for part in parts for reasons in part.reasons for term in (*reasons.words, *reasons.phrases))
    wanted = {number for term in terms for number in term.examples}
    return {number: row.text for number, row in enumerate(rows, 1) if number in wanted and isinstance(row, Explained)}
