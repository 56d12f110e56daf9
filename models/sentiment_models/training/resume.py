"""Atomic replacement of checkpoints, and the saved state of a run. All of it survives kill -9."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from sentiment.files.line_output import difference
from sentiment_models.errors import BadCheckpoint, OtherRun
from sentiment_models.export.inherited import Inherited, hand_on
from sentiment_models.export.positions import positions_of
from sentiment_models.export.provenance import Json
from sentiment_models.training.bases import TRAINING_FILE


def replace_checkpoint(
    path: Path, model: PreTrainedModel, tokenizer: Any, inherited: Inherited | None = None, record: Mapping[str, Json] | None = None
) -> None:  # Any: transformers has no one type for its tokenizers
    """Replace a folder by a checkpoint, completely or not at all.

    Args:
        path: the folder.
        model: the model to save.
        tokenizer: a fast one of transformers.
        inherited: what a base hands on.
        record: the content of training.json.
    """
    part = path.with_name(path.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        model.save_pretrained(part)
        # It can read as many tokens as it has positions, whatever its base's tokenizer was used for.
        tokenizer.model_max_length = positions_of(model.config.to_dict())
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.save_pretrained(part)
        hand_on(inherited, part)
        if record is not None:
            (part / TRAINING_FILE).write_text(json.dumps(record, indent=1), encoding="utf-8")
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    shutil.rmtree(path, ignore_errors=True)
    part.rename(path)


def fingerprint_of(dependencies: Json) -> str:
    """Return a SHA-256 over everything that a run depends on."""
    return hashlib.sha256(json.dumps(dependencies, sort_keys=True).encode()).hexdigest()


def save_state(path: Path, state: dict[str, Any], dependencies: Mapping[str, Json]) -> None:
    """Replace the checkpoint of a run atomically.

    Args:
        path: the file.
        state: tensors and plain values that ``torch.load`` reads with ``weights_only``.
        dependencies: everything that the run depends on; ``load_state`` compares it.
    """
    part = path.with_name(path.name + ".part")
    try:
        torch.save({**state, "asked": json.dumps(dependencies)}, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def load_state(path: Path, dependencies: Mapping[str, Json], remedy: str = "choose another --output") -> dict[str, Any] | None:
    """Read the checkpoint of a run; None if the file does not exist.

    Raises:
        BadCheckpoint: the file is damaged.
        OtherRun: the run in the file depends on something else. The message names what differs, then ``remedy``.
    """
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen kinds for a damaged file
        raise BadCheckpoint(f"{path}: damaged ({error}); delete it to start again") from error
    # Through JSON, which turns tuples into lists, as in the file.
    differs = difference(json.loads(state.get("asked", "{}")), json.loads(json.dumps(dependencies)))
    if differs:
        raise OtherRun(f"{path}: {differs}; {remedy}, or delete it to start again")
    return state
