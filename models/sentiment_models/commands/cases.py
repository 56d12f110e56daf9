"""``sentiment-models cases``."""

import argparse

from sentiment.cli.arguments import count
from sentiment_models.cases.generate import COUNT_DEFAULT, COUNT_MAX, COUNT_MIN, HELD_OUT, SEED, TRAIN, counts, generate
from sentiment_models.cases.grammar import load
from sentiment_models.commands.arguments import add_output
from sentiment_models.reports.report import make_folder, write_file

DESCRIPTION = (
    "Generate texts whose label follows from a grammar: negation, contrast, change, questions, irony, emoji and the like, in minimal "
    "pairs. Writes OUT/train.jsonl for train --data, and OUT/held_out.jsonl with templates, domains and words that train.jsonl lacks, "
    "for evaluate. Prints the number of texts by phenomenon."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_output(parser, "folder to write into; made if it does not exist")
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help="equal seeds give equal files (default: %(default)s)")
    parser.add_argument(
        "--count",
        type=count(COUNT_MAX, COUNT_MIN),
        default=COUNT_DEFAULT,
        metavar="N",
        help=f"texts in both files together, {COUNT_MIN} to {COUNT_MAX} (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    make_folder(arguments.out)
    cases = list(generate(load(), arguments.seed, arguments.count))
    for split in (TRAIN, HELD_OUT):
        write_file(arguments.out / f"{split}.jsonl", "".join(f"{case.json()}\n" for case in cases if case.split == split))
    print(counts(cases))
