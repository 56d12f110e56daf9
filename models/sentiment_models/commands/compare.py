"""``sentiment-models compare``."""

import argparse
from pathlib import Path

from sentiment.files.standard_streams import need_standard_output
from sentiment_models.commands.arguments import DATA_HELP, add_figures, add_reading, add_session_threads, reading_of, write_figures
from sentiment_models.evaluation.resample import SEED
from sentiment_models.reports.report import check_writable

DESCRIPTION = (
    "Compare two bundles on the same labelled texts: accuracy, texts whose answer flips, whether the difference may be chance "
    "(McNemar's exact test, paired bootstrap), how sure the answers are (expected accuracy, ECE), and cost."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("first", type=Path, metavar="A", help="folder of the current bundle")
    parser.add_argument("second", type=Path, metavar="B", help="folder of the candidate bundle")
    parser.add_argument(
        "files", nargs="+", metavar="[NAME=]FILE", help=f"{DATA_HELP}; NAME is shown in the results (default: folder and file name)"
    )
    add_figures(parser)
    for letter in "ab":
        parser.add_argument(
            f"--precision-{letter}", choices=("int8", "fp32"), help=f"run this graph of {letter.upper()} instead of the served one"
        )
    add_session_threads(parser)
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help="seed of the bootstrap (default: %(default)s)")
    add_reading(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.evaluation.compare import as_page, as_text, compare
    from sentiment_models.evaluation.evaluate import Dataset

    need_standard_output(arguments.json, arguments.html)
    check_writable(json=arguments.json, html=arguments.html)
    datasets = [Dataset.parse(spec, reading_of(arguments)) for spec in arguments.files]
    precisions = arguments.precision_a, arguments.precision_b
    comparison = compare(arguments.first, arguments.second, datasets, precisions, arguments.threads, arguments.seed)
    write_figures(arguments, comparison, as_text(comparison), lambda: as_page(comparison))
