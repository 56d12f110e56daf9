"""``sentiment classify``: classifies texts in order and in bounded memory, with a server or in this process."""

import itertools
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from sentiment.cli.connecting import connected
from sentiment.cli.standard_input import standard_input
from sentiment.client import CallFailed, Classification, Result
from sentiment.files.tables import converter_of
from sentiment.files.texts import LineOutput, read_texts
from sentiment.files.visible import visible, visible_json
from sentiment.security.client_credentials import Credentials

if TYPE_CHECKING:
    from sentiment.cli.explain import ExplainJob
    from sentiment.client import Client
    from sentiment.serving.local import Local

# The fields of ``json_line``, for a table. The scores' labels are the model's.
FIELDS = {
    "text": str,
    "label": str,
    "score": float,
    "scores": {...: float},
    "abstain": bool,
    "model": {"name": str, "version": int, "digest": str},
    "tokens": int,
    "truncated": bool,
    "error": {"code": str, "message": str},
}
# No progress is shown for work that ends sooner.
PROGRESS_AFTER_S = 2.0
PROGRESS_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """The arguments of the command. Without texts and input the texts come from standard input.

    ``wait_s``: see ``connecting.connected``.
    """

    texts: Sequence[str]
    input: Path | None
    column: str
    output: Path | None
    json: bool
    target: str
    model: str
    truncation: str
    timeout_s: float
    local: bool
    wait_s: float | None = None
    restart: bool = False
    bundles: tuple[Path, ...] = ()
    credentials: Credentials = field(default_factory=Credentials)


def classify(job: Job) -> int:
    """Classify the job's texts. Returns how many have no answer; each of those is shown with its reason.

    Raises:
        BadSettings: the output was begun with other texts or settings.
        SentimentError: input or output cannot be used, or no text can be classified.
    """
    with ExitStack() as stack:
        convert = converter_of(job.output, FIELDS) if job.output else None
        blocks = _blocks(job)
        output = stack.enter_context(LineOutput(job.output, convert)) if job.output else None
        answerer = stack.enter_context(source_of(job))
        digest = answerer.get_model(job.model).id.digest
        failed = 0
        if output:
            output.begin({"column": job.column, "truncation": job.truncation, "model digest": digest}, job.restart)
            # As one block: nobody waits for the first lines of a file.
            texts = itertools.chain.from_iterable(blocks)
            failed, blocks = _skip_done(output, texts, job), iter([texts])
        # Answers on a terminal, or texts that somebody is typing, have no progress among them.
        shown = output is not None or (job.input is not None and not sys.stdout.isatty())
        progress = Progress(output.lines if output else 0, shown)
        digests = {digest} if output else set()
        for block in blocks:
            for_results, for_lines = itertools.tee(block)
            results = answerer.classify_all(for_results, model=job.model, truncation=job.truncation, timeout_s=job.timeout_s)
            for text, result in zip(for_lines, results, strict=True):
                if isinstance(result, Classification):
                    digests.add(result.model.digest)
                else:
                    failed += 1
                    if result.code is grpc.StatusCode.UNAVAILABLE:
                        raise result
                if output:
                    output.write(json_line(text, result))
                else:
                    print(visible_json(json_line(text, result)) if job.json else _line(text, result))
                progress.advance()
            # The next block of standard input may take long to come.
            sys.stdout.flush()
        progress.close(failed)
        if len(digests) > 1:
            print(f"the model changed during the run: the answers are from digests {visible(', '.join(sorted(digests)))}", file=sys.stderr)
        if output:
            output.complete()
        return failed


def _blocks(job: Job) -> Iterator[Iterable[str]]:
    """The texts. Those of a block are classified together, lazily, and before the next block is asked for.

    Raises:
        BadFile: the input is not there, or has no such column. This is told before a server is looked for.
    """
    if job.input is None:
        return iter([job.texts]) if job.texts else standard_input()
    source = read_texts(job.input, job.column)
    first = list(itertools.islice(source, 1))
    return iter([itertools.chain(first, source)])


def _skip_done(output: LineOutput, texts: Iterator[str], job: Job) -> int:
    """Skip the texts that an earlier run has processed; returns how many of them have no answer.

    Raises:
        BadSettings: the output's lines do not match the texts.
    """
    failed, source = 0, job.input or "standard input"
    for number, line in enumerate(output.kept(), 1):
        try:
            known = json.loads(line)
            answered, has_none = known["text"], "error" in known
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise output.other("is not a line of this command", number) from error
        text = next(texts, None)
        if text is None:
            raise output.other(f"{source} has {number - 1} texts, fewer than this output", number)
        if text != answered:
            raise output.other(f"does not match text {number} of {source}, which has changed or is another file", number)
        failed += has_none
    return failed


@contextmanager
def source_of(job: "Job | ExplainJob") -> "Iterator[Client | Local]":
    """Who answers: the server, or the bundle in this process.

    Raises:
        SentimentError: there is no server, or the bundle cannot be run.
    """
    if job.local:
        from sentiment.serving.local import Local  # noqa: PLC0415  # the client needs no model runtime

        with Local(job.model, bundles=job.bundles) as local:
            yield local
    else:
        with connected(job.target, job.model, job.credentials, job.wait_s) as client:
            yield client


def _line(text: str, result: Result) -> str:
    # Control characters and lone surrogates are shown as escapes: a terminal acts on the first, and the others have no UTF-8.
    shown = visible(" ".join(text.split()))
    if isinstance(result, CallFailed):
        return f"{'-':10} {'':6}  {shown}  ({result.code.name}: {visible(_reason(result))})"
    undecided = "  (undecided)" if result.abstain else ""
    return f"{visible(result.label):10} {result.score:.4f}  {shown}{undecided}"


def _reason(failed: CallFailed) -> str:
    """Why a text has no answer, without its index in the client's call."""
    return f"text: {failed.violations[0].description}" if failed.violations else failed.message


def json_line(text: str, result: Result) -> str:
    """The JSON object of a text with its answer, or with the error that it has instead."""
    if isinstance(result, Classification):
        return json.dumps(result.to_json(text), ensure_ascii=False)
    # A text without an answer may have lone surrogates, which JSON can only hold as escapes.
    return json.dumps({"text": text, "error": {"code": result.code.name, "message": _reason(result)}})


class Progress:
    """Shows the progress of long work as a line on standard error."""

    def __init__(self, skipped: int = 0, shown: bool = True) -> None:
        """``skipped``: texts that an earlier run has processed. ``shown``: False to show only the end, and that only with failures."""
        self._begun_at = time.monotonic()
        self._next_at = self._begun_at + PROGRESS_AFTER_S if shown else math.inf
        self._skipped = skipped
        self._rows = 0
        self._shown = False

    def advance(self) -> None:
        """Count a text."""
        self._rows += 1
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + PROGRESS_EVERY_S
            self._show("\r" if sys.stderr.isatty() else "\n")

    def close(self, failed: int = 0) -> None:
        """Show the end. ``failed``: texts without an answer."""
        if self._shown:
            self._show("\n")
        if failed:
            print(f"{failed} of {self._skipped + self._rows} texts have no answer", file=sys.stderr)

    def _show(self, end: str) -> None:
        self._shown = True
        rate = self._rows / max(1e-9, time.monotonic() - self._begun_at)
        skipped = f" ({self._skipped:,} more from before)" if self._skipped else ""
        print(f"{self._rows:,} texts{skipped}, {rate:,.0f} a second", end=end, file=sys.stderr, flush=True)
