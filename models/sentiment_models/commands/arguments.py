"""Arguments that several commands share."""

import argparse
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from sentiment.cli.arguments import add_option, add_parsing, parsing_of
from sentiment_models.data.labelled import LabelledReading
from sentiment_models.errors import ModelsError
from sentiment_models.export.labels import as_argument, parse_names

DATA_HELP = "labelled texts: .csv, .tsv or another table (columns label, text), .tsv without a header (label<TAB>text), .jsonl; also .gz"


def positive(value: str) -> int:
    """Parse a whole number of at least 1."""
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def label_names(value: str) -> tuple[str, ...]:
    """Parse at least two names separated by commas; a name with a comma stands in double quotes."""
    try:
        return parse_names(value)
    except ModelsError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_reading(parser: argparse.ArgumentParser, *, pairs: bool = True) -> None:
    """Declare the flags of ``reading_of``. ``pairs``: whether the command reads pairs of texts."""
    parser.set_defaults(pair="")
    if pairs:
        parser.add_argument(
            "--pair", metavar="COLUMN", help="column or key of the second text of a pair (default: text_pair, if a file has it)"
        )
    parser.add_argument(
        "--journal-model",
        default="",
        metavar="NAME[/VERSION]",
        help="whose lines of a server's journal count (default: those of the model of the last one)",
    )
    add_parsing(parser)


def reading_of(arguments: argparse.Namespace) -> LabelledReading:
    """How the command's files are read.

    Raises:
        sentiment.errors.BadSettings: an option has no such value.
    """
    return LabelledReading(pair=arguments.pair, journal_model=arguments.journal_model, **parsing_of(arguments))


def add_output(parser: argparse.ArgumentParser, help_: str, *, metavar: str = "DIR", **given: Any) -> None:  # Any: what argparse takes
    """Declare ``--output``, as ``out``. It is required unless ``default`` is given."""
    add_option(parser, "--output", "--out", dest="out", type=Path, metavar=metavar, help=help_, required="default" not in given, **given)


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """Declare ``--overwrite``, as ``force``."""
    add_option(parser, "--overwrite", "--force", dest="force", action="store_true", help="replace the output if it exists")


def add_run(parser: argparse.ArgumentParser, recipe: type[Any], help_texts: Mapping[str, str]) -> None:
    """Declare the flags of a training run, and one flag for each field of its recipe.

    Args:
        parser: the parser of the command.
        recipe: a dataclass.
        help_texts: help text by field name. Fields that are not listed get no flag here.
    """
    add_output(parser, "folder of the run; continues a run found there")
    parser.add_argument("--device", default="cpu", help="torch device, such as cpu or cuda (default: %(default)s)")
    parser.add_argument("--threads", type=positive, metavar="N", help="CPU threads of torch (default: torch's choice)")
    parser.add_argument(
        "--checkpoint-steps", type=positive, default=200, metavar="N", help="steps between checkpoints (default: %(default)s)"
    )
    parser.add_argument("--restart", action="store_true", help="start over instead of continuing a run in OUT")
    for field in fields(recipe):
        if field.name not in help_texts:
            continue
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true", help=help_texts[field.name])
        else:
            names = isinstance(field.default, tuple)
            default = as_argument(field.default) if isinstance(field.default, tuple) else field.default
            kind = label_names if names else type(field.default)
            parser.add_argument(flag, type=kind, default=field.default, metavar="X", help=f"{help_texts[field.name]} (default: {default})")
