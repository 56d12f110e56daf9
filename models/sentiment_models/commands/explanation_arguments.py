"""The arguments of ``sentiment-models evaluate --explanations`` and the check of their combinations. Does not import torch."""

import argparse
from pathlib import Path

from sentiment.files.output import replaced
from sentiment_models.commands.arguments import DATA_HELP, positive
from sentiment_models.errors import ModelsError

TEXTS, DOCUMENTS = 500, 50
# Flags that only one kind of evaluation reads. All are None or empty unless given.
ONLY_EXPLANATIONS = ("texts", "train", "rationales", "documents", "resume", "attention_tests", "methods", "default")
ONLY_ANSWERS = ("undecided", "truncation")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--explanations`` and the flags that need it."""
    group = parser.add_argument_group(
        "explanations", "Study explanations against chance instead of evaluating answers. Takes minutes to hours."
    )
    group.add_argument("--explanations", action="store_true", help="study how far the bundle's explanations can be trusted")
    group.add_argument("--texts", type=positive, metavar="N", help=f"max texts drawn from each file (default: {TEXTS})")
    group.add_argument(
        "--train",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help=f"build the baseline sentiment lexicon from these instead of the other texts ({DATA_HELP}); repeatable",
    )
    group.add_argument(
        "--rationales", type=Path, metavar="FILE", help="also compare word scores with human rationales: ERASER's .jsonl or .jsonl.gz"
    )
    group.add_argument("--documents", type=positive, metavar="N", help=f"max documents drawn from --rationales (default: {DOCUMENTS})")
    group.add_argument(
        "--resume", type=Path, metavar="FILE", help="save progress here and continue from it; FILE.rationales holds that of --rationales"
    )
    group.add_argument("--attention-tests", type=Path, metavar="FILE", help="results.json from attention-tests to include in the report")
    group.add_argument(
        "--methods",
        type=lambda given: given.split(","),
        default=[],
        metavar="METHOD,...",
        help="study only these attributions, and compare the first with the others (default: all, the bundle's default first); "
        "on long texts occlusion and shapley take minutes a text",
    )
    group.add_argument(
        "--default",
        metavar="METHOD",
        help="with --record: the attribution to compare with the others, and that the bundle serves by default",
    )


def check(arguments: argparse.Namespace) -> None:
    """Check the combination of flags and that the files exist, before any work starts.

    Raises:
        ModelsError: names the flags that cannot be combined, or the missing file.
    """
    if not arguments.explanations:
        given = [_flag(name) for name in ONLY_EXPLANATIONS if getattr(arguments, name)]
        if given:
            raise ModelsError(f"{', '.join(given)} {'needs' if len(given) == 1 else 'need'} --explanations")
        return
    given = [_flag(name) for name in ONLY_ANSWERS if getattr(arguments, name)]
    if given:
        raise ModelsError(f"{', '.join(given)} cannot be used with --explanations: the bundle's manifest decides how texts are read")
    if arguments.documents and not arguments.rationales:
        raise ModelsError("--documents needs --rationales")
    if arguments.default and not arguments.record:
        raise ModelsError("--default needs --record")
    if arguments.resume and replaced(arguments.resume) is None:
        raise ModelsError(f"--resume {arguments.resume}: must be a regular file, from which a repeated command continues")
    for path in filter(None, (*arguments.train, arguments.rationales)):
        if not path.is_file():
            raise ModelsError(f"{path}: no such file")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
