"""Arguments that several commands share."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from sentiment.cli.arguments import add_option, add_parsing, parsing_of
from sentiment.files.output import beside
from sentiment_models.data.labelled import LabelledReading
from sentiment_models.errors import ModelsError
from sentiment_models.export.labels import as_argument, parse_names
from sentiment_models.reports.report import write_file

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
    add_torch(parser)
    parser.add_argument(
        "--checkpoint-steps", type=positive, default=200, metavar="N", help="steps between checkpoints (default: %(default)s)"
    )
    parser.add_argument("--restart", action="store_true", help="start over instead of continuing a run in OUT")
    add_fields(parser, recipe, help_texts)


def add_fields(parser: argparse.ArgumentParser, settings: type[Any], help_texts: Mapping[str, str], **kinds: Callable[[str], Any]) -> None:
    """Declare a flag for each field of a dataclass that has a help text. ``kinds``: how to parse a field that its default's type cannot.

    A help text that says a default of its own is of a field whose value the command finds.
    """
    known = {field.name: field for field in fields(settings)}
    for name, help_ in help_texts.items():
        field, flag = known[name], "--" + name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true", help=help_)
        else:
            names = isinstance(field.default, tuple)
            shown = as_argument(list(map(str, field.default))) if isinstance(field.default, tuple) else field.default
            kind = kinds.get(name, label_names if names else type(field.default))
            own = "(default: " in help_
            said = help_ if own else f"{help_} (default: {shown})"
            parser.add_argument(flag, type=kind, default=None if own else field.default, metavar="X", help=said)


def add_torch(parser: argparse.ArgumentParser) -> None:
    """Declare where torch computes: the device, and the threads that ``with_threads`` sets."""
    add_device(parser)
    parser.add_argument("--threads", type=positive, metavar="N", help="CPU threads of torch (default: torch's choice)")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declare the device of torch."""
    parser.add_argument("--device", default="cpu", help="torch device, such as cpu or cuda (default: %(default)s)")


def add_session_threads(parser: argparse.ArgumentParser) -> None:
    """Declare the threads of the session that measures a bundle; 0: the available cores."""
    parser.add_argument("--threads", type=positive, default=0, metavar="N", help="threads of the session (default: the available cores)")


def with_threads(arguments: argparse.Namespace) -> None:
    """Let torch compute on the threads that were asked for."""
    if arguments.threads:
        import torch

        torch.set_num_threads(arguments.threads)


def add_figures(parser: argparse.ArgumentParser, *, what_for: str = "", report: str = "report") -> None:
    """Declare the files of ``write_figures``. ``what_for``: the command that reads the figures; ``report``: the page, empty for none."""
    parser.set_defaults(html=None)
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"also write the figures here (-: standard output){what_for}")
    if report:
        parser.add_argument("--html", type=Path, metavar="FILE", help=f"also write a self-contained {report} here (-: standard output)")


def write_figures(arguments: argparse.Namespace, figures: BaseModel, text: str, page: Callable[[], str] | None = None) -> None:
    """Print figures, and write them and a page of them to the files that were asked for."""
    print(text, file=beside(arguments.json, arguments.html))
    if arguments.json:
        write_file(arguments.json, figures.model_dump_json(indent=1) + "\n")
    if arguments.html and page:
        write_file(arguments.html, page())


def options_as(kind: Any, options: argparse.Namespace, /, **others: Any) -> Any:  # Any: a dataclass, its values, and one of it
    """The options of a command as its dataclass: each field is the option of its name, but for ``others``."""
    return kind(**{each.name: others[each.name] if each.name in others else getattr(options, each.name) for each in fields(kind)})
