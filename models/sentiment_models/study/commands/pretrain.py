"""``sentiment-models pretrain``."""

import argparse

from sentiment_models.commands.arguments import add_run, options_as, with_threads
from sentiment_models.study.recipes import Pretraining

DESCRIPTION = (
    "Pre-train an encoder on whole documents into OUT/best, for train --base. Objectives: BERT's masked tokens (15 %: 80 % of them "
    "masked, 10 % replaced) and next sentence. Starts untrained, or with --base from an encoder. Repeat the command to "
    "continue after an interruption."
)

# Help text of each field of Pretraining. A test checks that none is missing. sources, base, tokenizer and next_sentence are declared below.
PRETRAINING_HELP = {
    "layers": "layers of an untrained model",
    "heads": "attention heads of an untrained model",
    "width": "dimensions of an untrained model, shared by its heads",
    "vocabulary": "max pieces of an untrained model's tokenizer",
    "epochs": "passes over the documents; each masks other tokens and pairs other sentences",
    "max_steps": "stop after this many batches; 0: after all epochs",
    "learning_rate": "peak learning rate; it rises linearly, then falls linearly to 0",
    "warmup_fraction": "share of the steps in which the learning rate rises",
    "weight_decay": "weight decay; none for biases and normalisation",
    "dropout": "dropout on hidden layers",
    "batch_rows": "max rows per batch",
    "batch_tokens": "max tokens per batch, padding included",
    "max_tokens": "max tokens per row; also an untrained model's limit",
    "dev_fraction": "share of the documents held out for evaluation",
    "evaluations_per_epoch": "evaluations per epoch on held-out documents",
    "seed": "seed of the split, masks, pairs, order, weights and dropout",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--data",
        required=True,
        action="append",
        metavar="PATH[:TIMES]",
        help="documents: .txt (one per line), .tsv (label<TAB>document) or .jsonl (key text), also .gz; read TIMES per epoch; repeatable",
    )
    begins = parser.add_mutually_exclusive_group()
    begins.add_argument(
        "--base",
        default="",
        metavar="DIR",
        help="encoder to continue from, a folder or hub:NAME, with its tokenizer (default: an untrained BERT)",
    )
    begins.add_argument(
        "--tokenizer", default="", metavar="DIR", help="tokenizer of the untrained BERT (default: learned from the documents)"
    )
    parser.add_argument(
        "--no-nsp", action="store_true", help="train on masked tokens only, in rows of one segment; needed if --base is not a BERT"
    )
    add_run(parser, Pretraining, PRETRAINING_HELP)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.study.pretrain import pretrain
    from sentiment_models.training.distributed import is_first_process

    with_threads(arguments)
    recipe = options_as(Pretraining, arguments, sources=tuple(arguments.data), next_sentence=not arguments.no_nsp)
    best = pretrain(recipe, arguments.out, arguments.device, arguments.checkpoint_steps, resume=not arguments.restart)
    if is_first_process():
        print(f"{best}: the best checkpoint; next: sentiment-models train --base {best} --data ... --output ...")
