"""``sentiment-models card``."""

import argparse
from pathlib import Path

from sentiment_models.card import write_card
from sentiment_models.evaluation import read_evaluation

DESCRIPTION = "Write MODEL_CARD.md into a bundle, from its manifest and from what evaluate --json measured."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")
    parser.add_argument("--evaluation", nargs="+", type=Path, default=[], metavar="JSON", help="what evaluate --json wrote")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    print(write_card(arguments.bundle, [read_evaluation(path) for path in arguments.evaluation]))
