"""``sentiment-models prepare``."""

import argparse
import json
from pathlib import Path

from sentiment_models.commands.arguments import add_output, add_overwrite
from sentiment_models.data.english_texts import KEPT_FOLDER, prepare
from sentiment_models.errors import ModelsError
from sentiment_models.reports.report import write_text

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
    if arguments.out.exists() and not arguments.force:
        raise ModelsError(f"{arguments.out}: exists; use --overwrite to replace its files")
    files = prepare(arguments.data)
    try:
        (arguments.out / KEPT_FOLDER).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelsError(f"{arguments.out}: cannot be made: {error.strerror}") from error
    for name, rows in files.items():
        write_text(arguments.out / f"{name}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        print(f"{name}\t{len(rows)}")
