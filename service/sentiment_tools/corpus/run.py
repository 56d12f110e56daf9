"""Runs ``sentiment-batch``: find the files, cut them into parts, see which are done, score the rest."""

import argparse
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from sentiment.client.frames import SCORE
from sentiment.errors import BadSettings
from sentiment.files.errors import BadFile
from sentiment.files.line_output import difference
from sentiment.files.reading import Reading
from sentiment.model.bundle import bundle_roots, find_bundle, load_bundle
from sentiment.observability import logs
from sentiment_tools.corpus.output import CorpusFailed, Count, Output
from sentiment_tools.corpus.parts import cut
from sentiment_tools.corpus.progress import Progress
from sentiment_tools.corpus.scoring import COLUMNS, SENTENCES, TARGETS, Job
from sentiment_tools.corpus.sources import Part, Source, find_sources
from sentiment_tools.corpus.workers import Workers, score_all

# About 20 s of one core on short texts, 50 s on long ones. A killed worker loses at most this much work.
STEP_BYTES = 2 * 2**20
# Small corpora get smaller parts, so that no core waits long for the last one. Huge corpora get larger parts, to limit their number.
STEP_BYTES_MIN, PARTS_WANTED_MIN, PARTS_WANTED_MAX = 2**16, 64, 10_000
REMEDY = "use --restart to start over, or another output to keep this one"


def run(options: argparse.Namespace, reading: Reading, workers: Workers) -> None:
    """Run the command. ``reading``: how the files are read.

    Raises:
        SentimentError: the corpus could not be scored completely. Scored parts stay.
    """
    logs.configure("warning", "text")
    roots = tuple(Path(part).absolute() for part in (options.bundles or os.environ.get("SENTIMENT_BUNDLES", "")).split(os.pathsep) if part)
    bundle = load_bundle(find_bundle(options.model, bundle_roots(roots)))
    targets: tuple[str, ...] | str = options.targets_column or options.targets
    if targets and bundle.manifest.targets is None:
        raise BadSettings(f"model {bundle.id} answers no targets; choose another with --model")
    if targets == reading.column:
        raise BadSettings(f"--targets-column {targets}: is the column of the texts; choose another one")
    parts_of_text = (*(SENTENCES if options.sentences else ()), *(TARGETS if targets else ()))
    columns = (*COLUMNS, *parts_of_text, *(f"{SCORE}{label}" for label in bundle.manifest.labels))
    reserved = set(options.keep) & set(columns)
    if reserved:
        raise BadSettings(f"--keep {min(reserved)}: the output has columns of these names: {', '.join(columns)}")
    sources = find_sources(options.input)
    keep = tuple(dict.fromkeys(options.keep))
    step = options.part_bytes or _step(sum(source.bytes for source in sources))
    request: dict[str, Any] = {
        "version": 5,
        **{name: value for name, value in asdict(reading).items() if name != "format"},
        "keep": list(keep),
        "truncation": options.truncation,
        "sentences": options.sentences,
        "effort": options.effort,
        "targets": targets if isinstance(targets, str) else list(targets),
        "model": bundle.id,
        "digest": bundle.digest,
        "files": _files(sources),
        "part_bytes": step,
    }
    question = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
    output = Output(options.output, question)
    if output.overlaps(options.input, sources):
        raise BadFile(f"{output.shown}: the input includes this output; choose another one")
    begun = time.monotonic()
    # Check before cutting the files, which may take long.
    _check_same(request, output, options.restart)
    job = Job(
        output.uri, question, reading, keep, options.truncation, bundle.id, bundle.digest, bundle.manifest.labels, roots,
        options.sentences, targets, options.effort,
    )  # fmt: skip
    parts = cut(sources, reading, job.beside, step)
    with output.locked():
        # Another command may have begun the output meanwhile.
        _check_same(request, output, options.restart)
        if options.restart:
            output.clear()
        output.record(request)
        try:
            total = _score(parts, job, output, workers, options.workers)
        except KeyboardInterrupt:
            sys.stderr.write("repeat the command to go on\n")
            raise
        now = _files(find_sources(options.input))
        if any(now.get(name) != value for name, value in request["files"].items()):
            raise CorpusFailed(f"{options.input}: files changed while they were scored; {REMEDY}")
        output.report(total, len(parts), time.monotonic() - begun)
    new = len(now) - len(request["files"])
    if new:
        sys.stderr.write(f"files in {options.input} that arrived during the run and are not scored: {new:,}\n")
    bad = f", {total.bad:,} of them without an answer (their column error says why)" if total.bad else ""
    sys.stderr.write(f"{total.rows:,} row{'s' * (total.rows != 1)}{bad}, in {output.shown}\n")


def _files(sources: Sequence[Source]) -> dict[str, list[object]]:
    """The size and change mark of each file."""
    return {source.shown: [source.bytes, source.mark] for source in sources}


def _score(parts: Sequence[Part], job: Job, output: Output, workers: Workers, number: int) -> Count:
    """Score the parts that are not done yet, with this number of workers or, if it is 0, the default; returns the count of all parts."""
    done = output.done(parts)
    left = [part for part in parts if part.name not in done]
    if left:
        with workers as (start, default):
            progress = Progress(sum(count.rows for count in done.values()), sum(part.bytes for part in left))
            try:
                score_all(left, partial(start, job), number or default, lambda count, size: progress.show(count.rows, count.bad, size))
            finally:
                progress.close()
        done = output.done(parts)
    missing = [part for part in parts if part.name not in done]
    if missing:
        raise CorpusFailed(f"{output.shown}: {len(missing)} of {len(parts)} parts are missing, such as that of {missing[0]}")
    return sum(done.values(), Count())


def _step(size: int) -> int:
    """Bytes of text per part, for a corpus of ``size`` bytes."""
    return max(STEP_BYTES_MIN, min(STEP_BYTES, size // PARTS_WANTED_MIN), size // PARTS_WANTED_MAX)


def _check_same(request: Mapping[str, Any], output: Output, restart: bool) -> None:
    """Check that the folder is new, or was begun with the same request.

    Raises:
        BadSettings: it was begun with another request.
    """
    before = output.recorded()
    if before is None or restart:
        return
    if differs := difference(_flat(before), _flat(request)):
        raise BadSettings(f"{output.shown}: {differs}; {REMEDY}")


def _flat(request: Mapping[str, Any]) -> dict[str, object]:
    """The request, with one entry per file, as messages show it."""
    files = {f"bytes and time of {name}": _state(value) for name, value in request["files"].items()}
    return {**files, **{name: value for name, value in request.items() if name != "files"}}


def _state(value: object) -> object:
    """The size of a file, and its mark: a time if it is one."""
    match value:
        case [int(size), str(mark)]:
            when = datetime.fromtimestamp(float(mark), UTC) if re.fullmatch(r"[0-9]{1,10}\.[0-9]+", mark) else mark
            return f"{size:,} bytes, {when}"
    return value
