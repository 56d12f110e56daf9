"""``sentiment-models copy``."""

import argparse
from pathlib import Path

from sentiment_models.commands.arguments import add_output, positive

DESCRIPTION = (
    "Copy a bundle under another version. Its answers are the same; its manifest, and so its digest, differ. Versions are immutable: to "
    "record a reference, an evaluation or another default of a bundle that is served, record it in a copy, and put that to use. Checks the "
    "bundle's files first. The model card is copied as it is, and so is BUNDLE.record.json, from which card writes it "
    "again."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="bundle folder")
    parser.add_argument("--version", type=positive, required=True, metavar="N", help="version of the copy")
    add_output(parser, "bundle to write (default: N beside BUNDLE)", default=None)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.export.copying import copy

    out = arguments.out or arguments.bundle.resolve().parent / str(arguments.version)
    print(f"{out}: digest {copy(arguments.bundle, arguments.version, out)}")
