"""Adapters that PEFT saved, such as LoRA: merged into their base, which makes a checkpoint as any other. Imports torch only to merge."""

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sentiment_models.errors import BadCheckpoint, ModelsError
from sentiment_models.export.kinds import Parts, tokenizer_files
from sentiment_models.export.manifest import CONFIG_FILE, read_object
from sentiment_models.export.weights import stored_tensors
from sentiment_models.training.bases import HUB, folder_of, name_of

ADAPTER_FILE = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
# What PEFT puts before a weight's name in the model.
PREFIX = "base_model.model."
TASK = "SEQ_CLS"
# The last layer of a classifier's head, by family. The labels are its rows.
LAST_LAYERS = ("classifier.weight", "out_proj.weight", "logits_proj.weight", "score.weight")


@contextmanager
def parts_of(folder: Path, base: str, tokenizer: str, say: Callable[[str], object]) -> Iterator[Parts]:
    """Yield where the parts of a checkpoint are. The model of an adapter and its base is in a temporary folder.

    Args:
        folder: of a checkpoint, or of an adapter with ADAPTER_FILE.
        base: of an adapter, a folder or a model of the hub; "": the one that the adapter names. Of a checkpoint for its record alone.
        tokenizer: the folder of the tokenizer, or a model of the hub; "": ``folder``, or the base's, if an adapter has none.
        say: called with a line of progress.

    Raises:
        BadCheckpoint: the adapter is for another task or has no head, or its base is not there. Errors of the merged model that are raised
            within name ``folder``.
        sentiment.errors.BadBundle: the base is a damaged bundle.
        ModelsError: PEFT is not installed.
    """
    own = Path(folder_of(tokenizer)) if tokenizer else folder
    if not (folder / ADAPTER_FILE).is_file():
        yield Parts(folder, own, folder, name_of(base))
        return
    named = _checked(folder)
    if importlib.util.find_spec("peft") is None:
        raise ModelsError(f"{folder}: an adapter of PEFT (it has {ADAPTER_FILE}), which peft merges into its base: pip install peft")
    source = Path(folder_of(base) if base else _named(folder, named))
    with tempfile.TemporaryDirectory() as scratch:
        try:
            say(f"merging the adapter into {source}")
            _merge(folder, source, Path(scratch))
            yield Parts(Path(scratch), own if tokenizer or tokenizer_files(folder) else source, folder, name_of(base or named))
        except BadCheckpoint as error:
            raise BadCheckpoint(str(error).replace(scratch, str(folder))) from error


def _checked(folder: Path) -> str:
    """The base that an adapter names, "" for none."""
    config = read_object(folder / ADAPTER_FILE)
    if (task := config.get("task_type")) not in (TASK, None):
        raise BadCheckpoint(f"{folder / ADAPTER_FILE}: an adapter of PEFT for {task}, not for a classifier of texts ({TASK})")
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise BadCheckpoint(f"{folder / ADAPTER_WEIGHTS}: no such file; save the adapter again with a current version of peft")
    return str(config.get("base_model_name_or_path") or "")


def _named(folder: Path, named: str) -> str:
    if not named or (not Path(named).is_dir() and (named.count("/") > 1 or named.startswith((".", "/", "~")))):
        raise BadCheckpoint(f"{folder / ADAPTER_FILE}: its base model {named} is not here; give its folder, or {HUB}NAME, with --base")
    try:
        return named if Path(named).is_dir() else folder_of(HUB + named)
    except BadCheckpoint as error:
        raise BadCheckpoint(f"{folder / ADAPTER_FILE}: its base model is not here; give its folder with --base ({error})") from error


def _merge(folder: Path, base: Path, out: Path) -> None:
    # An optional package, and what takes seconds to import.
    import torch  # noqa: PLC0415
    from peft import PeftModel  # noqa: PLC0415
    from transformers import AutoModelForSequenceClassification, logging  # noqa: PLC0415

    from sentiment_models.export.checkpoint import config_of, family_of  # noqa: PLC0415

    rows = {name: tensor.dims[0] for name, tensor in stored_tensors(folder / ADAPTER_WEIGHTS).items() if name.endswith(LAST_LAYERS)}
    verbosity = logging.get_verbosity()
    # It would say that the head of the base is to be trained, which the adapter replaces.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    try:
        config = config_of(base, local_files_only=True)
        # Before the weights are read: those of a decoder may take all memory.
        family_of(config.model_type, base / CONFIG_FILE)
        if rows and config.num_labels not in rows.values():
            config.num_labels = next(iter(rows.values()))
        # Any: transformers has no one type for its models
        model: Any
        model, report = AutoModelForSequenceClassification.from_pretrained(
            base, config=config, dtype=torch.float32, local_files_only=True, ignore_mismatched_sizes=True, output_loading_info=True
        )
        fresh = {*report["missing_keys"], *report["mismatched_keys"]}
        lacking = sorted(fresh - {name.removeprefix(PREFIX) for name in stored_tensors(folder / ADAPTER_WEIGHTS)})
        if lacking:
            raise BadCheckpoint(
                f"{folder}: neither the adapter nor its base {base} has {', '.join(lacking)}; save the adapter with its head"
            )
        PeftModel.from_pretrained(model, str(folder)).merge_and_unload().save_pretrained(out)
    except BadCheckpoint:
        raise
    except Exception as error:  # transformers, peft and safetensors raise a dozen kinds
        raise BadCheckpoint(f"{folder}: cannot be merged into {base}: {' '.join(str(error).split())}") from error
    finally:
        logging.set_verbosity(verbosity)
