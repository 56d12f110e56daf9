"""From the command line to an output that is complete: find, cut, see what is done, score the rest."""

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentiment import logs
from sentiment.corpus.output import CorpusFailed, Count, Output
from sentiment.corpus.parts import cut
from sentiment.corpus.progress import Progress
from sentiment.corpus.scoring import COLUMNS, Job
from sentiment.corpus.sources import find_sources
from sentiment.corpus.workers import cluster, score_all
from sentiment.errors import BadSettings
from sentiment.files import BadFile
from sentiment.model.bundle import bundle_roots, find_bundle, load_bundle

# Some 20 s of a core on short texts, 50 on long ones: what a killed worker loses at most.
STEP_BYTES = 2 * 2**20
# Small corpora are cut finer, so that no core waits long for the last part, and huge ones coarser, so that the parts stay countable.
STEP_BYTES_MIN, PARTS_WANTED_MIN, PARTS_WANTED_MAX = 2**16, 64, 10_000


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
    output = Output(options.output)
    if output.overlaps(options.input, sources):
        raise BadFile(f"{output.shown}: would be read itself; choose another output")
    keep = tuple(dict.fromkeys(options.keep))
    job = Job(output.uri, options.column, keep, options.truncation, bundle.id, bundle.digest, bundle.manifest.labels, roots)
    begun = time.monotonic()
    step = options.part_bytes or _step(sum(source.bytes for source in sources))
    asked: dict[str, Any] = {
        "format": 1,
        "column": job.column,
        "keep": list(keep),
        "truncation": job.truncation,
        "model": job.model,
        "digest": job.digest,
        "files": {source.shown: [source.bytes, source.mark] for source in sources},
        "part_bytes": step,
    }
    before = output.asked_before()
    if before is not None:
        _check_same(asked, before, output.shown)
    parts = cut(sources, job.column, keep, step)
    if before is None:
        output.ask(asked)
    done = output.done(parts)
    left = [part for part in parts if part.name not in done]
    total = sum(done.values(), Count())
    if left:
        with cluster(options.ray, options.workers) as workers:
            shown = Progress(total.rows, sum(part.bytes for part in left))
            total += score_all(left, job, workers, lambda found, size: shown.tell(found.rows, found.bad, size))
            shown.close()
    missing = output.missing(parts)
    if missing:
        raise CorpusFailed(f"{output.shown}: {len(missing)} of {len(parts)} parts are not there, such as that of {missing[0]}")
    output.report(total, len(parts), time.monotonic() - begun)
    bad = f", {total.bad:,} of them without an answer (their column error says why)" if total.bad else ""
    sys.stderr.write(f"{total.rows:,} rows{bad}, in {output.shown}\n")


def _step(size: int) -> int:
    """Bytes of text in a part of a corpus of so many."""
    return max(STEP_BYTES_MIN, min(STEP_BYTES, size // PARTS_WANTED_MIN), size // PARTS_WANTED_MAX)


def _check_same(asked: Mapping[str, Any], before: Mapping[str, Any], folder: str) -> None:
    """Whether a folder that was begun is for what is asked now."""
    for name, value in asked.items():
        if before.get(name) != value:
            fact = "other files, or other content of them" if name == "files" else f"{name} = {before.get(name)!r}; now it is {value!r}"
            raise BadSettings(f"{folder}: was begun with {fact}; choose another output or delete it")
