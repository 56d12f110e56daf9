"""From the command line to an output that is complete: find, cut, see what is done, score the rest."""

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sentiment.corpus.output import CorpusFailed, Count, Output
from sentiment.corpus.parts import cut
from sentiment.corpus.progress import Progress
from sentiment.corpus.scoring import COLUMNS, Job
from sentiment.corpus.sources import Part, Source, find_sources
from sentiment.corpus.workers import cluster, score_all
from sentiment.errors import BadSettings
from sentiment.files.texts import BadFile, difference
from sentiment.model.bundle import bundle_roots, find_bundle, load_bundle
from sentiment.observability import logs

# Some 20 s of a core on short texts, 50 on long ones: what a killed worker loses at most.
STEP_BYTES = 2 * 2**20
# Small corpora are cut finer, so that no core waits long for the last part, and huge ones coarser, so that the parts stay countable.
STEP_BYTES_MIN, PARTS_WANTED_MIN, PARTS_WANTED_MAX = 2**16, 64, 10_000
REMEDY = "use --restart to start over, or another output to keep this one"


def run(options: argparse.Namespace) -> None:
    """Do what the options of ``sentiment-batch`` say.

    Raises:
        SentimentError: it could not be begun, or not be ended; what is done stays.
    """
    logs.configure("warning", "console")
    taken = set(options.keep) & set(COLUMNS)
    if taken:
        raise BadSettings(f"--keep {min(taken)}: is a column of the output's own: {', '.join(COLUMNS)}")
    roots = tuple(Path(part).absolute() for part in (options.bundles or os.environ.get("SENTIMENT_BUNDLES", "")).split(os.pathsep) if part)
    bundle = load_bundle(find_bundle(options.model, bundle_roots(roots)))
    sources = find_sources(options.input)
    keep = tuple(dict.fromkeys(options.keep))
    step = options.part_bytes or _step(sum(source.bytes for source in sources))
    asked: dict[str, Any] = {
        "format": 2,
        "column": options.column,
        "keep": list(keep),
        "truncation": options.truncation,
        "model": bundle.id,
        "digest": bundle.digest,
        "files": _files(sources),
        "part_bytes": step,
    }
    question = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    output = Output(options.output, question)
    if output.overlaps(options.input, sources):
        raise BadFile(f"{output.shown}: would be read itself; choose another output")
    begun = time.monotonic()
    # Before the files are cut, which may take long.
    _check_same(asked, output, options.restart)
    parts = cut(sources, options.column, keep, step)
    with output.alone():
        # Another command may have begun it meanwhile.
        _check_same(asked, output, options.restart)
        if options.restart:
            output.clear()
        output.ask(asked)
        job = Job(output.uri, question, options.column, keep, options.truncation, bundle.id, bundle.digest, bundle.manifest.labels, roots)
        total = _score(parts, job, output, options)
        now = _files(find_sources(options.input))
        if any(now.get(name) != value for name, value in asked["files"].items()):
            raise CorpusFailed(f"{options.input}: files changed while they were scored; {REMEDY}")
        output.report(total, len(parts), time.monotonic() - begun)
    new = len(now) - len(asked["files"])
    if new:
        sys.stderr.write(f"{new:,} files arrived in {options.input} meanwhile and are not scored\n")
    bad = f", {total.bad:,} of them without an answer (their column error says why)" if total.bad else ""
    sys.stderr.write(f"{total.rows:,} rows{bad}, in {output.shown}\n")


def _files(sources: Sequence[Source]) -> dict[str, list[object]]:
    """What the answers depend on of each file: its bytes, and what tells it from what it was before."""
    return {source.shown: [source.bytes, source.mark] for source in sources}


def _score(parts: Sequence[Part], job: Job, output: Output, options: argparse.Namespace) -> Count:
    """Score the parts that are not answered yet; returns what all hold."""
    done = output.done(parts)
    left = [part for part in parts if part.name not in done]
    if left:
        with cluster(options.ray, options.workers) as workers:
            shown = Progress(sum(count.rows for count in done.values()), sum(part.bytes for part in left))
            score_all(left, job, workers, lambda found, size: shown.tell(found.rows, found.bad, size))
            shown.close()
        done = output.done(parts)
    missing = [part for part in parts if part.name not in done]
    if missing:
        raise CorpusFailed(f"{output.shown}: {len(missing)} of {len(parts)} parts are not there, such as that of {missing[0]}")
    return sum(done.values(), Count())


def _step(size: int) -> int:
    """Bytes of text in a part of a corpus of so many."""
    return max(STEP_BYTES_MIN, min(STEP_BYTES, size // PARTS_WANTED_MIN), size // PARTS_WANTED_MAX)


def _check_same(asked: Mapping[str, Any], output: Output, restart: bool) -> None:
    """Whether a folder that was begun, if it was, is for what is asked now."""
    before = output.asked_before()
    if before is None or restart:
        return
    if differs := difference(_flat(before), _flat(asked)):
        raise BadSettings(f"{output.shown}: {differs}; {REMEDY}")


def _flat(asked: Mapping[str, Any]) -> dict[str, object]:
    """What was asked, with each file by itself."""
    files = {f"[bytes, time] of {name}": value for name, value in asked["files"].items()}
    return {**files, **{name: value for name, value in asked.items() if name != "files"}}
