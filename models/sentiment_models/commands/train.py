"""``sentiment-models train``."""

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from sentiment_models.commands.arguments import DATA_HELP, add_reading, add_run, options_as, reading_of, with_threads
from sentiment_models.errors import BadData, ModelsError
from sentiment_models.export.labels import as_argument, named_labels
from sentiment_models.training.recipe import Recipe, defaults_for

DESCRIPTION = (
    "Fine-tune a classifier into OUT/best. Repeat the command to continue after an interruption. OUT/dev.jsonl is the "
    "development set, for export --dev. OUT/logs is for tensorboard --logdir. To split batches over processes, run "
    "torchrun --nproc-per-node N -m sentiment_models.cli train ..."
)

# Help text of each field of Recipe. A test checks that none is missing. The fields for files are declared below.
RECIPE_HELP = {
    "labels": "label names in the order of their indices, separated by commas, a name with a comma in double quotes (default: those that "
    "the base names without --new-head, else those of the data in alphabetical order, or negative,positive if the data have numbers)",
    "new_head": "keep the base's encoder and learn a fresh classification head, for labels other than the base's",
    "epochs": "passes over the training files (default: 10 of 500 texts or fewer, 5 of 1,000, 3 of 1,667 to 10,000, 1 of more)",
    "learning_rate": "peak learning rate; it rises linearly, then falls linearly to 0 (default: 2e-4 with --new-head, up to 1,000 texts "
    "and an encoder of up to 384 dimensions, such as that of english/2; else 5e-5)",
    "warmup_fraction": "share of the steps in which the learning rate rises",
    "weight_decay": "weight decay; none for biases and normalisation",
    "dropout": "dropout on hidden layers",
    "ema": "decay of a moving average of the weights, such as 0.999, that is evaluated and saved instead of them; 0: none",
    "head_only": "train only the classification head; the encoder, and tokens that --emoji adds, stay unchanged",
    "freeze_embeddings": "leave the vectors of pieces of words as they are, so that other languages than that of the texts keep theirs",
    "class_weights": "weigh texts by how rare their labels are, so that rare labels are found more often, and falsely, too",
    "batch_rows": "max texts per batch (default: 16 with up to 10,000 texts, 64 with more)",
    "batch_tokens": "max tokens per batch, padding included",
    "max_tokens": "max tokens of a training text; longer ones are cut; serving reads up to the model's limit",
    "teacher_weight": "teacher's share of the target, 0 to 1, for texts with both a label and probabilities",
    "detokenize": "chance, 0 to 1, of undoing the tokenization of a tokenized text",
    "recase": "chance, 0 to 1, of changing a text to lower, upper or sentence case",
    "typos": "chance, 0 to 1, of adding one typo per ten words to a text",
    "emoji": "add a token for each emoji that the tokenizer cannot read",
    "dev_fraction": "share of the texts of each label in the development set; at least 200 texts, or a fifth if that is fewer",
    "evaluations_per_epoch": "evaluations per epoch on the development set (default: 1 with up to 10,000 texts, 4 with more)",
    "patience": "stop after this many evaluations in a row without a better macro F1",
    "layers": "layers of an untrained model",
    "heads": "attention heads of an untrained model",
    "width": "dimensions of an untrained model, shared by its heads",
    "vocabulary": "max pieces of an untrained model's tokenizer",
    "seed": "seed of the split, order, head and dropout",
}

FILES_HELP = {
    "tails": "files of long texts whose last sentences are also separate training texts",
    "ends": "files whose texts of over 96 words are also shown by their first 24 and last 72 words",
    "erased": "files whose texts are also shown with words erased, the less certain the more is erased",
    "undecided": "texts without sentiment or in other languages, trained to equal label probabilities: a .tsv of kind<TAB>text",
}

APART_HELP = {
    "dev": "files that are the development set, instead of a part of the others",
    "test": "files of texts that must not be trained on, such as those of evaluate",
}
LABELS_MAX = 100
# Fewer texts of a label teach nothing of it.
RARE = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    begins = parser.add_mutually_exclusive_group(required=True)
    begins.add_argument("--base", metavar="DIR", help="pre-trained model: a folder, or hub:NAME for a model of the Hugging Face hub")
    begins.add_argument(
        "--from-scratch",
        dest="base",
        action="store_const",
        const="",
        help="start with an untrained BERT of --layers, --heads and --width, and a WordPiece tokenizer learned from the training texts",
    )
    parser.add_argument(
        "--data", required=True, action="append", metavar="PATH[:TIMES]", help=f"{DATA_HELP}; read TIMES per epoch; repeatable"
    )
    for name, help_text in FILES_HELP.items():
        parser.add_argument(f"--{name}", default=[], action="append", metavar="PATH[:TIMES]", help=f"{help_text}; repeatable")
    for name, help_text in APART_HELP.items():
        parser.add_argument(
            f"--{name}",
            default=[],
            action="append",
            metavar="PATH",
            help=f"{help_text}; training texts that are copies or parts of theirs are named and left out; repeatable",
        )
    add_run(parser, Recipe, RECIPE_HELP)
    add_reading(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.data.labelled import PAIR, Source, count_labels
    from sentiment_models.training.distributed import is_first_process
    from sentiment_models.training.train import train

    with_threads(arguments)
    sources = [Source.parse(spec).path for spec in arguments.data]
    counts = count_labels(sources, reading_of(arguments))
    labels = arguments.labels or (None if arguments.new_head else named_labels(arguments.base)) or _labels_of(counts, arguments.new_head)
    if is_first_process():
        said = (f"{name or 'none'} {count:,}" for name, count in sorted(counts.items()))
        sys.stderr.write(f"texts by label: {', '.join(said)}\n")
        if rare := [name for name, count in sorted(counts.items()) if name and count < RARE]:
            sys.stderr.write(f"labels of fewer than {RARE} texts, too few to learn from: {as_argument(rare)}; is one of them a slip?\n")
    files = {name: tuple(getattr(arguments, name)) for name in (*FILES_HELP, *APART_HELP)}
    width = _width(Path(arguments.base)) if arguments.new_head else 0
    found = {name: value for name, value in defaults_for(counts.total(), width).items() if getattr(arguments, name) is None}
    recipe = options_as(Recipe, arguments, sources=tuple(arguments.data), labels=labels, reading=reading_of(arguments), **files, **found)
    best = train(recipe, arguments.out, arguments.device, arguments.checkpoint_steps, resume=not arguments.restart)
    if is_first_process():
        dev = arguments.out / "dev.jsonl"
        with dev.open(encoding="utf-8") as stream:
            pairs = ["--pairs"] * any(PAIR in json.loads(line) for line in stream)
        names = ("pair", "journal_model", "delimiter", "encoding", "sheet")
        options = [(f"--{name.replace('_', '-')}", getattr(arguments, name)) for name in names]
        further = [
            *pairs,
            *["--no-quotes"] * arguments.no_quotes,
            *(part for option, value in options if value for part in (option, value)),
        ]
        print(f"{best}: the best checkpoint; next:")
        export = ["sentiment-models", "export", str(best), "--dev", str(dev), "--texts", *map(str, sources), *further]
        print(shlex.join(export), "--output ...")


def _width(base: Path) -> int:
    """The dimensions of a base's encoder; 0 if its config.json cannot be read, as of a hub's."""
    from sentiment_models.export.manifest import CONFIG_FILE, read_object

    try:
        width = read_object(base / CONFIG_FILE).get("hidden_size")
    except ModelsError:
        return 0
    return width if isinstance(width, int) else 0


def _labels_of(counts: Mapping[str, int], new_head: bool) -> tuple[str, ...]:
    """The labels of a classifier that nothing names: those that its data name, or the default if these are numbers."""
    names = sorted(name for name in counts if name)
    if names and new_head and all(map(str.isdecimal, names)):
        raise BadData(f"the data have numbers for labels ({', '.join(names[:LABELS_MAX])}); name them, from 0 on, with --labels NAME,NAME")
    if not names or all(map(str.isdecimal, names)):
        return Recipe("", ()).labels
    if len(names) > LABELS_MAX:
        raise BadData(f"the data have {len(names):,} different labels; at most {LABELS_MAX} are taken from data: name them with --labels")
    if len({name.casefold() for name in names}) < len(names):
        raise BadData(f"the labels {as_argument(names)} of the data differ in case alone; write them alike, or name them with --labels")
    return tuple(names)
