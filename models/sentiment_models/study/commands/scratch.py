"""``sentiment-models scratch``."""

import argparse
import re
import sys

from sentiment_models.commands.arguments import DATA_HELP, add_fields, add_output, add_torch, options_as, with_threads
from sentiment_models.study.recipes import Experiment

DESCRIPTION = (
    "Train transformers from scratch and fine-tune others on the same few reviews. Prints the accuracies beside the published ones; "
    "writes OUT/results.json, OUT/curves.png and OUT/report.html. Repeat the command to continue after an interruption."
)
# Help text of the fields of Experiment; the others are declared below.
EXPERIMENT_HELP = {
    "reviews": "reviews drawn for training and development, equally from each label",
    "test_reviews": "test reviews drawn; 0: all",
    "max_tokens": "max tokens of a review; longer ones are cut",
    "epochs": "passes over the reviews",
    "width": "dimensions of the models from scratch",
    "vocabulary": "max pieces of their tokenizer",
    "learning_rate": "peak learning rate of the models from scratch",
    "base_learning_rate": "peak learning rate of fine-tuning",
    "batch_rows": "reviews per batch",
    "dev_fraction": "share of the reviews in the development set",
    "seed": "seed of the draw, split, order, weights and dropout",
    "labels": "label names",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    plain = Experiment("", "")
    parser.add_argument("--data", required=True, metavar="PATH", help=f"reviews to draw from; {DATA_HELP}")
    parser.add_argument("--test", required=True, metavar="PATH", help="test reviews, in the same formats")
    add_output(parser, "folder of the experiment; continues one found there")
    parser.add_argument(
        "--base",
        default=[],
        action="append",
        type=_named,
        metavar="NAME=DIR",
        help="pre-trained model to fine-tune: a folder, or hub:NAME; repeatable",
    )
    parser.add_argument(
        "--grid",
        default=plain.grid,
        type=_grid,
        metavar="HxL,...",
        help="heads x layers of the models from scratch, or none (default: 8x6,8x12,16x6,16x12)",
    )
    add_fields(parser, Experiment, EXPERIMENT_HELP)
    add_torch(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.reports.report import write_file
    from sentiment_models.study.experiment import conduct
    from sentiment_models.study.experiment_page import HEADER, curves_png, report, rows
    from sentiment_tools.reports.html_report import plain

    with_threads(arguments)
    experiment = options_as(Experiment, arguments, bases=tuple(arguments.base))
    outcomes = conduct(experiment, arguments.out, arguments.device, say=lambda line: print(line, file=sys.stderr, flush=True))
    png = curves_png(outcomes)
    write_file(arguments.out / "curves.png", png)
    write_file(arguments.out / "report.html", report(experiment, outcomes, png))
    print(plain(HEADER, rows(outcomes)))
    print(f"{arguments.out / 'report.html'}: the same with the curves")


def _named(value: str) -> tuple[str, str]:
    name, equals, folder = value.partition("=")
    if not (equals and name and folder):
        raise argparse.ArgumentTypeError(f"must be NAME=DIR, got {value!r}")
    return name, folder


def _grid(value: str) -> tuple[tuple[int, int], ...]:
    if value == "none":
        return ()
    found = [re.fullmatch(r"(\d{1,3})x(\d{1,3})", part.strip()) for part in value.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"must be heads x layers separated by commas, such as 8x6,16x12, or none; got {value!r}")
    return tuple((int(one[1]), int(one[2])) for one in found if one)
