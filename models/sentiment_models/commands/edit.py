"""``sentiment-models edit``."""

import argparse
from pathlib import Path

from sentiment.files.output import beside
from sentiment_models.commands.arguments import add_device, add_output, add_reading, positive, reading_of

DESCRIPTION = (
    "Edit labelled English texts so that their label turns: words of praise and blame become their opposites, in the last sentence or in "
    "all. Keeps a text and its smallest such edit, as a pair, if the teacher is sure of both labels. Write to FILE for train --data, and "
    "for evaluate, which counts the pairs of which both texts are right."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("teacher", type=Path, metavar="CHECKPOINT", help="folder of a fine-tuned classifier, or a bundle")
    parser.add_argument("files", nargs="+", metavar="PATH[:TIMES]", help="labelled texts as for train; also .gz")
    add_output(parser, ".jsonl file to write; -: standard output", metavar="FILE")
    parser.add_argument(
        "--sure", type=share, default=0.9, metavar="P", help="least probability of both labels, 0.5 to 1 (default: %(default)s)"
    )
    parser.add_argument(
        "--max-tokens", type=positive, default=512, metavar="N", help="max tokens of a text for the teacher (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of what PATH:TIMES draws (default: %(default)s)")
    add_device(parser)
    add_reading(parser, pairs=False)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.training.distributed import usable_device
    from sentiment_models.training.edit import edit

    device = usable_device(arguments.device)
    given = (arguments.teacher, arguments.files, arguments.out, device, arguments.sure, arguments.max_tokens, arguments.seed)
    pairs, tried = edit(*given, reading_of(arguments))
    print(f"{arguments.out}: {pairs:,} pairs of {tried:,} texts that have an edit", file=beside(arguments.out))


def share(value: str) -> float:
    """Parse a probability."""
    found = float(value)
    if not 0.5 <= found <= 1:
        raise argparse.ArgumentTypeError(f"must be 0.5 to 1, got {value}")
    return found
