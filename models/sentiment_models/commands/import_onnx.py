"""``sentiment-models import-onnx``."""

import argparse
from pathlib import Path

from sentiment.batch_limits import is_exact
from sentiment_models.commands.arguments import DATA_HELP, add_output, add_overwrite, add_reading, label_names, positive, reading_of
from sentiment_models.errors import ModelsError

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
    parser.add_argument("--name", help="bundle name (default: the name of DIR's parent folder)")
    parser.add_argument("--version", type=positive, metavar="N", help="bundle version (default: the name of DIR)")
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

    out = arguments.out.resolve()
    if arguments.version is None and not out.name.isdigit():
        raise ModelsError(f"{arguments.out}: the folder's name is not a version number; add --version N")
    tokenizer = arguments.tokenizer or arguments.model.parent
    labels = arguments.labels or named(tokenizer)
    dev = list(read_examples(arguments.dev, labels, pairs=arguments.pairs, reading=reading_of(arguments))) if arguments.dev else None
    found = import_onnx(
        arguments.model,
        tokenizer,
        out,
        name=arguments.name or out.parent.name,
        version=arguments.version or int(out.name),
        labels=labels,
        max_tokens=arguments.max_tokens,
        pairs=arguments.pairs,
        dev=dev,
        force=arguments.force,
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
    if found.as_meant:
        right, texts = found.as_meant
        order = ": is that the order of the logits? See --labels" if 2 * right < texts else ""
        print(f"{right} of {texts} plain golden texts have the label that a reader would give{order}")
    if found.calibration.dev:
        print(f"temperature {found.calibration.temperature:.3f}, abstain below {found.calibration.abstain_below:.3f}")
    else:
        print("not calibrated, so a score is not the share of right answers, and no answer abstains: calibrate with --dev FILE")
    print(f"next: sentiment-models evaluate {arguments.out} FILE, or SENTIMENT_MODEL={arguments.name or out.parent.name} sentiment serve")
