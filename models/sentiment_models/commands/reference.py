"""``sentiment-models reference``."""

import argparse
from pathlib import Path

from sentiment.model.classifier import load_classifier
from sentiment_models.commands.arguments import positive
from sentiment_models.data.labelled import read_texts
from sentiment_models.evaluation.reference import measure_reference, record_reference, table

DESCRIPTION = (
    "Count how a bundle answers texts that it knows: winning label, abstention, score, tokens, unknown tokens and fragments of words. A "
    "server compares its own texts with these counts and reports drift."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="bundle folder")
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="texts: .txt (one a line), .jsonl (key text) or a server's journal of answers with their texts; "
        "or labelled texts as for train, whose labels are not used; also .gz",
    )
    parser.add_argument("--threads", type=positive, default=0, metavar="N", help="threads of the session (default: the available cores)")
    parser.add_argument("--record", action="store_true", help="write the counts into the bundle's manifest, which changes its digest")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    classifier = load_classifier(arguments.bundle)
    manifest = classifier.manifest
    texts = [text for file in arguments.files for text in read_texts(file, manifest.labels, pairs=manifest.pairs)]
    found = measure_reference(classifier, texts, arguments.files, arguments.threads)
    print(table(found))
    if arguments.record:
        record_reference(arguments.bundle, found)
