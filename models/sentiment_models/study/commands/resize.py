"""``sentiment-models resize``."""

import argparse
from pathlib import Path

from sentiment_models.commands.arguments import add_output, add_overwrite, positive

DESCRIPTION = (
    "Make a BERT classifier deeper, shallower or wider, as a base for train. Layers are repeated or skipped where they stand; a wider "
    "model has copies of units. Deeper and shallower models answer worse until they are trained on."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("base", type=Path, metavar="BASE", help="folder of a fine-tuned BERT classifier, or a bundle")
    parser.add_argument("--layers", type=positive, metavar="N", help="layers of the encoder (default: those of BASE)")
    parser.add_argument(
        "--width", type=positive, metavar="N", help="dimensions of a token, at least those of BASE, in whole heads (default: those of BASE)"
    )
    add_output(parser, "the checkpoint to write")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of how copies of units are read (default: %(default)s)")
    add_overwrite(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.study.resize import resize

    resize(arguments.base, arguments.out, layers=arguments.layers, width=arguments.width, seed=arguments.seed, force=arguments.force)
    print(f"{arguments.out}: resized; go on with: sentiment-models train --base {arguments.out}")
