"""``sentiment-models evaluate``."""

import argparse
from pathlib import Path

from sentiment.files.standard_streams import need_standard_output
from sentiment.model.long_texts import READ_ON
from sentiment_models.commands import explanation_arguments
from sentiment_models.commands.arguments import DATA_HELP, add_figures, add_reading, add_session_threads, reading_of, write_figures
from sentiment_models.evaluation.resample import SEED
from sentiment_models.reports.report import check_writable

DESCRIPTION = (
    "Measure a bundle's served graph with the service's own code: accuracy, macro F1 and calibration with the range that chance allows, "
    "the accuracy that the probabilities let expect, results by label and length, typos, behavioural tests, cost per text. With "
    "--explanations: how far its explanations can be trusted."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="bundle folder")
    parser.add_argument(
        "files", nargs="+", metavar="[NAME=]FILE", help=f"{DATA_HELP}; NAME is shown in the results (default: folder and file name)"
    )
    add_figures(parser, what_for=", for card", report="report with plots")
    parser.add_argument(
        "--undecided",
        type=Path,
        metavar="FILE",
        help="measure abstention on texts without an answer: a .tsv of kind<TAB>text (kind: language code; en: English without sentiment)",
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="BUNDLE",
        help="also measure this bundle's answers to the same texts; where it has no label neutral, those that abstain count as neutral",
    )
    parser.add_argument(
        "--vader", action="store_true", help="also measure the answers of VADER's word list (extra models; scores from 0.05 on count)"
    )
    parser.add_argument("--precision", choices=("int8", "fp32"), help="measure this graph instead of the served one")
    parser.add_argument("--truncation", choices=("head", *READ_ON), help="how to read texts that are too long (default: the bundle's)")
    add_session_threads(parser)
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help="random seed (default: %(default)s)")
    parser.add_argument("--record", action="store_true", help="also write the figures into the bundle's manifest, which changes its digest")
    add_reading(parser)
    explanation_arguments.add_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.evaluation.evaluate import Dataset, evaluate, record

    if arguments.explanations:
        import torch  # noqa: F401  # before its companions: the extra that has torch has them too
    elif arguments.html:
        import matplotlib  # noqa: F401  # before the work

    from sentiment_models.reports.evaluation_page import as_page, as_text

    need_standard_output(arguments.json, arguments.html, arguments.record)
    check_writable(json=arguments.json, html=arguments.html, resume=arguments.resume)
    datasets = [Dataset.parse(spec, reading_of(arguments)) for spec in arguments.files]
    explanation_arguments.check(arguments)
    if arguments.explanations:
        from sentiment_models.commands import explanations

        explanations.run(arguments, datasets)
        return
    evaluation = evaluate(
        arguments.bundle,
        datasets,
        arguments.precision,
        arguments.threads,
        arguments.truncation,
        arguments.undecided,
        arguments.seed,
        arguments.before,
        arguments.vader,
    )
    write_figures(arguments, evaluation, as_text(evaluation), lambda: as_page(evaluation))
    if arguments.record:
        record(arguments.bundle, evaluation)
