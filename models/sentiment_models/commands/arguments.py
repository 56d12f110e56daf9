"""What arguments of several commands share."""

import argparse
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

DATA_HELP = "labelled texts: .tsv (label<TAB>text), .csv (columns label, text) or .jsonl, also .gz"


def positive(value: str) -> int:
    """A whole number from 1 up."""
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; wanted at least 1")
    return number


def label_names(value: str) -> tuple[str, ...]:
    """At least two names parted by commas."""
    names = tuple(name.strip() for name in value.split(","))
    if len(names) < 2 or not all(names):
        raise argparse.ArgumentTypeError(f"{value!r}; wanted at least two names parted by commas")
    return names


def add_run(parser: argparse.ArgumentParser, recipe: type[Any], told: Mapping[str, str]) -> None:
    """Declare where and how a training run goes on, and a flag for each field of its recipe.

    Args:
        parser: the command's.
        recipe: a dataclass.
        told: what each field means that has a flag of its name; others have flags of their own.
    """
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of the run; continues a run found there")
    parser.add_argument("--device", default="cpu", help="torch device, such as cpu or cuda (default: %(default)s)")
    parser.add_argument("--threads", type=positive, metavar="N", help="CPU threads of torch (default: torch's choice)")
    parser.add_argument(
        "--checkpoint-steps", type=positive, default=200, metavar="N", help="steps between checkpoints (default: %(default)s)"
    )
    parser.add_argument("--restart", action="store_true", help="start over instead of continuing a run in OUT")
    for field in fields(recipe):
        if field.name not in told:
            continue
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true", help=told[field.name])
        else:
            names = isinstance(field.default, tuple)
            default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
            kind = label_names if names else type(field.default)
            parser.add_argument(flag, type=kind, default=field.default, metavar="X", help=f"{told[field.name]} (default: {default})")
