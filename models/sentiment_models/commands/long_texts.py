"""``sentiment-models long-texts``."""

import argparse
from pathlib import Path

from sentiment.files.standard_streams import need_standard_output
from sentiment_models.commands.arguments import (
    DATA_HELP,
    add_figures,
    add_reading,
    add_session_threads,
    positive,
    reading_of,
    write_figures,
)
from sentiment_models.errors import ModelsError
from sentiment_models.reports.report import check_writable

BEST = "best"
DESCRIPTION = (
    "Measure how a bundle answers texts that are too long for it: from their head, from head and tail, and in overlapping "
    "windows, with each stride and each rule for combining their answers."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="bundle folder")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=f"{DATA_HELP}; shorter texts are skipped")
    parser.add_argument(
        "--dev",
        type=float,
        metavar="FRACTION",
        help="measure only what train --dev-fraction FRACTION holds out with this seed",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of --dev and --texts (default: 1)")
    parser.add_argument(
        "--texts", type=positive, default=0, metavar="N", help="max long texts to measure, drawn by the seed (default: all)"
    )
    parser.add_argument(
        "--stride",
        type=positive,
        action="append",
        default=[],
        metavar="TOKENS",
        help="tokens from one window to the next; repeatable (default: 1/2, 3/4 and all of a window)",
    )
    add_session_threads(parser)
    add_figures(parser, report="")
    parser.add_argument("--record", action="store_true", help="write the best windows into the bundle's manifest, which changes its digest")
    parser.add_argument(
        "--default",
        nargs="?",
        const=BEST,
        choices=(BEST, "head", "head_tail", "windows"),
        help="with --record: make this truncation the bundle's default (without a name: the best one)",
    )
    add_reading(parser, pairs=False)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.evaluation.long_texts import Choice, measure_long_texts, record_long_texts

    if arguments.default and not arguments.record:
        raise ModelsError("--default needs --record")
    need_standard_output(arguments.json, arguments.record)
    check_writable(json=arguments.json)
    choice = Choice(arguments.dev, arguments.seed, arguments.texts, tuple(arguments.stride), reading_of(arguments))
    found = measure_long_texts(arguments.bundle, arguments.files, choice, arguments.threads)
    write_figures(arguments, found, found.table())
    if arguments.record:
        default = found.best().truncation if arguments.default == BEST else arguments.default
        record_long_texts(arguments.bundle, found, default)
