"""``sentiment-models train``."""

import argparse
from dataclasses import fields
from pathlib import Path

import torch

from sentiment_models.commands.arguments import DATA_HELP, label_names, positive
from sentiment_models.train import Recipe, train

DESCRIPTION = (
    "Fine-tune a classifier into OUT/best. Repeat the command to go on after an interruption. OUT/dev.jsonl is the "
    "development set, for export --dev."
)

# What each field of train.Recipe means; a test holds the two together. Base, sources and tails have flags of their own.
RECIPE_HELP = {
    "labels": "label names in the order of their indices, parted by commas",
    "epochs": "how often the training files are gone through",
    "learning_rate": "the highest learning rate; it rises linearly and falls linearly to 0",
    "warmup_fraction": "share of the steps in which it rises",
    "weight_decay": "decay of the weights; biases and normalisation have none",
    "dropout": "dropout on hidden layers",
    "batch_rows": "most texts in a batch",
    "batch_tokens": "most tokens in a batch, padding included",
    "max_tokens": "texts are cut to this many tokens in training; serving reads what the model can",
    "dev_fraction": "share of each file that becomes the development set",
    "evaluations_per_epoch": "how often an epoch is measured on the development set",
    "patience": "stop after this many evaluations in a row without a better accuracy",
    "seed": "of the split, the order of the texts, the head and dropout",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--base", required=True, metavar="DIR", help="pre-trained model: a folder, or a name that transformers knows")
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
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="where the run lives; a run found there is continued")
    parser.add_argument("--device", default="cpu", help="where torch computes, such as cpu or cuda (default: %(default)s)")
    parser.add_argument("--threads", type=positive, metavar="N", help="CPU threads of torch (default: its own choice)")
    parser.add_argument(
        "--checkpoint-steps", type=positive, default=200, metavar="N", help="steps between checkpoints (default: %(default)s)"
    )
    parser.add_argument("--restart", action="store_true", help="begin anew instead of continuing a run in OUT")
    for field in fields(Recipe):
        if field.name not in RECIPE_HELP:
            continue
        names = isinstance(field.default, tuple)
        default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
        kind = label_names if names else type(field.default)
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=kind, default=field.default, metavar="X", help=f"{RECIPE_HELP[field.name]} (default: {default})")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    given = {name: getattr(arguments, name) for name in RECIPE_HELP}
    recipe = Recipe(base=arguments.base, sources=tuple(arguments.data), tails=tuple(arguments.tails), **given)
    best = train(recipe, arguments.out, arguments.device, arguments.checkpoint_steps, resume=not arguments.restart)
    print(f"{best}: the best checkpoint; next: sentiment-models export {best} --dev {arguments.out / 'dev.jsonl'} --out ...")
