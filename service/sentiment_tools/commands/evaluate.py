"""The arguments of ``sentiment evaluate``. What answers and reports is imported only when it runs."""

import argparse
from pathlib import Path
from typing import Any

from sentiment.cli.arguments import add_model, add_reading, bundles_of, reading_of
from sentiment.files.output import beside
from sentiment.files.progress import TextProgress
from sentiment.files.standard_streams import need_standard_output
from sentiment.files.visible import visible_lines


def add_evaluate(commands: Any) -> None:  # Any: argparse names the type of its subparsers in private
    """Register the command."""
    parser = commands.add_parser(
        "evaluate",
        help="say how good the model is on your labelled texts",
        description="Answer labelled texts in this process and show accuracy with its interval, the confusion matrix, the surest errors "
        "and what to do next. Needs no server and no torch. To see whether texts change over time: sentiment watch.",
    )
    parser.add_argument(
        "input",
        type=Path,
        metavar="FILE",
        help="labelled texts: columns of a .csv, .tsv, .jsonl, .json, .parquet or .xlsx; text also .gz or .zst",
    )
    parser.add_argument(
        "--labels",
        default="label",
        metavar="NAME",
        help="column of the right label, by name or number (default: label); rows without one are left out",
    )
    add_reading(parser)
    parser.add_argument("--pair", default="", metavar="NAME", help="column that holds the second text of a pair")
    add_model(parser, "the model (default: the default bundle)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here (-: standard output)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from sentiment.observability import logs  # noqa: PLC0415  # only model runs write logs
    from sentiment_tools.watch.evaluate import evaluate  # noqa: PLC0415  # as above

    need_standard_output(options.json)
    logs.configure("warning", "text")
    progress = TextProgress()
    options.reading, options.bundles = reading_of(options), bundles_of(options.bundles)
    shown = evaluate(options, progress.advance)
    progress.close()
    print(visible_lines(shown), file=beside(options.json))
    return 0
