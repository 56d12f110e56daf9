"""``sentiment-models pretrain``."""

import argparse

import torch

from sentiment_models.commands.arguments import add_run
from sentiment_models.training.distributed import speaks
from sentiment_models.training.pretrain import Pretraining, pretrain

DESCRIPTION = (
    "Pre-train an encoder on whole documents into OUT/best, which train takes as its --base: BERT's masked tokens (15 %, of which "
    "80 % show the mask, 10 % another token) and next sentence. From nothing, or with --base onward from an encoder. Repeat "
    "the command to go on after an interruption."
)

# What each field of Pretraining means; a test holds the two together. Sources, base, tokenizer and next_sentence have flags of their own.
PRETRAINING_HELP = {
    "layers": "layers of an untrained model",
    "heads": "attention heads of an untrained model",
    "width": "dimensions of an untrained model; the heads share them",
    "vocabulary": "most pieces of the tokenizer that is learned for an untrained model",
    "epochs": "how often the documents are gone through; each time other tokens are masked and other sentences paired",
    "max_steps": "stop after this many batches; 0: after the epochs",
    "learning_rate": "the highest learning rate; it rises linearly and falls linearly to 0",
    "warmup_fraction": "share of the steps in which it rises",
    "weight_decay": "decay of the weights; biases and normalisation have none",
    "dropout": "dropout on hidden layers",
    "batch_rows": "most rows in a batch",
    "batch_tokens": "most tokens in a batch, padding included",
    "max_tokens": "most tokens in a row; an untrained model reads no more",
    "dev_fraction": "share of the documents that the model is measured on",
    "evaluations_per_epoch": "how often an epoch is measured on these",
    "seed": "of the split, the masks, the pairs, the order, the weights and dropout",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--data",
        required=True,
        action="append",
        metavar="PATH[:TIMES]",
        help="documents: .txt (one a line), .tsv (label<TAB>document) or .jsonl (key text), also .gz; an epoch shows it TIMES; repeatable",
    )
    begins = parser.add_mutually_exclusive_group()
    begins.add_argument("--base", default="", metavar="DIR", help="encoder to go on from, with its tokenizer (default: an untrained BERT)")
    begins.add_argument(
        "--tokenizer", default="", metavar="DIR", help="tokenizer of the untrained BERT (default: learned from the documents)"
    )
    parser.add_argument("--no-nsp", action="store_true", help="masked tokens alone, in rows of one segment; needed where --base is no bert")
    add_run(parser, Pretraining, PRETRAINING_HELP)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    recipe = Pretraining(
        sources=tuple(arguments.data),
        base=arguments.base,
        tokenizer=arguments.tokenizer,
        next_sentence=not arguments.no_nsp,
        **{name: getattr(arguments, name) for name in PRETRAINING_HELP},
    )
    best = pretrain(recipe, arguments.out, arguments.device, arguments.checkpoint_steps, resume=not arguments.restart)
    if speaks():
        print(f"{best}: the best checkpoint; next: sentiment-models train --base {best} --data ... --out ...")
