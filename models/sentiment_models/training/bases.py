"""Identify the model that a run starts from or learns from: a checkpoint's folder, one that was trained here, or a bundle."""

import hashlib
import json
from pathlib import Path
from typing import Any

from sentiment.model.bundle import Bundle, load_bundle
from sentiment_models.export.manifest import MANIFEST_FILE, WEIGHTS_FILE, read_object, sha256
from sentiment_models.export.provenance import Json

TRAINING_FILE = "training.json"
# The files of a checkpoint that transformers reads: configuration, weights and tokenizer.
READ = ("*.json", "*.safetensors", "*.bin", "*.txt", "*.model")


def name_of(base: str) -> str:
    """Return a name for records that holds no path of this machine.

    Of a bundle it is name, version and digest, of another folder its last part. A name such as organisation/model stays as it is.

    Raises:
        sentiment.errors.BadBundle: a bundle is damaged.
    """
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
    provenance: Any = read_object(manifest).get("provenance") if manifest.is_file() else None  # plain JSON
    return provenance.get("training") if isinstance(provenance, dict) else None


def temperature_of(teacher: Path) -> float:
    """Return the temperature that a bundle's logits are divided by; 1 for a checkpoint.

    Raises:
        sentiment.errors.BadBundle: the bundle is damaged.
    """
    bundle = _bundle(teacher)
    return bundle.manifest.calibration.temperature if bundle else 1.0


def _bundle(folder: Path) -> Bundle | None:
    return load_bundle(folder) if (folder / MANIFEST_FILE).is_file() else None
