"""``sentiment-models label``."""

import argparse
from pathlib import Path

from sentiment.files.output import beside
from sentiment_models.commands.arguments import add_device, add_output, add_reading, positive, reading_of

DESCRIPTION = (
    "Label texts with a fine-tuned classifier's probabilities: soft targets for train --data (distillation, Hinton et al. 2015). "
    "Keeps the labels that the files already have."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("teacher", type=Path, metavar="CHECKPOINT", help="folder of a fine-tuned classifier, such as OUT/best of train")
    parser.add_argument(
        "files",
        nargs="+",
        metavar="PATH[:TIMES]",
        help="texts as for train, with or without labels, or a .txt with one text per line; also .gz",
    )
    add_output(parser, ".jsonl file to write; -: standard output", metavar="FILE")
    parser.add_argument("--sentences", type=positive, metavar="N", help="label N sentences of 4 to 60 words instead of whole texts")
    parser.add_argument(
        "--max-tokens",
        type=positive,
        default=512,
        metavar="N",
        help="max tokens of a text, up to the teacher's limit; longer texts are cut (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the drawn sentences (default: %(default)s)")
    add_device(parser)
    add_reading(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.training.distributed import usable_device
    from sentiment_models.training.label import label

    device = usable_device(arguments.device)
    given = (arguments.teacher, arguments.files, arguments.out, device, arguments.max_tokens, arguments.sentences, arguments.seed)
    count = label(*given, reading_of(arguments))
    print(f"{arguments.out}: {count} texts", file=beside(arguments.out))
