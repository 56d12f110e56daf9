"""What the commands that make a bundle share: their options, its name, and what they say of it."""

import argparse
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sentiment.model.bundle import NAME, VERSION
from sentiment_models.commands.arguments import DATA_HELP, add_output, add_overwrite, add_reading, label_names, positive
from sentiment_models.errors import ModelsError
from sentiment_models.export.provenance import Facts, Json

if TYPE_CHECKING:
    from sentiment_models.evaluation.calibration import Calibration


def add_made(parser: argparse.ArgumentParser) -> None:
    """Declare the bundle to make, with what ``identity_of`` and ``reading_of`` read, and what is known of its model."""
    add_output(parser, "bundle to write, such as models/bundles/mine/1")
    parser.add_argument("--name", help="bundle name: that of DIR's parent folder, which is the default")
    parser.add_argument("--version", type=positive, metavar="N", help="bundle version: the name of DIR, which is the default")
    parser.add_argument(
        "--labels",
        type=label_names,
        default=(),
        metavar="NAME,NAME",
        help="names for the model's outputs, in their order (default: id2label of config.json; needed if that has LABEL_0 and the like)",
    )
    parser.add_argument(
        "--pairs", action="store_true", help="the model was trained on pairs of texts: the bundle reads and verifies pairs too"
    )
    parser.add_argument(
        "--max-tokens",
        type=positive,
        metavar="N",
        help="read fewer tokens of a text (default: as many as the model has positions, or fewer if model_max_length of "
        "tokenizer_config.json or the truncation of tokenizer.json says so; XLNet: 512)",
    )
    parser.add_argument(
        "--dev", type=Path, metavar="FILE", help=f"development set for calibration, such as dev.jsonl of train; {DATA_HELP}"
    )
    parser.add_argument(
        "--texts",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="texts like those that will be served: the server compares its own with them and reports drift. Of the files of train --data "
        "the answers are surer than of new texts; where you have others, give those. Of more texts than 2,000, that many are drawn",
    )
    parser.add_argument(
        "--note", default="", metavar="TEXT", help="what callers should know of the model, for its card, such as its licence"
    )
    add_reading(parser)
    add_overwrite(parser)


def identity_of(arguments: argparse.Namespace) -> tuple[str, int]:
    """The name and version of the bundle to make, which are those of its folder.

    Raises:
        ModelsError: others are given, the name is not a bundle's, or the folder's is not a version number. No server would take the bundle.
    """
    out: Path = arguments.out.resolve()
    name, version = arguments.name or out.parent.name, str(arguments.version or out.name)
    if not re.fullmatch(NAME, name):
        given = "--name" if arguments.name else f"--output {arguments.out}"
        raise ModelsError(f"{given}: a bundle's name, and its folder's above that of the version, must match {NAME}, got {name!r}")
    if (name, version) != (out.parent.name, out.name) or not VERSION.fullmatch(version):
        wanted = f"{name}/{version if VERSION.fullmatch(version) else 1}"
        raise ModelsError(f"{arguments.out}: a bundle's folder is NAME/VERSION, or no server finds it; end --output in {wanted}")
    return name, int(version)


def origin_of(**given: str) -> Facts:
    """Where a bundle comes from, for the manifest and the card: what is known of it."""
    return {name: value for name, value in given.items() if value}


def findings(calibration: "Calibration", golden: Sequence[Mapping[str, Json]], labels: Sequence[str]) -> Iterator[str]:
    """Yield what the user should know of a bundle's answers: that it is not calibrated, or labels in a wrong order."""
    from sentiment_models.evaluation.calibration import TEXTS_MIN
    from sentiment_models.export.golden import misordered

    if calibration.uncalibrated:
        yield f"not calibrated, and no answer is undecided; calibrate with --dev FILE, of {TEXTS_MIN} labelled texts or more"
    yield from misordered(golden, labels)


def serving(out: Path) -> str:
    """The command that serves the bundle in this folder."""
    out = out.resolve()
    return "serve it: " + shlex.join(["sentiment", "serve", "--bundles", str(out.parents[1]), "--model", out.parent.name])


def say(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)
