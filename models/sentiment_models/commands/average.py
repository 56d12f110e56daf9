"""``sentiment-models average``."""

import argparse
from pathlib import Path

from sentiment_models.commands.arguments import add_output, add_overwrite

DESCRIPTION = (
    "Average the weights of checkpoints or bundles of one model into OUT. One that is named twice counts twice; those after the first may "
    "lack labels of it. OUT/training.json holds the record of the last one, and the names of the others under averaged_with."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("checkpoints", type=Path, nargs="+", metavar="CHECKPOINT", help="folders with fine-tuned classifiers, at least two")
    add_output(parser, "the checkpoint to write")
    add_overwrite(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.training.average import average

    average(arguments.checkpoints, arguments.out, force=arguments.force)
    print(f"{arguments.out}: the average of {len(arguments.checkpoints)} checkpoints")
