"""``sentiment-models train``."""

import argparse

import torch

from sentiment_models.commands.arguments import DATA_HELP, add_run
from sentiment_models.training.distributed import speaks
from sentiment_models.training.recipe import Recipe
from sentiment_models.training.train import train

DESCRIPTION = (
    "Fine-tune a classifier into OUT/best. Repeat the command to go on after an interruption. OUT/dev.jsonl is the "
    "development set, for export --dev. OUT/logs is for tensorboard --logdir. Several processes share the batches under "
    "torchrun --nproc-per-node N -m sentiment_models.cli train ..."
)

# What each field of train.Recipe means; a test holds the two together. Files have flags of their own.
RECIPE_HELP = {
    "labels": "label names in the order of their indices, parted by commas",
    "epochs": "how often the training files are gone through",
    "learning_rate": "the highest learning rate; it rises linearly and falls linearly to 0",
    "warmup_fraction": "share of the steps in which it rises",
    "weight_decay": "decay of the weights; biases and normalisation have none",
    "dropout": "dropout on hidden layers",
    "ema": "decay of an exponential moving average of the weights, such as 0.999, which is measured and kept instead of them; 0: none",
    "head_only": "train the classification head alone and leave the encoder as the base has it; what --emoji adds stays as it begins",
    "batch_rows": "most texts in a batch",
    "batch_tokens": "most tokens in a batch, padding included",
    "max_tokens": "texts are cut to this many tokens in training; serving reads what the model can",
    "teacher_weight": "share of the teacher in the target of texts that have both a label and probabilities, from 0 to 1",
    "detokenize": "chance that a text is shown as people write it, if it was tokenized, from 0 to 1",
    "recase": "chance that a text is shown in lower, upper or sentence case, from 0 to 1",
    "typos": "chance that a text is shown with a slip for every ten words, from 0 to 1",
    "emoji": "give emoji tokens of their own if the tokenizer cannot read them",
    "dev_fraction": "share of each file that becomes the development set",
    "evaluations_per_epoch": "how often an epoch is measured on the development set",
    "patience": "stop after this many evaluations in a row without a better accuracy",
    "layers": "layers of an untrained model",
    "heads": "attention heads of an untrained model",
    "width": "dimensions of an untrained model; the heads share them",
    "vocabulary": "most pieces of an untrained model's tokenizer",
    "seed": "of the split, the order of the texts, the head and dropout",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    begins = parser.add_mutually_exclusive_group(required=True)
    begins.add_argument("--base", metavar="DIR", help="pre-trained model: a folder, or a name that transformers knows")
    begins.add_argument(
        "--from-scratch",
        dest="base",
        action="store_const",
        const="",
        help="begin with an untrained BERT of --layers, --heads and --width, and a WordPiece tokenizer learned from the training texts",
    )
    parser.add_argument(
        "--data", required=True, action="append", metavar="PATH[:TIMES]", help=f"{DATA_HELP}; an epoch shows it TIMES; repeatable"
    )
    parser.add_argument(
        "--tails",
        default=[],
        action="append",
        metavar="PATH[:TIMES]",
        help="files of long texts whose last sentences are shown as texts of their own; repeatable",
    )
    parser.add_argument(
        "--undecided",
        default=[],
        action="append",
        metavar="PATH[:TIMES]",
        help="texts without sentiment or of other languages, kind<TAB>text a line of a .tsv: all labels are as likely; repeatable",
    )
    add_run(parser, Recipe, RECIPE_HELP)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    given = {name: getattr(arguments, name) for name in RECIPE_HELP}
    recipe = Recipe(
        base=arguments.base, sources=tuple(arguments.data), tails=tuple(arguments.tails), undecided=tuple(arguments.undecided), **given
    )
    best = train(recipe, arguments.out, arguments.device, arguments.checkpoint_steps, resume=not arguments.restart)
    if speaks():
        print(f"{best}: the best checkpoint; next: sentiment-models export {best} --dev {arguments.out / 'dev.jsonl'} --out ...")
