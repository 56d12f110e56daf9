"""The names of a bundle's files, and its manifest, written atomically with sorted keys, so that equal bundles have equal bytes."""

import hashlib
import json
from pathlib import Path

from sentiment_models.errors import ModelsError
from sentiment_models.export.provenance import Json

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
MANIFEST_FILE = "manifest.json"
CARD_FILE = "MODEL_CARD.md"


EXPLAIN_FILE = "explain.onnx"


def graph_file(precision: str) -> str:
    """Return the file name of the classify graph of a precision."""
    return f"{precision}.onnx"


def file_entries(folder: Path) -> dict[str, Json]:
    """Return size and SHA-256 of every file of a bundle except the manifest and the card, which may change after the export."""
    return {
        path.name: {"sha256": sha256(path), "bytes": path.stat().st_size}
        for path in sorted(folder.iterdir())
        if path.name not in (MANIFEST_FILE, CARD_FILE)
    }


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_object(path: Path) -> dict[str, Json]:
    """Read a file that holds one JSON object.

    Raises:
        ModelsError: the file cannot be read or is not a JSON object.
    """
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelsError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelsError(f"{path}: expected a JSON object, got a {type(value).__name__}")
    return value


def write_object(path: Path, value: dict[str, Json]) -> None:
    """Replace a JSON file atomically."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)
