"""``sentiment-models compare``."""

import argparse
from pathlib import Path

from sentiment.files.output import beside
from sentiment.files.standard_streams import need_standard_output
from sentiment_models.commands.arguments import DATA_HELP, add_reading, positive, reading_of
from sentiment_models.evaluation.resample import SEED
from sentiment_models.reports.report import check_writable, write_text

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
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here (-: standard output)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a self-contained report here (-: standard output)")
    for letter in "ab":
        parser.add_argument(
            f"--precision-{letter}", choices=("int8", "fp32"), help=f"run this graph of {letter.upper()} instead of the served one"
        )
    parser.add_argument("--threads", type=positive, default=0, metavar="N", help="threads per session (default: the available cores)")
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
    print(as_text(comparison), file=beside(arguments.json, arguments.html))
    if arguments.json:
        write_text(arguments.json, comparison.model_dump_json(indent=1) + "\n")
    if arguments.html:
        write_text(arguments.html, as_page(comparison))
