"""``sentiment-models card``."""

import argparse
from pathlib import Path

DESCRIPTION = (
    "Write MODEL_CARD.md into a bundle, from its manifest and the results of evaluate, and list it in the manifest, whose digest changes. "
    "The results are kept beside the bundle's folder, as BUNDLE.record.json, which is read for what is not given."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="bundle folder")
    parser.add_argument(
        "--evaluation",
        nargs="+",
        type=Path,
        default=[],
        metavar="JSON",
        help="files from evaluate --json; what is not given is taken from the record beside the bundle",
    )
    parser.add_argument("--explanations", type=Path, metavar="JSON", help="file from evaluate --explanations --json")
    parser.add_argument("--attention-tests", type=Path, metavar="JSON", help="results.json from attention-tests")
    parser.add_argument(
        "--about",
        type=Path,
        metavar="TOML",
        help="what no measurement tells: language, licences, limits, selection, sources, names of data sets",
    )
    parser.add_argument("--language", default="", metavar="NAME", help="language of the texts, such as English")
    parser.add_argument("--licences", default="", metavar="TEXT", help="statement on the licences of the training texts")
    parser.add_argument(
        "--tables", action="store_true", help="write nothing; print the stages of training, the graphs and every table of the results"
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.evaluation.findings import Evaluation
    from sentiment_models.explanations.findings import Findings
    from sentiment_models.explanations.training_findings import TrainingFindings
    from sentiment_models.reports.about import AuthorFacts, read_about
    from sentiment_models.reports.card import write_card
    from sentiment_models.reports.record import read_record
    from sentiment_models.stored import stored

    given: dict[str, object] = {}
    if arguments.evaluation:
        given["evaluations"] = tuple(stored(path, Evaluation, "evaluate --json") for path in arguments.evaluation)
    if arguments.explanations:
        given["explanations"] = stored(arguments.explanations, Findings, "evaluate --explanations --json")
    if arguments.attention_tests:
        given["attention_tests"] = stored(arguments.attention_tests, TrainingFindings, "attention-tests")
    record = read_record(arguments.bundle, [*given]).model_copy(update=given)
    if arguments.tables:
        from sentiment_models.reports.record_tables import tables

        print(tables(arguments.bundle, record))
        return
    about = read_about(arguments.about) if arguments.about else AuthorFacts()
    known = {name: value for name in ("language", "licences") if (value := getattr(arguments, name))}
    print(write_card(arguments.bundle, record, about.model_copy(update=known)))
