"""``sentiment classify``: classifies texts in order and in bounded memory, with a server or in this process."""

import argparse
import shutil
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import grpc

from sentiment.cli.answer_text import answer_lines
from sentiment.cli.answers import Asked, Names, answer_columns, answer_of, decided, item_of
from sentiment.cli.calling import source_of
from sentiment.cli.input_rows import InputRows, count_rows
from sentiment.cli.row_output import Tally, complete, said_on_interrupt, skip_done
from sentiment.cli.terminal import coloured, label_hues
from sentiment.client import CallFailed, Result
from sentiment.errors import BadSettings
from sentiment.files.line_output import LineOutput
from sentiment.files.progress import TextProgress
from sentiment.files.tables import json_text, writer_of
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
        source = stack.enter_context(InputRows(job))
        output = stack.enter_context(LineOutput(job.output, overwrite=job.overwrite)) if job.output else None
        answerer = stack.enter_context(source_of(job))
        model = answerer.get_model(job.model)
        _check_able(model, job)
        names = Names(source.text, source.pair, not job.drop, tuple(model.labels), job.sentences, source.targets)
        # An output is of the model that it was begun with.
        tally = Tally(digests={model.id.digest} if output else set())
        asked = (names.asked(row) for row in source)
        if output:
            options = {"column": job.reading.column, "pair": job.pair, "drop": job.drop, "truncation": job.truncation}
            parts = {name: getattr(job, name) for name in ("sentences", "targets", "effort", "threshold", "undecided")}
            options |= {name: list(value) if isinstance(value, tuple) else value for name, value in parts.items() if value}
            output.begin({**options, "model digest": model.id.digest}, job.restart)
            skip_done(output, asked, source, tally, names)
        # Answers on a terminal, or texts that somebody is typing, have no progress among them.
        shown = output is not None or (job.input is not None and not sys.stdout.isatty())
        before = output.lines if output else 0
        progress = TextProgress(before, shown, count_rows(job) if shown else None)
        if output:
            stack.enter_context(said_on_interrupt(lambda: before + progress.texts))
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        hues = label_hues(model.labels) if coloured(job.color) else {}
        for each, result in _answers(asked, source, answerer, job):
            answer = answer_of(each, result)
            tally.add(answer)
            if output:
                output.write(json_text(answer))
            elif job.json:
                print(visible_json(json_text(answer)))
            else:
                print("\n".join(answer_lines(each, result, width, hues)))
            progress.advance()
            if source.waits:
                # The next row of standard input may take long to come.
                sys.stdout.flush()
        progress.close()
        tally.report(before + progress.texts, "answer")
        source.check()
        if output:
            complete(output, write, source, names, answer_columns(names))
        return tally.failed


def _answers(
    rows: Iterator[Asked], source: InputRows, answerer: "Client | Local", job: argparse.Namespace
) -> Iterator[tuple[Asked, Result]]:
    """The rows with their results, in order. A text is sent without waiting for others that are not there yet.

    Raises:
        CallFailed: no text can be answered.
    """
    begun: deque[Asked] = deque()
    more = True

    def block() -> Iterator[Any]:  # Any: as item_of
        """The rows until one has to be waited for."""
        nonlocal more
        for asked in rows:
            begun.append(asked)
            yield item_of(asked)
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
            yield begun.popleft(), decided(result, job.threshold, job.undecided)


def _check_able(model: pb.Model, job: argparse.Namespace) -> None:
    """Refuse what no text would get.

    Raises:
        BadSettings: the model answers no targets, or the server no sentences.
    """
    if job.targets and not model.targets:
        raise BadSettings(f"model {visible(model.id.name)}/{model.id.version} answers no targets; choose another with --model")
    if job.sentences and not model.limits.sentences:
        raise BadSettings("the server answers no sentences: it is of a version before 0.2")
