"""``sentiment-models diff``."""

import argparse
from pathlib import Path

from sentiment.files.standard_streams import need_standard_output

DESCRIPTION = (
    "Show what differs between two bundles: manifest, files, labels, calibration, accuracy, golden answers, operators of the graphs, "
    "weights, vocabulary and tokenizer. Exit code 0 if nothing differs, 1 otherwise."
)
DIFFERENT = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    for name in ("a", "b"):
        parser.add_argument(name, type=Path, metavar=name.upper(), help="bundle folder")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of a table of the largest differences")


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from sentiment_models.export.difference import difference, table

    need_standard_output()
    found = difference(arguments.a, arguments.b)
    print(found.json() if arguments.json else table(found))
    return 0 if found.same else DIFFERENT
