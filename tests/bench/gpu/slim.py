"""``--pack FILE.tar``: what the script needs of a checkout, in a tree that is small enough to be carried to a machine.

The service, this benchmark, and the default bundle without the graphs that a GPU server does not read.
"""

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
BYTES_MAX = 60_000_000
FOLDER = "sentiment-gpu-bench"
BUNDLE = "models/bundles/english/2"
# Kept of the bundle: the fp32 graph, of which a GPU's graphs are made.
BUNDLE_FILES = ("config.json", "fp32.onnx", "model.safetensors", "tokenizer.json")
TREES = ("service", "models/sentiment_models", "tests/bench/gpu")
FILES = (
    *("pyproject.toml", "LICENSE", "tests/__init__.py", "tests/tiny.py", "tests/packed_twin.py"),
    *("tests/bench/__init__.py", "tests/bench/processes.py", "tests/bench/texts.py"),
)


def save_tar(file: Path) -> int:
    """Write the tree into a tar file, in one folder; returns the bytes of its files."""
    size = 0
    with tarfile.open(file, "w") as archive:
        for name in _names():
            archive.add(ROOT / name, f"{FOLDER}/{name}", recursive=False)
            size += (ROOT / name).stat().st_size
        manifest = json.dumps(_manifest(json.loads((ROOT / BUNDLE / "manifest.json").read_bytes()))).encode()
        entry = tarfile.TarInfo(f"{FOLDER}/{BUNDLE}/manifest.json")
        entry.size = len(manifest)
        archive.addfile(entry, io.BytesIO(manifest))
    return size + len(manifest)


def _names() -> Iterator[str]:
    yield from FILES
    yield from (f"{BUNDLE}/{name}" for name in BUNDLE_FILES)
    for tree in TREES:
        for path in sorted((ROOT / tree).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(path.relative_to(ROOT))


def _manifest(manifest: dict[str, Any]) -> dict[str, Any]:  # Any: JSON
    """The manifest without the files that are left out."""
    graphs = [graph for graph in manifest["graphs"]["classify"] if graph["file"] in BUNDLE_FILES]
    files = {name: spec for name, spec in manifest["files"].items() if name in BUNDLE_FILES}
    return {**manifest, "graphs": {"classify": graphs}, "explanations": None, "files": files}
