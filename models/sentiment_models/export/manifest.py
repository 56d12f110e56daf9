"""The names of a bundle's files, and its manifest, written atomically with sorted keys, so that equal bundles have equal bytes."""

import hashlib
import json
from pathlib import Path

from sentiment.files.errors import reason
from sentiment.model.bundle import parse_manifest
from sentiment_models.errors import ModelsError
from sentiment_models.export.provenance import Json

WEIGHTS_FILE = "model.safetensors"
# The large tensors of an own ONNX file that has them outside.
WEIGHTS_BESIDE = "weights.data"
CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
MANIFEST_FILE = "manifest.json"
CARD_FILE = "MODEL_CARD.md"


EXPLAIN_FILE = "explain.onnx"


def graph_file(precision: str) -> str:
    """Return the file name of the classify graph of a precision."""
    return f"{precision}.onnx"


def file_entries(folder: Path) -> dict[str, Json]:
    """Return size and SHA-256 of every file of a bundle except the manifest and the card, which ``card`` adds."""
    return {path.name: file_entry(path) for path in sorted(folder.iterdir()) if path.name not in (MANIFEST_FILE, CARD_FILE)}


def file_entry(path: Path) -> Json:
    """Return size and SHA-256 of a file, as the manifest has them."""
    return {"sha256": sha256(path), "bytes": path.stat().st_size}


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
    except (OSError, ValueError, RecursionError) as error:
        raise ModelsError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelsError(f"{path}: expected a JSON object, got a {type(value).__name__}")
    return value


def write_object(path: Path, value: dict[str, Json]) -> None:
    """Replace a JSON file atomically."""
    replace_file(path, _written(value))


def write_manifest(bundle: Path, manifest: dict[str, Json]) -> None:
    """Replace a bundle's manifest atomically.

    Raises:
        sentiment.errors.BadBundle: the service would not take it. The file is left as it is.
    """
    path, content = bundle / MANIFEST_FILE, _written(manifest)
    parse_manifest(content, path)
    replace_file(path, content)


def digest_without_card(manifest: dict[str, Json]) -> str:
    """Return the SHA-256 of a manifest as it was before its card was written, which names it."""
    files = manifest.get("files")
    others = {name: entry for name, entry in files.items() if name != CARD_FILE} if isinstance(files, dict) else files
    return hashlib.sha256(_written({**manifest, "files": others})).hexdigest()


def _written(value: dict[str, Json]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file of a bundle atomically. A link is replaced, and not what it leads to, which other bundles may share.

    Raises:
        ModelsError: the file cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ModelsError(f"{path}: cannot be written: {reason(error)}") from error
