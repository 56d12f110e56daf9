"""``sentiment-models compare``."""

import argparse
from pathlib import Path

from sentiment_models.commands.arguments import DATA_HELP, positive
from sentiment_models.evaluation.compare import as_page, as_text, compare
from sentiment_models.evaluation.evaluate import Dataset
from sentiment_models.evaluation.resample import SEED
from sentiment_models.reports.report import check_writable, write_text

DESCRIPTION = (
    "Run two bundles over the same labelled texts: accuracy of both, texts whose answer flips, whether the difference could be chance "
    "(McNemar's exact test, paired bootstrap), and what each costs."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("first", type=Path, metavar="A", help="the folder of the bundle that is known")
    parser.add_argument("second", type=Path, metavar="B", help="the folder of the bundle that might replace it")
    parser.add_argument("files", nargs="+", metavar="[NAME=]FILE", help=f"{DATA_HELP}; called by its folder and name unless NAME is given")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a report there, one file that loads nothing")
    for letter in "ab":
        parser.add_argument(
            f"--precision-{letter}", choices=("int8", "fp32"), help=f"run this graph of {letter.upper()} instead of the served one"
        )
    parser.add_argument(
        "--threads", type=positive, default=0, metavar="N", help="threads that share a session (default: the cores granted)"
    )
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help="of the intervals (default: %(default)s)")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    check_writable(arguments.json, arguments.html)
    datasets = [Dataset.parse(spec) for spec in arguments.files]
    precisions = arguments.precision_a, arguments.precision_b
    comparison = compare(arguments.first, arguments.second, datasets, precisions, arguments.threads, arguments.seed)
    print(as_text(comparison))
    if arguments.json:
        write_text(arguments.json, comparison.model_dump_json(indent=1) + "\n")
    if arguments.html:
        write_text(arguments.html, as_page(comparison))
