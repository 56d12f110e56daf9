"""The command line ``sentiment-models``: a table of commands, each a module of ``sentiment_models.commands`` or of the study's."""

import argparse
import importlib
import importlib.metadata
import keyword
import sys
from collections.abc import Callable, Sequence
from typing import Any

from sentiment.cli.arguments import Parser
from sentiment.errors import BadBundle, BadSettings
from sentiment.extras import to_install
from sentiment.files.errors import BadFile
from sentiment.files.standard_streams import ReaderGone, standard_streams
from sentiment.files.visible import visible
from sentiment_models.errors import ModelsError, OtherRun, disk_full

DONE, FAILED, WRONG_USAGE, BAD_BUNDLE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 130, 141
"""Exit codes. argparse also exits with 2 on wrong usage. A shell has 130 and 141 of processes that SIGINT and SIGPIPE ended."""

COMMANDS = {
    "pretrain": "pre-train an encoder on unlabelled documents",
    "import-tf": "convert a checkpoint of the original TensorFlow BERT to a base for train",
    "train": "fine-tune a classifier",
    "scratch": "compare models trained from scratch with fine-tuned ones",
    "label": "label texts with a teacher model's probabilities",
    "prepare": "make the training files of the default bundle from public data sets",
    "cases": "generate labelled minimal pairs from a grammar, for training and for judging",
    "edit": "turn the label of texts by small edits, for training and for judging",
    "resize": "make a classifier deeper, shallower or wider, to train it on",
    "average": "average the weights of fine-tuned checkpoints",
    "import": "make a bundle from a checkpoint, of train or of the Hugging Face hub",
    "import-onnx": "make a bundle of your own ONNX file",
    "evaluate": "measure a bundle on labelled texts",
    "attention-tests": "train small encoders to test what attention contributes",
    "long-texts": "choose how a bundle reads texts that are too long for it",
    "effort": "set and prove of which texts a part suffices",
    "reference": "count how a bundle answers texts that it knows, for the server to compare",
    "copy": "copy a bundle under another version",
    "compare": "run two bundles over the same texts",
    "card": "write a bundle's MODEL_CARD.md",
    "verify": "check everything in a bundle",
    "diff": "show what differs between two bundles",
    "sign": "sign a bundle in cosign's format",
    "pack": "make a wheel of a bundle, for pip",
}
"""Name and help text of each command. Its module has the same name, with _ for - and behind a word of Python."""
OTHER_NAMES = {"export": "import"}
"""Further names of commands."""
OF_THE_STUDY = {"pretrain", "import-tf", "scratch", "resize", "attention-tests"}
"""The commands whose modules stand in ``sentiment_models.study.commands``."""
EXTRAS = {
    **dict.fromkeys((*OF_THE_STUDY, "train", "label", "edit", "average", "import"), "models"),
    **dict.fromkeys(("import-onnx", "verify", "diff"), "cpu,bundles"),
    **dict.fromkeys(("sign", "pack"), "bundles"),
}
"""The extras that a command needs, whichever of their packages is missed first."""
CONTINUED = {"pretrain", "train", "scratch", "attention-tests"}
"""The commands that continue an interrupted run when they are repeated."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong usage, 3 bad bundle, 130 interrupted."""
    argv = list(sys.argv[1:] if argv is None else argv)
    command = next(iter(argv), "")
    try:
        with standard_streams():
            return _run(command, argv)
    except SystemExit as exiting:  # argparse has printed the reason
        return int(exiting.code or 0)
    except ReaderGone:
        return BROKEN_PIPE
    except (ModelsError, BadBundle, BadSettings, BadFile) as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        return BAD_BUNDLE if isinstance(error, BadBundle) else WRONG_USAGE if isinstance(error, (OtherRun, BadSettings)) else FAILED
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(OTHER_NAMES.get(command, command), "")
        if any(importlib.metadata.distributions(name="onnxruntime-gpu")):
            # The two runtimes must not share an environment.
            extra = extra.removeprefix("cpu,")
        if (message := to_install(error, extra)) is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        return WRONG_USAGE
    except KeyboardInterrupt:
        print("interrupted" + "; repeat the command to continue" * (command in CONTINUED), file=sys.stderr)
        return INTERRUPTED


def _run(command: str, argv: Sequence[str]) -> int:
    arguments = _parser(command).parse_args(argv)
    run: Callable[[argparse.Namespace], int | None] = arguments.run
    try:
        return run(arguments) or DONE
    except Exception as error:
        if not (message := disk_full(error, "an output")):
            raise
        raise ModelsError(message) from error


def module_of(command: str) -> Any:  # Any: a module with DESCRIPTION, add_arguments and run
    """The module of a command, imported."""
    package = "sentiment_models.study" if command in OF_THE_STUDY else "sentiment_models"
    return importlib.import_module(f"{package}.commands.{command.replace('-', '_')}{'_' * keyword.iskeyword(command)}")


def _parser(used: str) -> argparse.ArgumentParser:
    parser = Parser(prog="sentiment-models", description="Make the bundles that the sentiment service loads.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, help_text in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, aliases=[other for other, meant in OTHER_NAMES.items() if meant == name])
        # Import only the command in use. Its work, such as torch, is imported when it runs.
        if name == OTHER_NAMES.get(used, used):
            module = module_of(name)
            command.description = module.DESCRIPTION
            module.add_arguments(command)
            command.set_defaults(run=module.run, parser=command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
