"""Bundles are data: nothing of them is run, and nothing is fetched for them."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

from sentiment.model.classifier import load_classifier
from tests.tiny import make_bundle

PACKAGE = Path(__file__).parents[3] / "service/sentiment"
# What makes objects or code of bytes, and what fetches something of the network.
UNPICKLES = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle", "runpy", "imp", "torch", "transformers"}
FETCHES = {"urllib.request", "http.client", "requests", "httpx", "urllib3", "huggingface_hub", "ftplib"}
RUNS = {"eval", "exec", "__import__"}
# Of ONNX Runtime and of numpy.
LOADS_CODE, ALLOWS_PICKLES = "register_custom_ops_library", "allow_pickle"
CODE = """
import pathlib
pathlib.Path({mark!r}).touch()
"""
# In a process of its own: an audit hook stays for ever.
WATCHED = """
import pathlib, sys
from sentiment.model.classifier import load_classifier

def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "urllib.Request", "pickle.find_class"):
        raise SystemExit(f"{event} {arguments}")

sys.addaudithook(watch)
load_classifier(pathlib.Path(sys.argv[1]))
print("loaded")
"""


def parsed(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


@functools.cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Every node of the service's code, with its place."""
    files = [(path.relative_to(PACKAGE), path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))]
    return [(f"{path}:{getattr(node, 'lineno', 0)}", node) for path, text in files for node in parsed(text)]


def imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {name.name for name in node.names}
    if isinstance(node, ast.ImportFrom) and node.module:
        return {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return set()


def fetches(node: ast.AST) -> set[str]:
    """What of a node's imports fetches something, by its name or that of a package it is in."""
    return {name for name in imported(node) if any(f"{name}.".startswith(f"{module}.") for module in FETCHES)}


def uses(node: ast.AST) -> set[str]:
    """What of a node runs or unpickles something."""
    found = {name for name in imported(node) if name.partition(".")[0] in UNPICKLES}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        found |= RUNS & {node.func.id}
    if isinstance(node, ast.Attribute):
        found |= {LOADS_CODE} & {node.attr}
    if isinstance(node, ast.keyword):
        found |= {ALLOWS_PICKLES} & {node.arg or ""}
    return found


def test_nothing_that_serves_unpickles_or_runs_what_files_say() -> None:
    assert [(place, found) for place, node in nodes() if (found := uses(node))] == []


@pytest.mark.parametrize(
    "code",
    ["import pickle", "from torch import load", "eval(x)", "options.register_custom_ops_library(x)", "np.load(x, allow_pickle=True)"],
)
def test_code_that_could_run_a_files_content_is_found(code: str) -> None:
    assert any(uses(node) for node in parsed(code))


def test_serving_never_downloads(tmp_path: Path) -> None:
    make_bundle(tmp_path)

    run = subprocess.run([sys.executable, "-c", WATCHED, str(tmp_path / "tiny/1")], capture_output=True, text=True, timeout=60, check=False)

    assert (run.returncode, run.stdout) == (0, "loaded\n"), run.stderr
    assert [(place, found) for place, node in nodes() if (found := fetches(node))] == []


@pytest.mark.parametrize(
    "code", ["import requests", "import httpx._client", "from urllib import request", "from requests.sessions import Session"]
)
def test_code_that_downloads_is_found(code: str) -> None:
    assert any(fetches(node) for node in parsed(code))


def test_a_bundle_with_code_runs_none_of_it(tmp_path: Path) -> None:
    make_bundle(tmp_path)
    bundle, mark = tmp_path / "tiny/1", tmp_path / "was-run"
    for name in ("__init__.py", "modeling_tiny.py", "tokenization_tiny.py", "conftest.py", "sitecustomize.py"):
        (bundle / name).write_text(CODE.format(mark=str(mark)))
    # A pickle that touches the file.
    (bundle / "pytorch_model.bin").write_bytes(b"cposix\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR.")

    load_classifier(bundle)

    assert not mark.exists()
