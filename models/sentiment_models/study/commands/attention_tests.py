"""``sentiment-models attention-tests``."""

import argparse
import sys
from pathlib import Path

from sentiment_models.commands.arguments import DATA_HELP, add_fields, add_output, options_as, positive, with_threads
from sentiment_models.study.training_settings import Settings

DESCRIPTION = (
    "Train small encoders to test what attention contributes (Wiegreffe and Pinter 2019): frozen to uniform, from other seeds, as word "
    "weights of a bag of embeddings, and trained to look elsewhere. Repeat the command to continue after an interruption."
)
# Help text of each field of training_tests.Settings. A test checks that none is missing.
SETTINGS_HELP = {
    "train_texts": "max texts drawn for training",
    "heldout_texts": "max texts drawn from the held-out ones",
    "words_min": "min words of a text; shorter texts are skipped",
    "max_tokens": "max tokens of a text; longer texts are cut",
    "layers": "layers of the encoders",
    "heads": "attention heads per layer of the encoders",
    "width": "dimensions of the encoders, shared by their heads",
    "vocabulary": "max pieces of their tokenizer",
    "dropout": "dropout on hidden layers",
    "epochs": "passes over the texts",
    "learning_rate": "peak learning rate",
    "batch_rows": "texts per batch",
    "seeds": "number of trainings to compare",
    "adversary_epochs": "epochs of each adversary, after the base",
    "adversary_weights": "weights of differing attention in the loss, separated by commas; one adversary each",
    "bag_epochs": "epochs of each bag of embeddings",
    "bag_learning_rate": "peak learning rate of the bags",
    "heldout_fraction": "share of the sentences held out before the draw",
    "labels": "label names, separated by commas",
    "seed": "seed of the split, the draw and the first training; further trainings count up from it",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--data", required=True, action="append", type=Path, metavar="FILE", help=f"{DATA_HELP}; repeatable")
    add_output(parser, "folder of the tests; continues those found there")
    # Encoders this small are no faster on two threads: 60 steps of the default size took 1.5 s on one and 1.7 s on two.
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="CPU threads of torch (default: %(default)s)")
    add_fields(parser, Settings, SETTINGS_HELP, adversary_weights=_weights)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.explanations.training_page import as_page, as_text, curve_png
    from sentiment_models.reports.report import write_file
    from sentiment_models.study.training_tests import RESULTS, attention_tests

    with_threads(arguments)
    out: Path = arguments.out
    found = attention_tests(arguments.data, options_as(Settings, arguments), out, say=lambda line: print(line, file=sys.stderr, flush=True))
    png = curve_png(found)
    write_file(out / "curve.png", png)
    write_file(out / "report.html", as_page(found, png))
    print(as_text(found))
    print(f"\n{out / RESULTS}: the figures; {out / 'report.html'}: the same with the curve")


def _weights(value: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in value.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be numbers separated by commas, such as 0.01,0.1, got {value!r}") from error
