"""The arguments of ``sentiment watch``. What reads and reports is imported only when it runs."""

import argparse
from pathlib import Path
from typing import Any

from sentiment.cli.arguments import add_model, add_reading, bundles_of, count, reading_of
from sentiment.files.output import beside
from sentiment.files.progress import TextProgress
from sentiment.files.standard_streams import need_standard_output
from sentiment.files.visible import visible_lines
from sentiment.observability.drift import TEXTS_MIN, WINDOW_TEXTS
from sentiment_tools.commands.arguments import add_report

# The exit code of --fail-on-drift. Not 1: a monitor must tell drift from a command that failed.
DRIFTED = 4


def add_watch(commands: Any) -> None:  # Any: argparse names the type of its subparsers in private
    """Register the command."""
    parser = commands.add_parser(
        "watch",
        help="compare texts and answers with those of before",
        description="Show what a model answers to a file of texts, or answered in a journal: the numbers of a server's metrics, in all and "
        "over the texts, and how far they drifted from a reference. Needs no server. How good the answers to labelled texts are: sentiment "
        "evaluate.",
    )
    parser.add_argument(
        "-i",
        "--input",
        type=Path,
        required=True,
        metavar="PATH",
        help="a journal (a folder or one of its files), or texts to answer in this process: .txt (one a line), or a column of a .csv, "
        ".tsv, .jsonl, .json, .parquet or .xlsx; text also .gz or .zst",
    )
    parser.add_argument(
        "--reference", type=Path, metavar="PATH", help="usual texts, or a journal of the same model (default: the bundle's references)"
    )
    add_reading(parser)
    parser.add_argument("--pair", default="", metavar="NAME", help="column of a file that holds the second text of a pair")
    parser.add_argument("--labels", default="", metavar="NAME", help="column of --input that holds the right label, by name or number")
    add_model(parser, "the model (default: of texts the default bundle, of a journal the one that answered last)")
    parser.add_argument(
        "--window",
        type=count(10_000_000, least=TEXTS_MIN),
        default=WINDOW_TEXTS,
        metavar="N",
        help=f"texts of a window, at least {TEXTS_MIN} (default: {WINDOW_TEXTS})",
    )
    parser.add_argument("--fail-on-drift", action="store_true", help=f"exit with {DRIFTED} if a signal of all texts together drifted")
    add_report(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from sentiment.observability import logs  # noqa: PLC0415  # only model runs write logs
    from sentiment_tools.watch.run import run  # noqa: PLC0415  # as above

    need_standard_output(options.json, options.html)
    logs.configure("warning", "text")
    progress = TextProgress()
    options.reading, options.bundles = reading_of(options), bundles_of(options.bundles)
    shown, drifted = run(options, progress.advance)
    progress.close()
    print(visible_lines(shown), file=beside(options.json, options.html))
    return DRIFTED if drifted else 0
