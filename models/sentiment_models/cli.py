"""The command line ``sentiment-models``. A command's own modules, and torch with them, are imported when it is used."""
# ruff: noqa: PLC0415 - importing torch takes seconds, and most commands do without it

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from sentiment.errors import BadBundle
from sentiment_models.errors import ModelsError

DONE, FAILED, BAD_BUNDLE = 0, 1, 3
"""Exit codes; argparse itself answers wrong usage with 2."""

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
DATA_HELP = "labelled texts: .tsv (label<TAB>text), .csv (columns label, text) or .jsonl, also .gz"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong usage, 3 bad bundle."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = _parser(with_train="train" in argv[:1]).parse_args(argv)
    except SystemExit as leaving:  # argparse has said why
        return int(leaving.code or 0)
    run: Callable[[argparse.Namespace], None] = arguments.run
    try:
        run(arguments)
    except (ModelsError, BadBundle) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_BUNDLE if isinstance(error, BadBundle) else FAILED
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return FAILED
    return DONE


def _parser(with_train: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sentiment-models", description="Make the bundles that the sentiment service loads.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    train = commands.add_parser(
        "train",
        help="fine-tune a classifier",
        description="Fine-tune a classifier into OUT/best. Repeat the command to go on after an interruption. OUT/dev.jsonl is the "
        "development set, for export --dev.",
    )
    if with_train:
        _add_train(train)
    mean = commands.add_parser(
        "average",
        help="average fine-tunes of one model",
        description="Average the weights of checkpoints of one model into OUT. The last one's training.json is told first.",
    )
    mean.add_argument("checkpoints", type=Path, nargs="+", metavar="CHECKPOINT", help="folders with fine-tuned classifiers, at least two")
    mean.add_argument("--out", required=True, type=Path, metavar="DIR", help="the checkpoint to write")
    mean.set_defaults(run=_average)
    _add_export(commands.add_parser("export", help="make a bundle out of a checkpoint", description=_EXPORT))
    _add_evaluate(commands.add_parser("evaluate", help="measure a bundle on labelled texts", description=_EVALUATE))
    _add_card(commands.add_parser("card", help="write a bundle's MODEL_CARD.md", description=_CARD))
    return parser


_EXPORT = (
    "Make a bundle out of a checkpoint: weights in fp16, an int8 and an fp32 graph, a manifest. Both graphs are compared with torch "
    "and a row alone with the row in batches; a bundle that fails is not made. The same checkpoint gives the same bytes."
)
_EVALUATE = (
    "Measure accuracy, macro F1 and expected calibration error of a bundle's served graph, and what a text costs, "
    "through the service's own code."
)
_CARD = "Write MODEL_CARD.md into a bundle, from its manifest and from what evaluate --json measured."


def _add_train(parser: argparse.ArgumentParser) -> None:
    from sentiment_models.train import Recipe  # takes seconds: it imports torch

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
    parser.add_argument("--threads", type=_positive, metavar="N", help="CPU threads of torch (default: its own choice)")
    parser.add_argument(
        "--checkpoint-steps", type=_positive, default=200, metavar="N", help="steps between checkpoints (default: %(default)s)"
    )
    parser.add_argument("--restart", action="store_true", help="begin anew instead of continuing a run in OUT")
    for field in fields(Recipe):
        if field.name not in RECIPE_HELP:
            continue
        names = isinstance(field.default, tuple)
        default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
        kind = _label_names if names else type(field.default)
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=kind, default=field.default, metavar="X", help=f"{RECIPE_HELP[field.name]} (default: {default})")
    parser.set_defaults(run=_train)


def _train(arguments: argparse.Namespace) -> None:
    import torch

    from sentiment_models.train import Recipe, train

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    given = {name: getattr(arguments, name) for name in RECIPE_HELP}
    recipe = Recipe(base=arguments.base, sources=tuple(arguments.data), tails=tuple(arguments.tails), **given)
    best = train(recipe, arguments.out, arguments.device, arguments.checkpoint_steps, resume=not arguments.restart)
    print(f"{best}: the best checkpoint; next: sentiment-models export {best} --dev {arguments.out / 'dev.jsonl'} --out ...")


def _average(arguments: argparse.Namespace) -> None:
    from sentiment_models.average import average

    average(arguments.checkpoints, arguments.out)
    print(f"{arguments.out}: the average of {len(arguments.checkpoints)} checkpoints")


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="folder with a fine-tuned classifier, such as OUT/best of train"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the bundle to make, such as models/bundles/english/1")
    parser.add_argument("--name", help="the bundle's name (default: the name of the folder that DIR is in)")
    parser.add_argument("--version", type=_positive, metavar="N", help="the bundle's version (default: the name of DIR)")
    parser.add_argument(
        "--dev", type=Path, metavar="FILE", help=f"development set for calibration, such as dev.jsonl of train; {DATA_HELP}"
    )
    parser.add_argument("--base", metavar="NAME", help="name of the pre-trained model for the records (default: as training.json has it)")
    parser.add_argument(
        "--embeddings", choices=("int8", "fp16", "fp32"), default="int8", help="embedding tables of int8.onnx (default: %(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="replace DIR if it exists")
    parser.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> None:
    from sentiment_models.checkpoint import label_names
    from sentiment_models.data import read_examples
    from sentiment_models.export import export

    out = arguments.out.resolve()
    if arguments.version is None and not out.name.isdigit():
        raise ModelsError(f"{arguments.out}: its last part is no version; give --version")
    dev = list(read_examples(arguments.dev, label_names(arguments.checkpoint))) if arguments.dev else None
    exported = export(
        arguments.checkpoint,
        out,
        name=arguments.name or out.parent.name,
        version=arguments.version or int(out.name),
        dev=dev,
        base=arguments.base,
        embeddings=arguments.embeddings,
        force=arguments.force,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    for precision, parity in exported.parity.items():
        moved = exported.movement[precision].probability_max
        print(
            f"{precision}: logits at most {parity.logit_error_max:.2g} off torch's, probabilities {parity.probability_error_mean:.2g} "
            f"in the mean; batch mates move a probability by at most {moved:.2g}"
        )
    found, golden = exported.calibration, len(exported.golden.entries)
    print(f"temperature {found.temperature:.3f}, abstain below {found.abstain_below:.3f}; {golden} golden texts")
    for path in sorted(out.iterdir()):
        print(f"{path.name:20} {path.stat().st_size / 1e6:8.2f} MB")


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")
    parser.add_argument("files", nargs="+", metavar="[NAME=]FILE", help=f"{DATA_HELP}; called by its folder and name unless NAME is given")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there, for card")
    parser.add_argument("--precision", choices=("int8", "fp32"), help="measure this graph instead of the served one")
    parser.add_argument(
        "--threads", type=_positive, default=0, metavar="N", help="threads that share the session (default: the cores granted)"
    )
    parser.add_argument("--record", action="store_true", help="also write the figures into the bundle's manifest, which changes its digest")
    parser.set_defaults(run=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> None:
    from sentiment_models.evaluate import Dataset, evaluate, record

    evaluation = evaluate(arguments.bundle, [Dataset.parse(spec) for spec in arguments.files], arguments.precision, arguments.threads)
    print(evaluation.table())
    if arguments.json:
        arguments.json.write_text(evaluation.model_dump_json(indent=1) + "\n", encoding="utf-8")
    if arguments.record:
        record(arguments.bundle, evaluation)


def _add_card(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")
    parser.add_argument("--evaluation", nargs="+", type=Path, default=[], metavar="JSON", help="what evaluate --json wrote")
    parser.set_defaults(run=_card)


def _card(arguments: argparse.Namespace) -> None:
    from sentiment_models.card import write_card
    from sentiment_models.evaluation import read_evaluation

    print(write_card(arguments.bundle, [read_evaluation(path) for path in arguments.evaluation]))


def _positive(value: str) -> int:
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; wanted at least 1")
    return number


def _label_names(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if len(names) < 2 or not all(names):
        raise argparse.ArgumentTypeError(f"{value!r}; wanted at least two names parted by commas")
    return names


if __name__ == "__main__":
    sys.exit(main())
