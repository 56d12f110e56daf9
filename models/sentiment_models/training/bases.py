"""Find and identify the model that a run starts from or learns from: a checkpoint's folder, a bundle, or a model of the hub."""

import hashlib
import json
from functools import cache
from pathlib import Path

from sentiment.model.bundle import Bundle, load_bundle
from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.manifest import MANIFEST_FILE, WEIGHTS_FILE, read_object, sha256
from sentiment_models.export.provenance import Json, facts

TRAINING_FILE = "training.json"
# The files of a checkpoint that transformers reads: configuration, weights and tokenizer.
READ = ("*.json", "*.safetensors", "*.bin", "*.txt", "*.model")
HUB = "hub:"
"""Stands before the name of a model of the Hugging Face hub. Everything else is a folder: a mistyped one must not ask a network."""


def folder_of(base: str) -> str:
    """Return the folder of a base, "" for "". A model of the hub is downloaded, unless it is in the hub's cache.

    Raises:
        BadCheckpoint: there is no such folder, or the hub has no such model or cannot be reached.
    """
    if base.startswith(HUB):
        return _downloaded(base.removeprefix(HUB))
    if base and not Path(base).is_dir():
        raise BadCheckpoint(f"{base}: no such folder; a model of the Hugging Face hub is written {HUB}NAME, such as {HUB}org/model")
    return base


@cache
def _downloaded(name: str) -> str:
    from huggingface_hub import snapshot_download  # noqa: PLC0415  # comes with tokenizers; only bases of the hub need it

    try:
        # Not what its folders hold: weights for other frameworks.
        folder = Path(snapshot_download(name, allow_patterns=[kind for kind in READ if kind != "*.bin"], ignore_patterns="*/*"))
        if not any(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(name, allow_patterns="*.bin", ignore_patterns="*/*"))
    except Exception as error:  # of requests or httpx, by the version of huggingface_hub, and of its own
        raise BadCheckpoint(f"{HUB}{name}: not in the hub's cache and cannot be downloaded: {str(error).splitlines()[0]}") from error
    return str(folder)


def name_of(base: str) -> str:
    """Return a name for records that holds no path of this machine.

    Of a bundle it is name, version and digest, of another folder its last part, of a model of the hub its name there.

    Raises:
        sentiment.errors.BadBundle: a bundle is damaged.
    """
    if base.startswith(HUB):
        return base.removeprefix(HUB)
    folder = Path(base).resolve()
    if not base or not folder.is_dir():
        return base
    bundle = _bundle(folder)
    return f"{bundle.id}@{bundle.digest[:12]}" if bundle else folder.name


def content_of(base: str) -> str:
    """Return an identifier of a model's content: its name and a digest of the files that are read.

    It changes if the path later holds another model.

    Raises:
        sentiment.errors.BadBundle: a bundle is damaged.
    """
    name, folder = name_of(base), Path(base)
    if not base or not folder.is_dir() or (folder / MANIFEST_FILE).is_file():
        return name
    read = sorted(path for pattern in READ for path in folder.glob(pattern) if path.name != TRAINING_FILE)
    return f"{name}@{hashlib.sha256(json.dumps([(path.name, sha256(path)) for path in read]).encode()).hexdigest()[:12]}"


def teacher_name(folder: Path) -> str:
    """Return ``name_of`` plus, for a checkpoint, the SHA-256 of its weights: many folders of checkpoints are called best.

    Raises:
        sentiment.errors.BadBundle: a bundle is damaged.
    """
    name, weights = name_of(str(folder)), folder / WEIGHTS_FILE
    known = (folder / MANIFEST_FILE).is_file() or not weights.is_file()
    return name if known else f"{name}@{sha256(weights)[:12]}"


def training_of(base: str) -> Json:
    """Return the training record of the base, or None if it was not trained here.

    Raises:
        ModelsError: the record cannot be read.
    """
    if not base:
        return None
    record, manifest = Path(base) / TRAINING_FILE, Path(base) / MANIFEST_FILE
    if record.is_file():
        return read_object(record)
    return facts(read_object(manifest).get("provenance")).get("training") if manifest.is_file() else None


def temperature_of(teacher: Path) -> float:
    """Return the temperature that a bundle's logits are divided by; 1 for a checkpoint.

    Raises:
        sentiment.errors.BadBundle: the bundle is damaged.
    """
    bundle = _bundle(teacher)
    return bundle.manifest.calibration.temperature if bundle else 1.0


def _bundle(folder: Path) -> Bundle | None:
    return load_bundle(folder) if (folder / MANIFEST_FILE).is_file() else None
