"""``sentiment-models prepare``."""

import argparse
from pathlib import Path

from sentiment_models.commands.arguments import add_output, add_overwrite
from sentiment_models.data.english_texts import KEPT_FOLDER, prepare
from sentiment_models.data.labelled import json_lines
from sentiment_models.reports.report import make_folder, refuse_existing, write_file

DESCRIPTION = (
    "Make the training files of the default bundle from public data sets, less the texts that are kept back, by the hash of their letters "
    "and digits. Writes OUT/NAME.jsonl for train --data and label, and OUT/kept/NAME.jsonl with what nothing may learn from. Prints the "
    "number of texts in each."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of the data sets; docs/models/prepare.md says what it holds")
    add_output(parser, "folder to write into; made if it does not exist")
    add_overwrite(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    refuse_existing(arguments.out, force=arguments.force, what="its files")
    files = prepare(arguments.data)
    make_folder(arguments.out / KEPT_FOLDER)
    for name, rows in files.items():
        write_file(arguments.out / f"{name}.jsonl", json_lines(rows))
        print(f"{name}\t{len(rows)}")
