"""``sentiment-models import-onnx``."""

import argparse
import shlex
from pathlib import Path

from sentiment.batch_limits import is_exact
from sentiment_models.commands.arguments import reading_of
from sentiment_models.commands.made_bundle import add_made, findings, identity_of, origin_of, say, serving

DESCRIPTION = (
    "Make a bundle of your own ONNX file. Checks its inputs and outputs, runs it at every kind of shape, and measures how far a text's "
    "answer depends on the other texts of its batch. The golden set is of the file's own answers: nothing says that these are right, so "
    "measure the bundle with evaluate. Needs no torch."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", type=Path, metavar="MODEL.onnx", help="the file; its external data beside it")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="DIR",
        help="folder with tokenizer.json, and with config.json and tokenizer_config.json if there are any (default: the file's folder)",
    )
    add_made(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.data.labelled import read_examples
    from sentiment_models.export.import_onnx import import_onnx, named
    from sentiment_models.export.kinds import licence_line, licence_of
    from sentiment_models.export.own_graph import check_file

    out = arguments.out.resolve()
    name, version = identity_of(arguments)
    check_file(arguments.model)
    tokenizer = arguments.tokenizer or arguments.model.parent
    labels = named(tokenizer, arguments.labels)
    reading = reading_of(arguments)
    dev = list(read_examples(arguments.dev, labels, pairs=arguments.pairs, reading=reading)) if arguments.dev else None
    licence = licence_of(arguments.model.parent) or licence_of(tokenizer)
    say(licence_line(licence))
    found = import_onnx(
        arguments.model,
        tokenizer,
        out,
        name=name,
        version=version,
        labels=labels,
        max_tokens=arguments.max_tokens,
        pairs=arguments.pairs,
        dev=dev,
        texts=arguments.texts,
        reading=reading,
        origin=origin_of(licence=licence, note=arguments.note),
        force=arguments.force,
        say=say,
    )
    for change in found.graph.changes:
        print(f"changed: {change}")
    moved, golden = found.movement, found.golden.entries
    print(f"{found.graph.precision}, labels {', '.join(found.labels)}, {found.reads.tokens} tokens, {len(golden)} golden texts")
    print(
        f"batch mates change a probability by at most {moved.probability_max:.2g}, and the label of {moved.labels_changed} of "
        f"{2 * moved.rows} texts; the manifest says {found.invariance:.2g}"
    )
    if not is_exact(found.graph.precision, found.invariance):
        print("so servers run each text of it by itself, unless inexact_models is batch; with refuse they do not serve it")
    print(f"temperature {found.calibration.temperature:.3f}, abstain below {found.calibration.abstain_below:.3f}")
    for line in findings(found.calibration, golden, found.labels):
        print(line)
    print(f"measure it: {shlex.join(['sentiment-models', 'evaluate', str(arguments.out)])} FILE")
    print(serving(arguments.out))
