"""``sentiment-models pack``."""

import argparse
from pathlib import Path

from sentiment.cli.arguments import add_option

DESCRIPTION = (
    "Make a wheel of a bundle. Where it is installed with pip, the service finds the bundle by its name, without SENTIMENT_BUNDLES. "
    "Checks the bundle's files first."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="bundle folder")
    add_option(
        parser,
        "--output",
        "--out",
        dest="out",
        type=Path,
        default=Path("dist"),
        metavar="DIR",
        help="folder to write into (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.export.wheel import pack

    print(pack(arguments.bundle, arguments.out))
