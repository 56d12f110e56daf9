"""Copies of a bundle with one fault but matching hashes, as a mistaken or malicious author would make them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from sentiment_models.export.manifest import MANIFEST_FILE, file_entries, write_object
from sentiment_models.reports.card import write_card


def copy(bundle: Path, folder: Path) -> Path:
    """Copy a bundle into ``folder``, add a model card, and return the copy."""
    to = folder / bundle.parent.name / bundle.name
    shutil.copytree(bundle, to)
    write_card(to)
    return to


def reseal(bundle: Path, change: Callable[[dict[str, Any]], object] = lambda _: None) -> Path:
    """Write the files' hashes, after ``change`` of the manifest, and then the card."""
    manifest = json.loads((bundle / MANIFEST_FILE).read_bytes())
    manifest["files"] = file_entries(bundle)
    change(manifest)
    write_object(bundle / MANIFEST_FILE, manifest)
    write_card(bundle)
    return bundle


def change_graph(bundle: Path, file: str, change: Callable[[onnx.ModelProto], object]) -> Path:
    """Change an ONNX file and write its hash."""
    model = onnx.load(bundle / file, load_external_data=False)
    change(model)
    (bundle / file).write_bytes(model.SerializeToString())
    return reseal(bundle)


def change_json(bundle: Path, file: str, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change a JSON file and write its hash."""
    value = json.loads((bundle / file).read_bytes())
    change(value)
    (bundle / file).write_text(json.dumps(value), encoding="utf-8")
    return reseal(bundle)
