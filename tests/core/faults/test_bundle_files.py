"""Bundles whose files are damaged, replaced or deleted"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import onnx
import pytest

from sentiment.client import CallFailed, Client, ExplainOptions
from tests.conftest import PLAIN
from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import Callers
from tests.core.servers import PATIENCE_S, Server
from tests.english import ENGLISH, NAME
from tests.tiny import make_bundle, read_manifest, write_manifest

Damage = Callable[[Path, Path], object]
SECRET = "a-token-that-nobody-may-see"
DEFAULT = [("a gripping, beautifully shot film", 0.0), ("two hours of my life I will never get back", 0.0)]


def overwrite(file: Path, _other: Path) -> None:
    """Overwrite in place."""
    with file.open("r+b") as stream:
        stream.write(b"\x11" * file.stat().st_size)


def flip(file: Path, _other: Path) -> None:
    """Flip one bit in the middle, in place."""
    middle = file.stat().st_size // 2
    with file.open("r+b") as stream:
        stream.seek(middle)
        byte = stream.read(1)[0]
        stream.seek(middle)
        stream.write(bytes([byte ^ 1]))


def swap(file: Path, other: Path) -> None:
    """Rename another bundle's file over it: the one of this name, or else its tokenizer."""
    found = other / file.name
    shutil.copy(found if found.exists() else other / "tokenizer.json", file.with_name("part"))
    os.replace(file.with_name("part"), file)


DAMAGES: dict[str, Damage] = {
    "a bit flipped": flip,
    "overwritten": overwrite,
    "cut in half": lambda file, _other: os.truncate(file, file.stat().st_size // 2),
    "emptied": lambda file, _other: os.truncate(file, 0),
    "replaced": swap,
    "deleted": lambda file, _other: file.unlink(),
}


def outside_bundle(root: Path) -> Path:
    """A tiny bundle whose weights are in an external data file, which ONNX Runtime would map into memory by itself."""
    path = make_bundle(root)
    graph = onnx.load(path / "fp32.onnx")
    onnx.save(graph, path / "fp32.onnx", save_as_external_data=True, location="weights.data", size_threshold=100)
    write_manifest(path, read_manifest(path))
    return path


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another bundle, to replace files with: each of them differs."""
    path = make_bundle(tmp_path / "other", "other", max_tokens=16)
    for name in ("tokenizer.json", "config.json"):
        (path / name).write_text((path / name).read_text() + " ")
    return path


def refused(root: Path, *flags: str) -> tuple[int, str]:
    """Exit code and standard error of a start that must fail."""
    ports = ("--grpc-listen", "127.0.0.1:0", "--http-listen", "")
    command = [sys.executable, "-m", "sentiment", "serve", "--bundles", str(root), *ports, *flags]
    found = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return found.returncode, found.stderr


def assert_refused(path: Path, name: str, damage: Damage, other: Path, *flags: str) -> None:
    whole = {file: file.read_bytes() for file in path.iterdir()}
    damage(path / name, other)
    code, said = refused(path.parent.parent, *flags)
    for file, content in whole.items():
        file.write_bytes(content)

    assert code == 3, said
    # A damaged manifest is not JSON or does not match its files. A folder without a manifest is not a bundle.
    assert str(path / name) in said or (name == "manifest.json" and ("no bundle" in said or "the manifest says" in said)), said
    assert name == "manifest.json" or "the manifest says" in said or "No such file" in said, said
    assert "Traceback" not in said


@pytest.mark.parametrize("outside", [False, True], ids=["graph of its own", "weights of their own"])
def test_files_are_damaged_while_they_are_served(
    tmp_path: Path, other: Path, serve: Callable[..., Server], evidence: Evidence, outside: bool
) -> None:
    """All answers stay right; the next start is refused.

    Under load, every file of the bundle is changed in place (one bit, then all bytes), cut in half, emptied, replaced by rename, and
    deleted. All answers stay correct, and the next start is refused. ONNX Runtime would map external weights into memory; the server reads
    them instead, because a mapped file gives wrong answers once it is overwritten, and kills the process once it is cut.
    """
    path = outside_bundle(tmp_path / "root") if outside else make_bundle(tmp_path / "root")
    names = ["weights.data"] * outside + ["fp32.onnx", "tokenizer.json", "config.json", "manifest.json"]
    server = serve("--bundles", str(tmp_path / "root"))
    with Callers(server.target) as callers:
        callers.wait(50)
        for name in names:
            for damage in DAMAGES.values():
                damage(path / name, other)
                callers.wait(20)
    assert server.process.poll() is None

    evidence.judge(callers.fates)
    server.process.terminate()
    assert server.finish() == 0
    assert refused(tmp_path / "root", "--model", "tiny")[0] == 3


@pytest.mark.thorough
def test_files_of_the_default_bundle_are_damaged_while_it_is_served(
    tmp_path: Path, serve: Callable[..., Server], evidence: Evidence
) -> None:
    """Answers and explanations stay right, or explanations are refused.

    The default bundle has an int8 graph, and an explanation graph with its weights in model.safetensors. Its weights and graphs are
    overwritten and emptied in place under load: on one server before the first explanation, which loads the explanation graph, on another
    one after it. Answers do not change, nor do explanations if the graph was loaded before. Otherwise the log names the file and hashes,
    and attributions that need the graph are refused.
    """
    fates = []
    for loaded_before in (False, True):
        root = tmp_path / str(loaded_before)
        path = Path(shutil.copytree(ENGLISH, root / NAME))
        server = serve("--bundles", str(root), "--model", "english")
        with Client(server.target, options=PLAIN, timeout_s=60) as client:
            texts = [(text, client.classify(text).scores["positive"]) for text, _ in DEFAULT]
            before = explained(client) if loaded_before else None
            with Callers(server.target, callers=4, texts=texts, timeout_s=30) as callers:
                callers.wait(20)
                for name in ("model.safetensors", "int8.onnx", "explain.onnx", "fp32.onnx"):
                    for damage in ("overwritten", "emptied"):
                        DAMAGES[damage](path / name, path)
                        callers.wait(10)
                    if not loaded_before and name == "model.safetensors":
                        assert explained(client) == "FAILED_PRECONDITION"
                        said = server.wait_for("explain_graph_rejected")
                        assert "model.safetensors: has 0 bytes; the manifest says" in said["reason"]
            if loaded_before:
                assert explained(client) == before
        fates.append(callers.fates)
    evidence.judge(*fates)


def relabel(path: Path, _secret: Path) -> None:
    """A label of two lines, the second of which would be a header of a wheel, and which clears a terminal."""
    evil, manifest = "good\r\nRequires-Dist: evil\x1b[2J", cast(dict[str, Any], read_manifest(path))
    manifest["labels"][1] = manifest["golden"][0]["label"] = evil
    manifest["references"] = {}
    (path / "manifest.json").write_text(json.dumps(manifest))


def nest(path: Path, _secret: Path) -> None:
    """A config.json that is nested 200,000 deep."""
    (path / "config.json").write_text('{"a":' * 200_000)
    write_manifest(path, read_manifest(path))


def name_outside(path: Path, secret: Path) -> None:
    """A file outside of the folder among those of the manifest, with its hash."""
    manifest = cast(dict[str, Any], read_manifest(path))
    content = secret.read_bytes()
    manifest["files"]["../../../secret"] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    (path / "manifest.json").write_text(json.dumps(manifest))


def link(name: str) -> Damage:
    def change(path: Path, secret: Path) -> None:
        (path / name).unlink()
        (path / name).symlink_to(secret)

    return change


def pipe(name: str) -> Damage:
    def change(path: Path, _secret: Path) -> None:
        (path / name).unlink()
        os.mkfifo(path / name)

    return change


HOSTILE: dict[str, Damage] = {
    **{f"{name} is a link out": link(name) for name in ("MODEL_CARD.md", "config.json", "tokenizer.json", "fp32.onnx", "manifest.json")},
    **{f"{name} is a pipe": pipe(name) for name in ("MODEL_CARD.md", "tokenizer.json")},
    "manifest lists a file outside": name_outside,
    "label of two lines": relabel,
    "config.json is deep": nest,
}


def test_bundles_that_somebody_hostile_made(tmp_path: Path, serve: Callable[..., Server], evidence: Evidence) -> None:
    """Each is refused with a reason and without the secret.

    Files of a bundle are links to a file with a secret, pipes, or nested 200,000 deep; its manifest lists a file outside of the folder,
    or has a label of two lines that clears a terminal. Each start ends with exit code 3 and says why, and nothing of the secret. Under
    load, version 2 appears with such a card in the folder that a server watches: it is refused, and GetModel gives the card of version 1.
    """
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    for number, change in enumerate(HOSTILE.values()):
        path = make_bundle(tmp_path / str(number))
        change(path, secret)
        code, said = refused(tmp_path / str(number), "--model", "tiny")
        assert code == 3, said
        assert SECRET not in said
        assert "Traceback" not in said
        assert "\x1b" not in said
    make_bundle(tmp_path / "served")
    server = serve("--bundles", str(tmp_path / "served"), "--models-watch-s", "0.1")
    with Callers(server.target) as callers:
        callers.wait(50)
        second = make_bundle(tmp_path / "part", version=2)
        link("MODEL_CARD.md")(second, secret)
        os.rename(second, tmp_path / "served" / "tiny" / "2")
        said = server.wait_for("model_not_loaded", model="tiny/2")["reason"]
        with server.client() as client:
            card = client.get_model().card
        callers.wait(50)

    assert "is a link to" in said
    assert card == "# Tiny\n"
    evidence.judge(callers.fates)
    evidence.measured["starts that were refused"] = len(HOSTILE)


def explained(client: Client) -> Any:
    """The words' values of an attribution by gradients, or the status code."""
    try:
        found = client.explain(DEFAULT[0][0], options=ExplainOptions(methods=("gradient_x_input",), evidence=False), timeout_s=60)
    except CallFailed as error:
        return error.code.name
    return [round(value, 6) for value in found.attributions["gradient_x_input"].words]
