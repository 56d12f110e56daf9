"""``sentiment-models reference``."""

import argparse
from pathlib import Path

from sentiment.model.classifier import load_classifier
from sentiment_models.commands.arguments import DATA_HELP, positive
from sentiment_models.data.labelled import read_examples
from sentiment_models.evaluation.reference import measure_reference, record_reference, table

DESCRIPTION = (
    "Count how a bundle answers texts that it knows: winning label, abstention, score, tokens, unknown tokens and fragments of words. A "
    "server compares its own texts with these counts and reports drift."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="bundle folder")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=f"{DATA_HELP}; their labels are not used")
    parser.add_argument("--threads", type=positive, default=0, metavar="N", help="threads of the session (default: the available cores)")
    parser.add_argument("--record", action="store_true", help="write the counts into the bundle's manifest, which changes its digest")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    classifier = load_classifier(arguments.bundle)
    manifest = classifier.manifest
    texts = [example.whole for file in arguments.files for example in read_examples(file, manifest.labels, pairs=manifest.pairs)]
    found = measure_reference(classifier, texts, arguments.files, arguments.threads)
    print(table(found))
    if arguments.record:
        record_reference(arguments.bundle, found)
