"""Bundles whose files are damaged, exchanged or gone"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from sentiment.client import Client, ExplainOptions
from sentiment.model.bundle import CHECKOUT_BUNDLES
from tests.conftest import PLAIN
from tests.faults.evidence import Evidence
from tests.faults.fates import Callers
from tests.front_ends.servers import PATIENCE_S, Server
from tests.tiny import make_bundle, read_manifest, write_manifest

Damage = Callable[[Path, Path], object]
DEFAULT = [("a gripping, beautifully shot film", 0.0), ("two hours of my life I will never get back", 0.0)]


def overwrite(file: Path, _other: Path) -> None:
    """In place: the same file, other bytes."""
    with file.open("r+b") as stream:
        stream.write(b"\x11" * file.stat().st_size)


def flip(file: Path, _other: Path) -> None:
    """One bit in the middle, in place."""
    middle = file.stat().st_size // 2
    with file.open("r+b") as stream:
        stream.seek(middle)
        byte = stream.read(1)[0]
        stream.seek(middle)
        stream.write(bytes([byte ^ 1]))


def swap(file: Path, other: Path) -> None:
    """By rename: another bundle's file of this name, or of any."""
    found = other / file.name
    shutil.copy(found if found.exists() else other / "tokenizer.json", file.with_name("part"))
    os.replace(file.with_name("part"), file)


DAMAGES: dict[str, Damage] = {
    "a bit flipped": flip,
    "overwritten": overwrite,
    "cut in half": lambda file, _other: os.truncate(file, file.stat().st_size // 2),
    "emptied": lambda file, _other: os.truncate(file, 0),
    "exchanged": swap,
    "deleted": lambda file, _other: file.unlink(),
}


def outside_bundle(root: Path) -> Path:
    """A tiny bundle whose weights stand, as they are used, in a file of their own: what ONNX Runtime would serve from a mapped file."""
    path = make_bundle(root)
    graph = onnx.load(path / "fp32.onnx")
    onnx.save(graph, path / "fp32.onnx", save_as_external_data=True, location="weights.data", size_threshold=100)
    write_manifest(path, read_manifest(path))
    return path


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another bundle, to exchange files with: none of them is the same."""
    path = make_bundle(tmp_path / "other", "other", max_tokens=16)
    for name in ("tokenizer.json", "config.json"):
        (path / name).write_text((path / name).read_text() + " ")
    return path


@pytest.fixture
def begin() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def serve(root: Path, *flags: str) -> Server:
        servers.append(Server(root, "--front-ends", "0", *flags))
        return servers[-1].wait_ready()

    yield serve
    for server in servers:
        server.end()


def refused(root: Path, *flags: str) -> tuple[int, str]:
    """Exit code and words of a start that is not to succeed."""
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
    # The manifest's own damage shows in what it says: it is no JSON, or not that of these files. A folder without one is no bundle.
    assert str(path / name) in said or (name == "manifest.json" and ("no bundle" in said or "the manifest says" in said)), said
    assert name == "manifest.json" or "the manifest says" in said or "No such file" in said, said
    assert "Traceback" not in said


@pytest.mark.thorough
def test_a_start_with_a_damaged_file(tmp_path: Path, other: Path, evidence: Evidence) -> None:
    """Each file of a bundle (manifest, tokenizer, graph, weights of their own) is damaged in each of six ways: a bit flipped, overwritten,
    cut in half, emptied, exchanged with another bundle's, deleted. Every start ends with exit code 3 and names the file, with both hashes
    or sizes where the manifest has them.
    """
    path = outside_bundle(tmp_path / "root")
    names = ["manifest.json", "tokenizer.json", "fp32.onnx", "weights.data"]
    for name in names:
        for damage in DAMAGES.values():
            # A manifest with one bit flipped may be another good one.
            if (name, damage) != ("manifest.json", flip):
                assert_refused(path, name, damage, other, "--model", "tiny")
    evidence.measured["starts that were refused"] = len(names) * len(DAMAGES) - 1


def test_a_start_with_cut_files_is_refused(tmp_path: Path, other: Path) -> None:
    path = outside_bundle(tmp_path / "root")

    assert_refused(path, "weights.data", DAMAGES["a bit flipped"], other, "--model", "tiny")
    assert_refused(path, "fp32.onnx", DAMAGES["cut in half"], other, "--model", "tiny")


@pytest.mark.parametrize("outside", [False, True], ids=["graph of its own", "weights of their own"])
def test_files_are_damaged_while_they_are_served(
    tmp_path: Path, other: Path, begin: Callable[..., Server], evidence: Evidence, outside: bool
) -> None:
    """Under load every file of the bundle is changed in place, by one bit and wholly, then cut in half, emptied, exchanged by rename and
    deleted: all answers stay right, and the next start is refused. ONNX Runtime would map weights that stand in a file of their own: they
    are read into memory instead, for a map answers wrongly as soon as they are overwritten and kills the process when they are cut.
    """
    path = outside_bundle(tmp_path / "root") if outside else make_bundle(tmp_path / "root")
    names = ["weights.data"] * outside + ["fp32.onnx", "tokenizer.json", "config.json", "manifest.json"]
    server = begin(tmp_path / "root")
    with Callers(server.target) as callers:
        callers.wait(100)
        for name in names:
            for damage in DAMAGES.values():
                damage(path / name, other)
                callers.wait(40)
    assert server.process.poll() is None

    evidence.count(callers.fates)
    evidence.assert_nothing_lost()
    assert set(evidence.calls) == {"answered", "wrong", "never told"}
    server.process.terminate()
    assert server.finish() == 0
    assert refused(tmp_path / "root", "--model", "tiny")[0] == 3


def test_a_damaged_new_version_comes_while_its_folder_is_watched(tmp_path: Path, begin: Callable[..., Server], evidence: Evidence) -> None:
    """Under load a version 2 with one bit of its graph flipped comes into the watched folder (models_watch_s): it is refused with the
    file's name and both hashes, and version 1 goes on.
    """
    make_bundle(tmp_path)
    server = begin(tmp_path, "--models-watch-s", "0.1")
    with Callers(server.target) as callers:
        callers.wait(100)
        second = make_bundle(tmp_path / "part", version=2)
        flip(second / "fp32.onnx", second)
        os.rename(second, tmp_path / "tiny" / "2")
        said = server.wait_for("model_not_loaded", model="tiny/2")
        callers.wait(200)

    assert "fp32.onnx: SHA-256 is" in said["reason"]
    assert server.total("model_changes_total", change="used") == 0
    evidence.count(callers.fates)
    evidence.assert_nothing_lost()


@pytest.mark.thorough
def test_the_default_bundles_files_are_damaged_while_it_is_served(tmp_path: Path, begin: Callable[..., Server], evidence: Evidence) -> None:
    """The default bundle (int8 graph, explain graph with its weights in model.safetensors). Its weights and graphs are overwritten and
    emptied in place under load, on one server before its first explanation, which loads the explain graph, on another after it. Answers
    stay those from before; explanations that were loaded too; where the explain graph was damaged before it was loaded, that is said with
    file and hashes, and attributions that need it are refused.
    """
    fates = []
    for loaded_before in (False, True):
        root = tmp_path / str(loaded_before)
        path = Path(shutil.copytree(CHECKOUT_BUNDLES / "english", root / "english") / "1")
        server = begin(root, "--model", "english")
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
    evidence.count(*fates)
    evidence.assert_nothing_lost()
    assert set(evidence.calls) == {"answered", "wrong", "never told"}


def explained(client: Client) -> Any:
    """Words and values of an attribution by gradients, or the code of its refusal."""
    from sentiment.client import CallFailed

    try:
        found = client.explain(DEFAULT[0][0], options=ExplainOptions(methods=("gradient_x_input",), evidence=False), timeout_s=60)
    except CallFailed as error:
        return error.code.name
    return [round(value, 6) for value in found.attributions["gradient_x_input"].words]
