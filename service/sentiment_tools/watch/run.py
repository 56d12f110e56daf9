"""``sentiment watch``: reads a file of texts or a journal, compares it with a reference and reports."""

import argparse
import json
import math
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from sentiment.errors import BadBundle, BadSettings
from sentiment.files.errors import BadFile
from sentiment.files.output import new_file, refuse_same_file
from sentiment.model.bundle import Manifest, bundle_roots, find_bundle, load_bundle
from sentiment.observability.drift import Signal
from sentiment_tools.reports import svg_plots
from sentiment_tools.watch import reference, report
from sentiment_tools.watch.counts import Entry, Seen, Watch
from sentiment_tools.watch.journal import JournalSource, is_journal

if TYPE_CHECKING:
    from sentiment_tools.watch.texts import TextSource


def run(options: argparse.Namespace, advance: Callable[[], None]) -> tuple[str, bool]:
    """Run the command; returns what to print, and whether it fails because of drift.

    Args:
        options: the arguments, with ``reading`` and the paths of ``bundles``.
        advance: called for each answer that was read.

    Raises:
        BadSettings: arguments do not fit together, or one would have no effect.
        BadFile: an input cannot be read, or an output cannot be written.
        BadBundle: the bundle cannot be run.
    """
    if options.html:
        svg_plots.need_plots()
    _refuse_unused(options)
    refuse_same_file(input=None if options.input.is_dir() else options.input, json=options.json, html=options.html)
    with ExitStack() as stack:
        # Opened first, so that an output that cannot be written is reported before a long run.
        write_json, write_html = (stack.enter_context(new_file(path)) if path else None for path in (options.json, options.html))
        found = _watch(options, advance, stack)
        if write_json:
            write_json(json.dumps(report.json_of(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        if write_html:
            write_html(report.html_of(found))
    return report.text_of(found), options.fail_on_drift and any(shift.drifted for shift in found.shifts)


def _refuse_unused(options: argparse.Namespace) -> None:
    if not is_journal(options.input):
        return
    if options.labels:
        raise BadSettings(f"--labels {options.labels}: {options.input} is a journal, whose right labels are its lines of feedback")
    if options.pair and (not options.reference or is_journal(options.reference)):
        raise BadSettings(f"--pair {options.pair}: no file of texts is read")
    if options.truncation and (not options.reference or is_journal(options.reference)):
        raise BadSettings(f"--truncation {options.truncation}: no file of texts is read, and the answers of a journal are as they are")


def _watch(options: argparse.Namespace, advance: Callable[[], None], stack: ExitStack) -> report.Found:
    source = _source(options, options.input, options.model, stack)
    manifest, notes = _manifest(options, source)
    signals, compared = _reference(options, source, manifest, advance, stack)
    if options.fail_on_drift and not compared:
        raise BadSettings(f"--fail-on-drift needs a reference: --reference FILE, or one in the bundle {source.id}")
    watch = Watch(signals, options.window)
    # The reference may be of the same source.
    source.left_out.clear()
    for entry in _advancing(source.entries(options.input), advance):
        watch.add(entry)
    watch.end()
    if not watch.whole.texts:
        raise BadFile("; ".join([f"{options.input}: has no answered text", *_left_out(source)]))
    facts = {
        "command": shlex.join(["sentiment", *sys.argv[1:]]),
        "model": f"{source.id}, digest {source.digest}",
        "input": str(options.input),
        "reference": compared or "none",
        "windows": f"{len(watch.windows):,} of {watch.window_texts:,} texts",
    }
    if options.labels and not watch.whole.labelled:
        notes = [*notes, f"measured accuracy is not known: no text whose answer does not abstain has a label (--labels {options.labels})"]
    error = manifest.expected_accuracy_error if manifest else math.nan
    return report.Found(facts, watch, source.signals, error, [*notes, *report.left_out_of(source.signals), *_left_out(source)])


def _source(options: argparse.Namespace, path: Path, model: str, stack: ExitStack) -> "JournalSource | TextSource":
    """Who answers, or has answered, the texts of a file."""
    if is_journal(path):
        return JournalSource.find(path, model)
    from sentiment.offline import OfflineClassifier  # noqa: PLC0415  # a journal needs no model runtime
    from sentiment_tools.watch.texts import TextSource  # noqa: PLC0415  # as above

    local = stack.enter_context(closing(OfflineClassifier(model, options.bundles, device="auto")))
    return TextSource(local, options.reading, options.pair, options.labels, options.truncation)


def _manifest(options: argparse.Namespace, source: "JournalSource | TextSource") -> tuple[Manifest | None, list[str]]:
    """The manifest of the model; None if a journal's model cannot be used here, with a note that says why."""
    if not isinstance(source, JournalSource):
        return source.manifest, []
    try:
        bundle = load_bundle(find_bundle(source.id, bundle_roots(options.bundles)))
    except BadBundle as error:
        return None, [f"the bundle {source.id} cannot be used ({error}): its recorded error and references are not known"]
    if bundle.digest != source.digest:
        return None, [f"the bundle {source.id} here has the digest {bundle.digest}: its recorded error and references are not used"]
    return bundle.manifest, []


def _reference(
    options: argparse.Namespace,
    source: "JournalSource | TextSource",
    manifest: Manifest | None,
    advance: Callable[[], None],
    stack: ExitStack,
) -> tuple[list[Signal], str]:
    """The signals with the reference's counts, and what they are of; empty if there is no reference."""
    if options.reference:
        path = options.reference
        journal = is_journal(path)
        of_source = source if not journal and not isinstance(source, JournalSource) else _source(options, path, source.id, stack)
        if of_source.digest != source.digest:
            raise BadSettings(
                f"{options.input} has answers of {source.id} {source.digest}, and {path} of {of_source.digest}: not comparable"
            )
        names = [name for name in source.signals if name in of_source.signals]
        entries = of_source.entries(path) if isinstance(of_source, JournalSource) else of_source.entries(path, labelled=False)
        signals = reference.of_entries(source.labels, names, _advancing(entries, advance))
        texts = sum(signals[0].counts[reference.GIVEN])
        if not texts:
            raise BadFile(f"{path}: has no answered text")
        return signals, "; ".join([f"{path}, {texts:,} texts", *_left_out(of_source)])
    # The references in the manifest, as far as these signals are known.
    if manifest and (signals := [signal for signal in manifest.signals if signal.name in source.signals]):
        return signals, "in the bundle: " + ", ".join(f"{name} ({sum(counts):,} texts)" for name, counts in signals[0].counts.items())
    return reference.without_reference(source.labels, source.signals), ""


def _advancing(entries: Iterable[Entry], advance: Callable[[], None]) -> Iterator[Entry]:
    """The entries; calls ``advance`` for each answer."""
    for entry in entries:
        if isinstance(entry, Seen):
            advance()
        yield entry


def _left_out(source: "JournalSource | TextSource") -> list[str]:
    return [f"left out: {number:,} {kind}" for kind, number in source.left_out.items()]
