"""Types of command-line arguments (times, shares, targets, counts, numbers), and the arguments that several commands have."""

import argparse
import difflib
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sentiment.addresses import DEFAULT_TARGET, TARGET_VARIABLE, checked_target, default_target
from sentiment.durations import DURATION_S_MAX
from sentiment.errors import BadSettings
from sentiment.files.reading import FORMATS, Reading

UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "": 1.0}
DURATION = re.compile(r"((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(us|ms|s|m|)")

# A variable, because other processes can read arguments. Its name must not look like a setting of the server.
TOKEN_VARIABLE = "SENTIMENT_CLIENT_TOKEN"  # noqa: S105  # a name


# What is asked for where a text may be too long for the model.
TRUNCATIONS = ("refuse", "head", "head_tail", "windows")
# How like a word must be to what was typed, from 0 to 1.
NEAR = 0.7


class Parser(argparse.ArgumentParser):
    """A parser whose error about an unknown command, value or option names what was likely meant."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # Any: as in argparse
        """As in argparse, but an unknown option is an error of its command, whose usage is shown."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser: Parser = getattr(found, "parser", self)
            near = difflib.get_close_matches(unknown[0].partition("=")[0], parser._option_string_actions, 1, NEAR)
            parser.error(f"unrecognized arguments: {' '.join(unknown)}" + _meant(near))
        return found

    def _parse_optional(self, arg_string: str) -> Any:  # Any: as in argparse, where it differs by the version of Python
        """As in argparse, but a text such as "-it was a good film" is not a short option and its value."""
        return None if " " in arg_string and not arg_string.startswith("--") else super()._parse_optional(arg_string)

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and exit with 2."""
        if wrong := INVALID_CHOICE.search(message):
            # Quoted or not, by the version of Python.
            choices = [choice.strip("'") for choice in wrong[2].split(", ")]
            message += _meant(difflib.get_close_matches(wrong[1], choices, 1, NEAR))
        super().error(message)


# As argparse words it.
INVALID_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)$")


def _meant(near: Sequence[str]) -> str:
    return f"; did you mean {near[0]}?" if near else ""


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], said: str, described: str = ""
) -> argparse.ArgumentParser:  # Any: argparse names the type of its subparsers in private
    """Add a command. ``said``: its line in the list of commands; ``described``: begins its own help; empty: that line."""
    described = described or f"{said[0].upper()}{said[1:]}."
    parser: argparse.ArgumentParser = commands.add_parser(name, help=said, description=described)
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_option(parser: Any, name: str, *old_names: str, **kind: Any) -> None:  # Any: as in add_credentials; what argparse takes
    """Add an option. Its old names are taken too; help, messages and completion show the new one only."""
    parser.add_argument(name, *old_names, **kind).option_strings = [name]


def add_target(parser: Any) -> None:  # Any: as below
    """Add ``--target``: the gRPC server."""
    parser.add_argument(
        "-t",
        "--target",
        type=grpc_target,
        default=default_target(),
        metavar="HOST:PORT",
        help=f"the server's gRPC port (default: {TARGET_VARIABLE} or {DEFAULT_TARGET})",
    )


def grpc_target(value: str) -> str:
    """A target that gRPC can take."""
    try:
        return checked_target(value)
    except BadSettings as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_credentials(parser: Any, *old_token_file: str) -> None:  # Any: a parser or a group of one, which share no public type
    """Add the arguments that ``credentials_of`` reads. ``old_token_file``: old names of --token-file."""
    parser.add_argument("--tls", action="store_true", help="use TLS, and verify the server with the default CAs")
    parser.add_argument("--ca", default="", metavar="FILE", help="use TLS, and verify the server with the CA certificates in this PEM file")
    parser.add_argument("--cert", default="", metavar="FILE", help="use TLS, and present this certificate, in PEM (mTLS)")
    parser.add_argument("--key", default="", metavar="FILE", help="private key of --cert, in PEM")
    add_option(
        parser,
        "--token-file",
        *old_token_file,
        default="",
        metavar="FILE",
        help=f"send this file's token with each call (or {TOKEN_VARIABLE})",
    )


def credentials_of(options: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments for Credentials."""
    token = "" if options.token_file else os.environ.get(TOKEN_VARIABLE, "").strip()
    files = {"ca_file": options.ca, "cert_file": options.cert, "key_file": options.key, "token_file": options.token_file}
    return {"tls": options.tls, "token": token, **files}


def add_reading(parser: Any, *, formats: bool = True) -> None:  # Any: as above
    """Add the arguments that ``reading_of`` reads. ``formats``: False if the format is always told by the name of the file."""
    parser.add_argument("--column", default="text", metavar="NAME", help="column of the texts, by name or number (default: text)")
    if formats:
        kinds = tuple(dict.fromkeys(FORMATS.values()))
        parser.add_argument("--format", default="", choices=kinds, help="format of the input (default: by the ending of its name)")
    parser.add_argument("--no-header", action="store_true", help="the first row of the input is data; columns are called 1, 2, 3 ...")
    add_parsing(parser)


def add_parsing(parser: Any) -> None:  # Any: as above
    """Add the arguments that ``parsing_of`` reads."""
    parser.add_argument("--delimiter", default="", metavar="CHARACTER", help="between fields of the input (default: found by the header)")
    parser.add_argument("--encoding", default="", metavar="NAME", help="of the input (default: by the byte order mark, else utf-8)")
    parser.add_argument("--no-quotes", action="store_true", help="a quote in a .csv or .tsv is part of the text; no field is quoted")
    parser.add_argument("--sheet", default="", metavar="NAME", help="sheet of an .xlsx (default: the only one)")


def add_input(parser: Any) -> None:  # Any: as above
    """Add ``--input`` and the arguments that ``reading_of`` reads."""
    parser.add_argument(
        "-i",
        "--input",
        metavar="FILE",
        help="texts: .txt (one a line), or a column of a .csv, .tsv, .jsonl, .json, .parquet or .xlsx; text also .gz or .zst; -: "
        "standard input",
    )
    add_reading(parser)


def add_output(parser: Any) -> None:  # Any: as above
    """Add ``--output``: of a row each, which a repeated command continues; and what belongs to it."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write the answers here: .jsonl, .csv, .tsv, .json, .parquet or .xlsx; repeat the command to continue an interrupted run; "
        "-: standard output, as --json",
    )
    parser.add_argument("--drop", action="store_true", help="leave the input's other columns out of the output")
    parser.add_argument("--overwrite", action="store_true", help="replace an output that exists")
    parser.add_argument(
        "--escape-formulas",
        action="store_true",
        help="in a .csv or .tsv, put an apostrophe before texts that a spreadsheet would run as formulas",
    )
    parser.add_argument("--restart", action="store_true", help="start an interrupted output over instead of continuing it")


def add_parts(parser: Any) -> None:  # Any: as above
    """Add the arguments that ask for answers to parts of a text too: sentences, targets, targets_column."""
    parser.add_argument("--sentences", action="store_true", help="answer each sentence of a text too")
    targets = parser.add_mutually_exclusive_group()
    targets.add_argument(
        "--targets", type=names, default=(), metavar="NAME,NAME", help="answer the sentiment towards each of these too: battery,service"
    )
    targets.add_argument(
        "--targets-column", default="", metavar="NAME", help="column of each text's targets: with ; between them, or a JSON list"
    )


def add_effort(parser: Any) -> None:  # Any: as above
    """Add the argument that chooses how much of a text is computed."""
    parser.add_argument(
        "--effort",
        default="",
        choices=("full", "adaptive"),
        help="adaptive: read a part of a long text first, and the whole only if that does not suffice (default: the server's; without a "
        "server, full)",
    )


def add_model(parser: Any, said: str) -> None:  # Any: as above
    """Add the arguments that choose a model in this process, and how it reads long texts. ``said``: the help of --model."""
    parser.add_argument("--model", default="", metavar="NAME[/VERSION]", help=said)
    parser.add_argument("--bundles", default=None, metavar="FOLDERS", help="folders that hold bundles, separated by ':'")
    add_truncation(parser, TRUNCATIONS)


def add_truncation(parser: Any, choices: Sequence[str]) -> None:  # Any: as above
    """Add ``--truncation``."""
    parser.add_argument("--truncation", default="", choices=choices, help="what to read of texts that are too long (default: the model's)")


def reading_of(options: argparse.Namespace) -> Reading:
    """How the input is read.

    Raises:
        BadSettings: an option has no such value.
    """
    column = "1" if options.no_header and options.column == "text" else options.column
    return Reading(column, getattr(options, "format", ""), header=not options.no_header, **parsing_of(options))


def parsing_of(options: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments for a Reading of delimited text, its encoding and spreadsheets."""
    delimiter = {"tab": "\t", "\\t": "\t"}.get(options.delimiter, options.delimiter)
    return {"delimiter": delimiter, "encoding": options.encoding, "quotes": not options.no_quotes, "sheet": options.sheet}


def bundles_of(given: str | None = None) -> tuple[Path, ...]:
    """The folders of --bundles, or of the environment.

    Raises:
        BadSettings: a path of --bundles is not a folder, or itself a bundle.
    """
    found = tuple(Path(part) for part in (given or os.environ.get("SENTIMENT_BUNDLES", "")).split(os.pathsep) if part)
    if given and (wrong := next((folder for folder in found if not folder.is_dir()), None)):
        raise BadSettings(f"--bundles {wrong}: there is no such folder")
    from sentiment.model.bundle import MANIFEST  # noqa: PLC0415  # most commands need no bundle

    if given and (bundle := next((folder for folder in found if (folder / MANIFEST).is_file()), None)):
        raise BadSettings(f"--bundles {bundle}: is a bundle itself; give the folder that holds it as NAME/VERSION")
    return found


def seconds(value: str) -> float:
    """A time such as 500ms, 2s or 1.5."""
    match = DURATION.fullmatch(value)
    found = float(match[1]) * UNITS_S[match[2]] if match else math.nan
    if not 0 < found <= DURATION_S_MAX:
        raise argparse.ArgumentTypeError(f"is {value!r}; must be a time of at most a day, such as 500ms, 2s or 1.5")
    return found


def seconds_or_none(value: str) -> float:
    """A time, or 0 for none."""
    return 0.0 if value == "0" else seconds(value)


def positive(value: str) -> float:
    """A number above 0."""
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"is {value!r}; must be a number above 0")
    return found


def share(value: str) -> float:
    """A share such as 0.2 or 20%."""
    try:
        found = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        found = math.nan
    if not 0 <= found <= 1:
        raise argparse.ArgumentTypeError(f"is {value!r}; must be a share from 0 to 1, or 0% to 100%")
    return found


def percentile(value: str) -> float:
    """A percentile: more than 0, at most 100."""
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not 0 < found <= 100:
        raise argparse.ArgumentTypeError(f"is {value!r}; must be more than 0 and at most 100 per cent")
    return found


def names(value: str) -> tuple[str, ...]:
    """Names with commas between them."""
    found = tuple(part.strip() for part in value.split(","))
    if not all(found):
        raise argparse.ArgumentTypeError(f"is {value!r}; must be names with commas between them, such as battery,service")
    return found


def count(most: int, least: int = 1) -> Callable[[str], int]:
    """The type of a whole number from ``least`` to ``most``."""

    def read(value: str) -> int:
        if not value.isdecimal() or not least <= int(value) <= most:
            raise argparse.ArgumentTypeError(f"is {value!r}; must be a whole number from {least} to {most}")
        return int(value)

    return read
