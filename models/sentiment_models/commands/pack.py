"""``sentiment-models pack``."""

import argparse
from pathlib import Path

from sentiment_models.commands.arguments import add_output

DESCRIPTION = (
    "Make a wheel of a bundle. Where it is installed with pip, the service finds the bundle by its name, without SENTIMENT_BUNDLES. "
    "Checks the bundle's files first."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="bundle folder")
    add_output(parser, "folder to write into (default: %(default)s)", default=Path("dist"))


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.export.wheel import pack

    print(pack(arguments.bundle, arguments.out))
