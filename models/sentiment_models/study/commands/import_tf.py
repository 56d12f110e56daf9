"""``sentiment-models import-tf``."""

import argparse
from pathlib import Path

from sentiment_models.commands.arguments import add_overwrite

DESCRIPTION = (
    "Convert a checkpoint of the original TensorFlow BERT (bert_config.json, vocab.txt, bert_model.ckpt.*) to a base for train --base. "
    "Needs pip install 'sentiment-service[models,tensorflow]'. Variables of the optimizer are left out."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder with the checkpoint's files")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder to write")
    case = parser.add_mutually_exclusive_group()
    case.add_argument(
        "--uncased",
        dest="lower_case",
        action="store_const",
        const=True,
        help="lower-case texts (default: as do_lower_case in bert_config.json says, else unless vocab.txt has pieces with capitals A to Z)",
    )
    case.add_argument("--cased", dest="lower_case", action="store_const", const=False, help="keep the case of texts")
    add_overwrite(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.study.tensorflow_bert import import_tf

    found = import_tf(arguments.folder, arguments.output, lower_case=arguments.lower_case, force=arguments.force)
    case = "lower-cases texts" if found.lower_case else "keeps the case of texts"
    lacks = [what for what, there in (("pooler", found.pooler), ("all heads of pre-training", found.heads)) if not there]
    print(
        f"{arguments.output}: the tokenizer {case}"
        + (f"; the checkpoint lacks {', '.join(lacks)}: training begins with random ones" if lacks else "")
    )
    print(f"next: sentiment-models train --base {arguments.output} --data ... --output ...")
