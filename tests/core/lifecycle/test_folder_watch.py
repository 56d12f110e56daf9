"""The folder watch loads versions that are complete and no longer change, however they got there, and no others."""

import asyncio
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from sentiment.errors import BadBundle, BadSettings, CannotServe, Unavailable, Unsupported
from sentiment.lifecycle.folder_watch import FolderWatch
from sentiment.lifecycle.loading import Loaded, load
from sentiment.lifecycle.startup import load_all
from sentiment.model import folders
from sentiment.settings import Settings
from tests.core.lifecycle.conftest import Exchanging, break_golden, make_version, run_and_fail
from tests.core.servers import until
from tests.tiny import make_bundle, read_manifest, write_manifest

Start = Callable[..., Exchanging]
PATIENCE_S = 60


class Notes:
    """Stands for the repository: records what it is asked to load, and raises the error that a test sets."""

    def __init__(self, loaded: int = 1) -> None:
        self.loaded = loaded
        self.asked: list[str] = []
        self.error: Exception | None = None

    @property
    def running(self) -> list[Any]:  # their ids are asked for
        return [SimpleNamespace(id=f"tiny/{self.loaded}")]

    def newest(self, name: str) -> int:
        return self.loaded

    async def load(self, model: str, use: bool = True) -> None:
        self.asked.append(model)
        if self.error is not None:
            raise self.error
        self.loaded = int(model.partition("/")[2])


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def watch(notes: Notes, root: Path) -> FolderWatch:
    return FolderWatch(notes, ["tiny"], [root], every_s=3600)


async def look(watch: FolderWatch, times: int = 2) -> None:
    for _ in range(times):
        await watch.look("tiny")


async def test_a_higher_version_is_loaded_once_it_has_settled(watch: FolderWatch, notes: Notes, root: Path) -> None:
    await look(watch)
    make_version(root, 2)

    await watch.look("tiny")
    assert notes.asked == []
    await look(watch, 3)

    assert notes.asked == ["tiny/2"]


async def test_of_several_versions_only_the_highest_is_loaded(watch: FolderWatch, notes: Notes, root: Path) -> None:
    notes.loaded = 3
    for version in (2, 4, 10):
        make_version(root, version)

    await look(watch, 4)

    assert notes.asked == ["tiny/10"]


async def test_a_folder_is_not_loaded_until_its_copy_is_complete(watch: FolderWatch, notes: Notes, root: Path) -> None:
    """Even if the manifest is not copied last."""
    whole = make_version(root / "elsewhere", 2)
    copy = root / "tiny/2"
    copy.mkdir()

    for name in ("manifest.json", "fp32.onnx", "tokenizer.json"):
        content = (whole / name).read_bytes()
        (copy / name).write_bytes(content[: len(content) // 2])
        await look(watch, 3)
        (copy / name).write_bytes(content)
    await look(watch)
    assert notes.asked == []
    (copy / "config.json").write_bytes((whole / "config.json").read_bytes())
    await look(watch)

    assert notes.asked == ["tiny/2"]


async def test_a_bad_version_is_tried_once_and_again_after_its_files_change(watch: FolderWatch, notes: Notes, root: Path) -> None:
    notes.error = Unsupported("its golden set")
    path = make_version(root, 2)
    with capture_logs() as logs:
        await look(watch, 5)
    assert notes.asked == ["tiny/2"]
    assert [(line["model"], line["reason"]) for line in logs if line["event"] == "model_refused"] == [("tiny/2", "its golden set")]

    notes.error = None
    content = (path / "fp32.onnx").read_bytes()
    (path / "fp32.onnx").unlink()
    (path / "fp32.onnx").write_bytes(content)
    os.utime(path / "fp32.onnx", (1, 1))
    await look(watch, 3)

    assert notes.asked == ["tiny/2", "tiny/2"]


async def test_a_refused_version_is_tried_again_when_other_models_are_loaded(watch: FolderWatch, notes: Notes, root: Path) -> None:
    notes.error = Unsupported("there is no room")
    make_version(root, 4)
    await look(watch, 5)
    assert notes.asked == ["tiny/4"]

    notes.loaded = 3
    await look(watch, 5)

    assert notes.asked == ["tiny/4", "tiny/4"]


async def test_a_version_is_tried_again_when_its_permissions_change(watch: FolderWatch, notes: Notes, root: Path) -> None:
    notes.error = Unsupported("Permission denied")
    path = make_version(root, 2)
    await look(watch, 5)

    (path / "fp32.onnx").chmod(0o600)
    await look(watch, 5)

    assert notes.asked == ["tiny/2", "tiny/2"]


async def test_a_folder_that_cannot_be_read_is_reported_once_and_a_new_empty_one_is_not(watch: FolderWatch, root: Path) -> None:
    (root / "tiny/2").mkdir()
    with capture_logs() as first:
        await look(watch, 1)
    with capture_logs() as later:
        await look(watch, 4)

    assert first == []
    assert [(line["event"], line["model"]) for line in later] == [("model_refused", "tiny/2")]


async def test_a_bad_version_does_not_hide_a_good_lower_one(watch: FolderWatch, notes: Notes, root: Path) -> None:
    notes.error = Unsupported("its golden set")
    make_version(root, 3)
    await look(watch)
    notes.error = None
    make_version(root, 2)

    await look(watch)

    assert notes.asked == ["tiny/3", "tiny/2"]


async def test_a_load_that_met_another_load_is_retried(watch: FolderWatch, notes: Notes, root: Path) -> None:
    notes.error = Unavailable("another is being loaded")
    make_version(root, 2)
    await look(watch)
    notes.error = None

    await look(watch)

    assert notes.asked == ["tiny/2", "tiny/2"]


async def test_a_root_that_disappears_for_a_while_does_no_harm(watch: FolderWatch, notes: Notes, root: Path) -> None:
    os.rename(root, root.with_name("away"))
    await look(watch)
    os.rename(root.with_name("away"), root)
    make_version(root, 2)

    await look(watch)

    assert notes.asked == ["tiny/2"]


def wait_for(server: Exchanging, version: int) -> None:
    with server.client() as client:
        until(lambda: client.classify("good").model.version == version, f"version {version} comes")


def test_a_volume_that_kubernetes_replaces_by_a_link_brings_a_new_version(exchanging: Start, tmp_path: Path) -> None:
    """As its AtomicWriter does: a folder by its time, ..data leads there, and names lead into ..data; then one rename."""
    volume = tmp_path / "volume"
    make_version(volume / "..1", 1)
    (volume / "..data").symlink_to("..1")
    (volume / "tiny").symlink_to("..data/tiny")
    server = exchanging(bundles=(volume,), models_watch_s=0.05)
    for version in (1, 2):
        make_version(volume / "..2", version)
    (volume / "..data.new").symlink_to("..2")

    os.rename(volume / "..data.new", volume / "..data")
    shutil.rmtree(volume / "..1")

    wait_for(server, 2)
    with server.client() as client:
        assert client.classify("good", model="tiny/1").model.version == 1


def test_a_bad_version_in_a_watched_folder_is_reported_and_the_next_good_one_serves(exchanging: Start, root: Path, tmp_path: Path) -> None:
    server = exchanging(models_watch_s=0.05)
    bad = make_version(tmp_path / "made", 2)
    break_golden(bad)
    shutil.move(bad, root / "tiny/2")
    until(lambda: server.metric("sentiment_model_changes_total", change="failed"), "version 2 has failed")
    assert "golden" in server.states()["tiny/2"][1]

    make_version(root, 3)

    wait_for(server, 3)
    assert server.metric("sentiment_model_changes_total", change="failed") == 1


@pytest.mark.parametrize("from_startup", [False, True], ids=["loaded later", "loaded at startup"])
def test_the_watch_does_not_undo_a_rollback(exchanging: Start, root: Path, from_startup: bool) -> None:
    if from_startup:
        make_version(root, 2)
    server = exchanging()
    watch = FolderWatch(server.lifecycle, ["tiny"], [root], every_s=3600)

    def version_after_checks() -> int:
        asyncio.run_coroutine_threadsafe(look(watch, 3), server.loop).result(PATIENCE_S)
        return client.classify("good").model.version

    with server.admin() as admin, server.client() as client:
        if not from_startup:
            make_version(root, 2)
        assert version_after_checks() == 2
        admin.load("tiny/1")
        assert version_after_checks() == 1
        admin.unload("tiny/2")
        assert version_after_checks() == 1
        # The admin port still loads it.
        admin.load("tiny/2")
        assert version_after_checks() == 2


def test_a_manifest_of_nothing_but_brackets_is_incomplete(root: Path) -> None:
    (root / "tiny/1/manifest.json").write_text("[" * 100_000)

    assert folders.missing(root / "tiny/1") == "manifest.json is incomplete or not a manifest"


def test_a_listing_looks_at_no_file_outside_the_folder_and_waits_for_no_pipe(tmp_path: Path) -> None:
    path = make_bundle(tmp_path)
    (tmp_path / "secret").write_bytes(b"1234")
    manifest: dict[str, Any] = read_manifest(path)
    manifest["files"]["../../secret"] = {"sha256": "0" * 64, "bytes": 9}
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert folders.missing(path) == "manifest.json is incomplete or not a manifest"
    (path / "manifest.json").unlink()
    os.mkfifo(path / "manifest.json")

    assert folders.missing(path) == "manifest.json is missing"
    assert folders.digest(path) == ""


def test_startup_skips_a_version_that_is_too_large_for_the_settings(
    root: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_version(root, 2)
    own = settings.model_copy(update={"bundles": (root,), "models_watch_s": 3600.0})
    failed: list[tuple[str, str]] = []

    def load_first(*_: object, model: str, **__: object) -> Loaded:
        if model == "tiny/2":
            raise BadSettings("too large")
        return load(own, measure_s=0.0, model=model)

    monkeypatch.setattr("sentiment.lifecycle.startup.load", load_first)

    (one,) = load_all(own, [root], threading.Event(), lambda *said: failed.append(said))

    for runner in one.runners:
        runner.close(1)
    assert one.classifier.bundle.id == "tiny/1"
    assert failed == [("tiny/2", "too large")]


def test_startup_passes_over_a_version_that_does_not_fit(root: Path, settings: Settings) -> None:
    path = make_version(root, 2)
    manifest = read_manifest(path)
    (path / "extra.bin").write_bytes(bytes(1000))
    manifest["files"]["extra.bin"] = {"sha256": hashlib.sha256(bytes(1000)).hexdigest(), "bytes": 1000}
    write_manifest(path, manifest)
    size = folders.size(path)
    own = settings.model_copy(update={"bundles": (root,), "models_watch_s": 3600.0, "models_bytes_max": size - 1})
    failed: list[tuple[str, str]] = []

    (one,) = load_all(own, [root], threading.Event(), lambda *said: failed.append(said))

    for runner in one.runners:
        runner.close(1)
    assert one.classifier.bundle.id == "tiny/1"
    assert failed == [("tiny/2", f"with tiny/2 the models have {size} bytes; the limit is {size - 1} (models_bytes_max)")]


def test_a_stop_during_startup_ends_it_before_the_next_model(root: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    make_version(root, 2)
    own = settings.model_copy(update={"bundles": (root,), "models_watch_s": 3600.0})
    stop = threading.Event()
    asked: list[str] = []

    def load_first(*_: object, model: str, **__: object) -> Loaded:
        asked.append(model)
        stop.set()
        raise BadBundle("bad")

    monkeypatch.setattr("sentiment.lifecycle.startup.load", load_first)

    with pytest.raises(CannotServe):
        load_all(own, [root], stop, lambda *_: None)
    assert asked == ["tiny/2"]


def test_a_pinned_version_is_not_changed(exchanging: Start, root: Path) -> None:
    make_version(root, 1, "other")
    server = exchanging(models_watch_s=0.02, model="tiny/1", models=("other",), models_max=4)
    make_version(root, 2)
    make_version(root, 2, "other")
    with server.client() as client:
        until(lambda: client.classify("good", model="other").model.version == 2, "the other model is changed")

        assert client.classify("good").model.version == 1


def test_startup_skips_a_bad_version_only_with_a_watch(exchanging: Start, settings: Settings, root: Path) -> None:
    break_golden(make_version(root, 2))

    with pytest.raises(BadBundle, match=r"golden\[0\]"):
        run_and_fail(settings.model_copy(update={"bundles": (root,)}))
    server = exchanging(models_watch_s=3600)

    with server.client() as client:
        assert client.classify("good").model.version == 1
    assert "golden" in server.states()["tiny/2"][1]
