"""``sentiment-models export``."""

import argparse
import sys
from pathlib import Path

from sentiment_models.commands.arguments import DATA_HELP, add_output, add_overwrite, add_reading, positive, reading_of
from sentiment_models.errors import ModelsError
from sentiment_models.export.labels import MIXED

# A mention is mostly judged in its own sentence and the next: reviews have 20 tokens a sentence, and attention costs the square.
TARGET_TOKENS = 128

DESCRIPTION = (
    "Make a bundle from a checkpoint: weights in int8, an int8 and an fp32 graph, a manifest. Compares both graphs with torch, and single "
    "rows with batches; writes no bundle if a check fails. The same checkpoint gives the same bytes."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="folder of a fine-tuned classifier, such as OUT/best of train")
    add_output(parser, "bundle to write, such as models/bundles/mine/1")
    parser.add_argument("--name", help="bundle name (default: the name of DIR's parent folder)")
    parser.add_argument("--version", type=positive, metavar="N", help="bundle version (default: the name of DIR)")
    parser.add_argument(
        "--dev", type=Path, metavar="FILE", help=f"development set for calibration, such as dev.jsonl of train; {DATA_HELP}"
    )
    parser.add_argument("--base", metavar="NAME", help="name of the pre-trained model, for the manifest (default: from training.json)")
    parser.add_argument(
        "--embeddings",
        choices=("int8", "fp16", "fp32"),
        default="int8",
        help="precision of int8.onnx's embedding tables (default: %(default)s)",
    )
    parser.add_argument(
        "--pairs",
        action="store_true",
        help="the checkpoint was trained on text pairs: the bundle reads and verifies pairs too",
    )
    parser.add_argument(
        "--beside",
        choices=(MIXED,),
        help="the checkpoint's last label, mixed, is an output beside the labels: whether a text praises and blames. Its threshold is the "
        "lowest with at most 10 %% false alarms among the texts of --dev with one sign, of the kinds (domain) that have mixed ones",
    )
    parser.add_argument(
        "--targets",
        nargs="?",
        type=positive,
        const=TARGET_TOKENS,
        metavar="TOKENS",
        help="the checkpoint was trained on pairs of a text and a target: the bundle answers the sentiment towards targets, from at most "
        f"TOKENS tokens around their mention (default: {TARGET_TOKENS})",
    )
    parser.add_argument(
        "--max-tokens", type=positive, metavar="N", help="read fewer tokens of a text (default: the model's maximum; XLNet: 512)"
    )
    parser.add_argument(
        "--spellings",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="texts, .txt with one per line or a labelled file: correct misspelled words to words that are frequent in them (default: the "
        "base bundle's corrections, if the checkpoint was trained from one)",
    )
    parser.add_argument(
        "--texts",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="texts like those that will be served: the server compares its own with them and reports drift. Of the files of train --data "
        "the answers are surer than of new texts; where you have others, give those. Of more texts than 2,000, that many are drawn",
    )
    add_reading(parser)
    add_overwrite(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.data.labelled import read_examples
    from sentiment_models.export.export import export
    from sentiment_models.export.inherited import inherited_of
    from sentiment_models.export.labels import label_names

    out = arguments.out.resolve()
    if arguments.version is None and not out.name.isdigit():
        raise ModelsError(f"{arguments.out}: the folder's name is not a version number; add --version N")
    labels, reading, inherited = label_names(arguments.checkpoint), reading_of(arguments), inherited_of(arguments.checkpoint)
    pairs = arguments.pairs or (inherited is not None and inherited.pairs)
    second_texts = pairs or bool(arguments.targets or (inherited and inherited.targets))
    dev = list(read_examples(arguments.dev, labels, pairs=second_texts, reading=reading)) if arguments.dev else None
    exported = export(
        arguments.checkpoint,
        out,
        name=arguments.name or out.parent.name,
        version=arguments.version or int(out.name),
        dev=dev,
        base=arguments.base,
        embeddings=arguments.embeddings,
        pairs=pairs,
        mixed=bool(arguments.beside),
        targets=arguments.targets,
        max_tokens=arguments.max_tokens,
        spellings=arguments.spellings,
        texts=arguments.texts,
        reading=reading,
        force=arguments.force,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    for precision, parity in exported.parity.items():
        moved = exported.movement[precision].probability_max
        print(
            f"{precision}: differs from torch by at most {parity.logit_error_max:.2g} in logits and {parity.probability_error_mean:.2g} in "
            f"mean probability; batch mates change a probability by at most {moved:.2g}"
        )
    found, golden = exported.calibration, len(exported.golden.entries)
    low, high = found.interval or (found.temperature, found.temperature)
    guess = "no base" if exported.base_temperature is None else f"the base's: {exported.base_temperature:.3f}"
    sure = f" (with {guess}, 95 % sure: {low:.2f} to {high:.2f})" if found.interval else ""
    print(f"temperature {found.temperature:.3f}{sure}, abstain below {found.abstain_below:.3f}; {golden} golden texts")
    if found.mixed:
        print(
            f"mixed from {found.mixed.at:.4f}: {found.mixed.found} of {found.mixed.texts} mixed development texts, and "
            f"{found.mixed.alarms} of {found.mixed.one_sign} of one sign"
        )
    for path in sorted(out.iterdir()):
        print(f"{path.name:20} {path.stat().st_size / 1e6:8.2f} MB")
