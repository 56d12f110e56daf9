"""``sentiment classify``: classifies texts in order and in bounded memory, with a server or in this process."""

import argparse
import json
import shutil
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from sentiment.cli.answer_text import answer_lines
from sentiment.cli.answers import PAIR, Asked, Names, answer_of, question_of, table_columns, table_row
from sentiment.cli.calling import source_of
from sentiment.cli.standard_input import standard_input
from sentiment.client import CallFailed, Classification, Result
from sentiment.client.columns import Targeted, Unusable
from sentiment.errors import BadSettings
from sentiment.files.errors import BadFile
from sentiment.files.line_output import LineOutput
from sentiment.files.progress import TextProgress
from sentiment.files.reading import Table
from sentiment.files.rows import TEXT, Row, Unread
from sentiment.files.tables import Write, json_text, writer_of
from sentiment.files.visible import visible, visible_json
from sentiment.v1 import sentiment_pb2 as pb

if TYPE_CHECKING:
    from sentiment.client import Client
    from sentiment.local import Local


def classify(job: argparse.Namespace) -> int:
    """Classify the rows of the job, the command's options: its texts, its input, or without both standard input.

    Returns:
        How many rows have no answer; each of those is shown with its reason.

    Raises:
        BadSettings: the output was begun with other texts or settings.
        BadFile: the input cannot be read to its end; the rows before have their answers.
        SentimentError: the output cannot be used, or no text can be classified.
    """
    with ExitStack() as stack:
        if job.output and job.input and job.output.exists() and job.output.samefile(job.input):
            raise BadSettings(f"--output {job.output}: is the input; choose another output")
        write = writer_of(job.output, escape_formulas=job.escape_formulas) if job.output else None
        source = stack.enter_context(_Source(job))
        output = stack.enter_context(LineOutput(job.output, overwrite=job.overwrite)) if job.output else None
        answerer = stack.enter_context(source_of(job))
        model = answerer.get_model(job.model)
        _check_able(model, job)
        names = Names(source.text, source.pair, not job.drop, tuple(model.labels), job.sentences, source.targets)
        failed = _Failed()
        asked = (names.asked(row) for row in source)
        if output:
            options = {"column": job.reading.column, "pair": job.pair, "drop": job.drop, "truncation": job.truncation}
            parts = {"sentences": job.sentences, "targets": job.targets, "effort": job.effort}
            options |= {name: value if isinstance(value, str | bool) else list(value) for name, value in parts.items() if value}
            output.begin({**options, "model digest": model.id.digest}, job.restart)
            _skip_done(output, asked, source, failed, names)
        # Answers on a terminal, or texts that somebody is typing, have no progress among them.
        shown = output is not None or (job.input is not None and not sys.stdout.isatty())
        before = output.lines if output else 0
        progress = TextProgress(before, shown)
        digests = {model.id.digest} if output else set()
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        for each, result in _answers(asked, source, answerer, job):
            answer = answer_of(each, result)
            if isinstance(result, Classification):
                digests.add(result.model.digest)
            else:
                failed.add(answer)
            if output:
                output.write(json_text(answer))
            elif job.json:
                print(visible_json(json_text(answer)))
            else:
                print("\n".join(answer_lines(each, result, width)))
            progress.advance()
            if source.waits:
                # The next row of standard input may take long to come.
                sys.stdout.flush()
        progress.close()
        if failed.count:
            texts = before + progress.texts
            why = f"; the first: {visible(failed.first)}" if failed.count == texts else ""
            print(f"{failed.count} of {texts} texts have no answer{why}", file=sys.stderr)
        if len(digests) > 1:
            print(f"the model changed during the run: the answers are from digests {visible(', '.join(sorted(digests)))}", file=sys.stderr)
        source.check()
        if output:
            _complete(output, write, source, names)
        return failed.count


@dataclass
class _Failed:
    """Counts the rows without an answer. ``first``: the reason of the first row, if all rows so far have none; else empty."""

    count: int = 0
    first: str = ""

    def add(self, answer: Mapping[str, Any]) -> None:  # Any: JSON
        error = answer["error"]
        self.first = self.first or f"{error['code']}: {error['message']}"
        self.count += 1


class _Source(Iterator[Row]):
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
            self.targets = self._table.key(job.targets, "--targets-column")
            if self.targets == self.text:
                raise BadSettings(f"--targets-column {job.targets}: is the column of the texts; choose another one")
        if job.pair:
            self.pair = self._table.key(job.pair, "--pair")
        elif self.text != PAIR and self._table.has(PAIR):
            print(f"{self.name}: the column {PAIR} is not read; choose it with --pair {PAIR}", file=sys.stderr)

    def __enter__(self) -> "_Source":
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


def _answers(rows: Iterator[Asked], source: _Source, answerer: "Client | Local", job: argparse.Namespace) -> Iterator[tuple[Asked, Result]]:
    """The rows with their results, in order. A text is sent without waiting for others that are not there yet.

    Raises:
        CallFailed: no text can be answered.
    """
    begun: deque[Asked] = deque()
    more = True

    def block() -> Iterator[Any]:  # Any: as _item
        """The rows until one has to be waited for."""
        nonlocal more
        for asked in rows:
            begun.append(asked)
            yield _item(asked)
            if source.waits and job.input is None:
                return
        more = False

    while more:
        results = answerer.classify_all(
            block(), model=job.model, truncation=job.truncation, sentences=job.sentences, effort=job.effort, timeout_s=job.timeout
        )
        for result in results:
            if isinstance(result, CallFailed) and result.code is grpc.StatusCode.UNAVAILABLE:
                raise result
            yield begun.popleft(), result


def _check_able(model: pb.Model, job: argparse.Namespace) -> None:
    """Refuse what no text would get.

    Raises:
        BadSettings: the model answers no targets, or the server no sentences.
    """
    if job.targets and not model.targets:
        raise BadSettings(f"model {visible(model.id.name)}/{model.id.version} answers no targets; choose another with --model")
    if job.sentences and not model.limits.sentences:
        raise BadSettings("the server answers no sentences: it is of a version before 0.2")


def _item(asked: Asked) -> Any:  # Any: what classify_all takes
    """What is sent of a row. One that cannot be read takes its place among the results."""
    if isinstance(asked.text, Unread):
        return Unusable(asked.text.reason)
    if isinstance(asked.pair, Unread):
        return Unusable(asked.pair.reason, PAIR)
    if isinstance(asked.targets, Unread):
        return Unusable(asked.targets.reason, "targets")
    text = asked.text if asked.pair is None else (asked.text, asked.pair)
    return Targeted(text, asked.targets) if asked.targets else text


def _complete(output: LineOutput, write: Write | None, source: _Source, names: Names) -> None:
    """Give the output its name, as a table if it is one."""
    if write is None:
        output.complete()
        return

    def answers() -> Iterator[Mapping[str, Any]]:  # Any: JSON
        return map(json.loads, output.whole())

    if output.path.suffix.lower() == ".json":
        output.complete(lambda stream: write(answers, {}, stream))
        return
    columns = table_columns(answers(), names.kept(source.columns).values(), names)
    output.complete(lambda stream: write(lambda: map(table_row, answers()), columns, stream))


def _skip_done(output: LineOutput, rows: Iterator[Asked], source: _Source, failed: _Failed, names: Names) -> None:
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
