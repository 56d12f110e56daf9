"""``sentiment-models evaluate``."""

import argparse
from pathlib import Path

from sentiment_models.commands.arguments import DATA_HELP, positive
from sentiment_models.evaluate import Dataset, evaluate, record

DESCRIPTION = (
    "Measure accuracy, macro F1 and expected calibration error of a bundle's served graph, and what a text costs, "
    "through the service's own code."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")
    parser.add_argument("files", nargs="+", metavar="[NAME=]FILE", help=f"{DATA_HELP}; called by its folder and name unless NAME is given")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there, for card")
    parser.add_argument("--precision", choices=("int8", "fp32"), help="measure this graph instead of the served one")
    parser.add_argument(
        "--threads", type=positive, default=0, metavar="N", help="threads that share the session (default: the cores granted)"
    )
    parser.add_argument("--record", action="store_true", help="also write the figures into the bundle's manifest, which changes its digest")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    evaluation = evaluate(arguments.bundle, [Dataset.parse(spec) for spec in arguments.files], arguments.precision, arguments.threads)
    print(evaluation.table())
    if arguments.json:
        arguments.json.write_text(evaluation.model_dump_json(indent=1) + "\n", encoding="utf-8")
    if arguments.record:
        record(arguments.bundle, evaluation)
