"""``sentiment-models import-onnx``."""

import argparse
import shlex
from pathlib import Path

from sentiment.batch_limits import is_exact
from sentiment_models.commands.arguments import DATA_HELP, add_output, add_overwrite, add_reading, label_names, positive, reading_of
from sentiment_models.commands.made_bundle import add_identity, findings, identity_of, say, serving

DESCRIPTION = (
    "Make a bundle of your own ONNX file. Checks its inputs and outputs, runs it at every kind of shape, and measures how far a text's "
    "answer depends on the other texts of its batch. The golden set is of the file's own answers: nothing says that these are right, so "
    "measure the bundle with evaluate. Needs no torch."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", type=Path, metavar="MODEL.onnx", help="the file; its external data beside it")
    add_output(parser, "bundle to write, such as models/bundles/mine/1")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="DIR",
        help="folder with tokenizer.json, and with config.json and tokenizer_config.json if there are any (default: the file's folder)",
    )
    parser.add_argument(
        "--labels",
        type=label_names,
        default=(),
        metavar="A,B,...",
        help="names of the labels in the order of the logits (default: id2label of config.json)",
    )
    add_identity(parser)
    parser.add_argument(
        "--max-tokens",
        type=positive,
        metavar="N",
        help="tokens of a text that the model reads (default: the least that tokenizer and config say)",
    )
    parser.add_argument("--pairs", action="store_true", help="the model was trained on text pairs: the bundle reads pairs too")
    parser.add_argument("--dev", type=Path, metavar="FILE", help=f"labelled texts for calibration, unlike the training texts; {DATA_HELP}")
    add_reading(parser)
    add_overwrite(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.data.labelled import read_examples
    from sentiment_models.export.import_onnx import import_onnx, named

    name, version = identity_of(arguments)
    tokenizer = arguments.tokenizer or arguments.model.parent
    labels = named(tokenizer, arguments.labels)
    dev = list(read_examples(arguments.dev, labels, pairs=arguments.pairs, reading=reading_of(arguments))) if arguments.dev else None
    found = import_onnx(
        arguments.model,
        tokenizer,
        arguments.out.resolve(),
        name=name,
        version=version,
        labels=labels,
        max_tokens=arguments.max_tokens,
        pairs=arguments.pairs,
        dev=dev,
        force=arguments.force,
        say=say,
    )
    for change in found.graph.changes:
        print(f"changed: {change}")
    print(f"{found.graph.precision}, labels {', '.join(found.labels)}, {found.max_tokens} tokens, {len(found.golden.entries)} golden texts")
    moved = found.movement
    print(
        f"batch mates change a probability by at most {moved.probability_max:.2g}, and the label of {moved.labels_changed} of "
        f"{2 * moved.rows} texts; the manifest says {found.invariance:.2g}"
    )
    if not is_exact(found.graph.precision, found.invariance):
        print("so servers run each text of it by itself, unless inexact_models is batch; with refuse they do not serve it")
    print(f"temperature {found.calibration.temperature:.3f}, abstain below {found.calibration.abstain_below:.3f}")
    for line in findings(found.calibration, found.golden.entries, found.labels):
        print(line)
    print(f"measure it: {shlex.join(['sentiment-models', 'evaluate', str(arguments.out)])} FILE")
    print(serving(arguments.out))
