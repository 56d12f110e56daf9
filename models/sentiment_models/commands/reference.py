"""``sentiment-models reference``."""

import argparse
import re
from pathlib import Path

from sentiment.files.standard_streams import need_standard_output
from sentiment.model.bundle import NAME
from sentiment_models.commands.arguments import add_reading, add_session_threads, reading_of
from sentiment_models.data.carving import carve
from sentiment_models.data.labelled import TextOrPair, read_examples, read_texts, wholes
from sentiment_models.errors import ModelsError
from sentiment_models.export.labels import outputs_of

DESCRIPTION = (
    "Count how a bundle answers texts that it knows: winning label, abstention, score, tokens, unknown tokens, fragments of words, and "
    "projections of hidden states if the explain graph has these. A server compares its own texts with these counts and reports drift. A "
    "bundle may have several references, one for each kind of texts."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="bundle folder")
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="texts: .txt (one a line), a table with the column text, .jsonl (key text) or a server's journal of answers with their texts; "
        "or labelled texts as for train, whose labels are not used; also .gz",
    )
    add_session_threads(parser)
    parser.add_argument(
        "--dev",
        type=float,
        metavar="FRACTION",
        help="count only what train --dev-fraction FRACTION holds out of these files, which must be labelled; give all files that were "
        "trained on together, because the side of a phrase depends on the sentences in all of them",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of --dev (default: 1)")
    parser.add_argument("--name", type=_name, metavar="NAME", help="the reference's name, such as reviews")
    parser.add_argument(
        "--record",
        action="store_true",
        help="with --name: write the counts into the bundle's manifest, in the place of the reference of this name; changes the digest",
    )
    add_reading(parser)
    parser.add_argument("--remove", metavar="NAME", help="remove this reference from the bundle's manifest, and do nothing else")


def _name(value: str) -> str:
    if not re.fullmatch(NAME, value):
        raise argparse.ArgumentTypeError(f"must match {NAME}, got {value!r}")
    return value


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.evaluation.reference import hidden_of_others, measure_reference, record_reference, remove_reference, table

    if arguments.remove is not None:
        if arguments.files or arguments.record or arguments.name is not None:
            raise ModelsError("--remove goes without FILE, --name and --record")
        remove_reference(arguments.bundle, arguments.remove)
        return
    if not arguments.files:
        raise ModelsError("FILE is needed, or --remove NAME")
    if arguments.record and arguments.name is None:
        raise ModelsError("--record needs --name")
    need_standard_output(arguments.record)
    from sentiment_models.export.inference import load_served

    classifier = load_served(arguments.bundle)
    manifest, reading = classifier.manifest, reading_of(arguments)
    texts: list[TextOrPair]
    if arguments.dev is None:
        texts = [text for file in arguments.files for text in read_texts(file, pairs=manifest.pairs, reading=reading)]
    else:
        outputs = outputs_of(manifest.labels, manifest.mixed)
        files = (
            read_examples(file, outputs, pairs=manifest.pairs or manifest.targets is not None, reading=reading) for file in arguments.files
        )
        examples = [example for file in files for example in file]
        held_out = carve([(examples, 1)], arguments.dev, arguments.seed).dev
        texts = [example.whole for example in wholes(held_out, targets=manifest.targets is not None)]
    found = measure_reference(classifier, texts, arguments.files, arguments.threads, hidden_of_others(manifest, arguments.name))
    print(table(found))
    if arguments.record:
        record_reference(arguments.bundle, arguments.name, found)
