"""What the commands that make a bundle share: its name, and what they say of it."""

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sentiment.model.bundle import VERSION
from sentiment_models.commands.arguments import positive
from sentiment_models.errors import ModelsError
from sentiment_models.export.provenance import Json

if TYPE_CHECKING:
    from sentiment_models.evaluation.calibration import Calibration


def add_identity(parser: argparse.ArgumentParser) -> None:
    """Declare what ``identity_of`` reads."""
    parser.add_argument("--name", help="bundle name: that of DIR's parent folder, which is the default")
    parser.add_argument("--version", type=positive, metavar="N", help="bundle version: the name of DIR, which is the default")


def identity_of(arguments: argparse.Namespace) -> tuple[str, int]:
    """The name and version of the bundle to make, which are those of its folder.

    Raises:
        ModelsError: others are given, or the folder's name is not a version number. No server would take the bundle.
    """
    out: Path = arguments.out.resolve()
    name, version = arguments.name or out.parent.name, str(arguments.version or out.name)
    if (name, version) != (out.parent.name, out.name) or not VERSION.fullmatch(version):
        wanted = f"{name}/{version if VERSION.fullmatch(version) else 1}"
        raise ModelsError(f"{arguments.out}: a bundle's folder is NAME/VERSION, or no server finds it; end --output in {wanted}")
    return name, int(version)


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
