"""Models change while the server runs: no request fails, and a bad version changes nothing."""

import asyncio
import contextlib
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from sentiment.client import CallFailed, Classification
from sentiment.errors import BadBundle, BadSettings
from sentiment.explain.parts import ExplanationRequest, Summary
from sentiment.lifecycle.lifecycle import FrontEndProcesses
from sentiment.lifecycle.served_model import RunningModel
from sentiment.settings import Settings
from tests.conftest import PLAIN
from tests.core.lifecycle.conftest import TOKEN, Exchanging, break_golden, make_version, run_and_fail, score_of_good
from tests.core.lifecycle.load import WAYS, Load
from tests.core.observability.test_metrics import samples, scrape

Start = Callable[..., Exchanging]
SWAPS = 50


def refused(call: Callable[[], object], code: grpc.StatusCode, says: str) -> None:
    with pytest.raises(CallFailed, match=says) as failed:
        call()
    assert failed.value.code is code


def test_a_loaded_version_is_used_the_old_one_can_be_named_and_a_rollback_needs_no_file(exchanging: Start, root: Path) -> None:
    server = exchanging()
    make_version(root, 2)
    with server.client() as client, server.admin() as admin:
        assert client.classify("good").model.version == 1

        admin.load("tiny")

        assert client.classify("good").model.version == 2
        assert client.classify("good", model="tiny").score == pytest.approx(score_of_good(2), abs=1e-4)
        assert client.classify("good", model="tiny/1").score == pytest.approx(score_of_good(1), abs=1e-4)
        assert [(model.id.version, model.is_default) for model in client.list_models().models] == [(2, True), (1, False)]
        assert server.states() == {"tiny/1": ("READY", "kept"), "tiny/2": ("READY", "default")}
        shutil.rmtree(root / "tiny")

        admin.use("tiny/1")

        assert client.classify("good").model.version == 1
    assert server.states() == {"tiny/1": ("READY", "default"), "tiny/2": ("READY", "kept")}


def test_a_version_loaded_but_not_used_gets_only_requests_that_name_it(exchanging: Start, root: Path) -> None:
    server = exchanging()
    make_version(root, 2)
    make_version(root, 1, "other")
    with server.client() as client, server.admin() as admin:
        admin.load("tiny/2", use=False)
        admin.load("other", use=False)

        assert client.classify("good").model.version == 1
        assert client.classify("good", model="tiny/2").model.version == 2
        assert client.classify("good", model="other").model.name == "other"
    assert server.states() == {"tiny/1": ("READY", "default"), "tiny/2": ("READY", ""), "other/1": ("READY", "in use")}


class Followers(FrontEndProcesses):
    """Records the messages to other processes, and what is in memory while a model is announced."""

    def __init__(self, server: Exchanging) -> None:
        self._lifecycle = server.lifecycle
        self.told: list[tuple[str, str]] = []
        self.in_memory: list[str] = []
        self.unloaded_meanwhile: list[str] = []

    async def add_model(self, running: RunningModel) -> None:
        self.told.append(("add", running.id))
        self.in_memory = [one.id for one in self._lifecycle.running]
        for model in self.unloaded_meanwhile:
            await self._lifecycle.unload(model)

    async def use_model(self, running: RunningModel) -> None:
        self.told.append(("use", running.id))


def test_other_processes_get_the_version_in_use_even_if_it_is_the_first_of_its_name(exchanging: Start, root: Path) -> None:
    server = exchanging()
    make_version(root, 1, "other")
    followers = server.lifecycle.front_ends = Followers(server)

    with server.admin() as admin:
        admin.load("other")
        admin.use("other/1")

    # The first version of a name is in use at once. Others may have got another one while it was announced.
    assert followers.told == [("add", "other/1"), ("use", "other/1"), ("use", "other/1")]
    # While it is announced it may get texts, so its runs are watched.
    assert followers.in_memory == ["tiny/1", "other/1"]


def test_other_processes_use_a_version_that_follows_one_unloaded_while_they_heard_of_it(exchanging: Start, root: Path) -> None:
    server = exchanging(models_max=3)
    for version in (1, 2):
        make_version(root, version, "other")
    followers = server.lifecycle.front_ends = Followers(server)

    with server.admin() as admin:
        admin.load("other/1")
        followers.unloaded_meanwhile = ["other"]
        admin.load("other/2", use=False)

    assert server.states()["other/2"] == ("READY", "in use")
    assert followers.told[-2:] == [("add", "other/2"), ("use", "other/2")]


@pytest.mark.usefixtures("hasty")
def test_through_fifty_swaps_no_request_fails_and_each_answer_names_the_version_that_gave_it(exchanging: Start, root: Path) -> None:
    """Each swap loads a new version and unloads the oldest."""
    server = exchanging()
    watched: list[int] = []

    def watch_health(channel: grpc.Channel) -> None:
        with contextlib.suppress(grpc.RpcError):
            for status in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="")):
                watched.append(status.status)

    def right(result: object, _word: str) -> bool:
        return isinstance(result, Classification) and abs(result.score - score_of_good(result.model.version)) < 1e-4

    with server.client(options=PLAIN, timeout_s=60) as client, server.admin() as admin, grpc.insecure_channel(server.target) as channel:
        threading.Thread(target=watch_health, args=(channel,), daemon=True).start()
        with Load([client], server.target, ["good"], right) as load:
            for version in range(2, SWAPS + 2):
                make_version(root, version)
                admin.load(f"tiny/{version}")
                load.wait(20)

    assert load.failures == []
    assert server.metric("sentiment_model_changes_total", change="used") == SWAPS
    assert set(load.answered) == {*WAYS, "stream"}
    assert len(load.seen) > SWAPS / 2
    assert watched == [health_pb2.HealthCheckResponse.SERVING]
    assert {model for model, (state, _) in server.states().items() if state == "READY"} == {"tiny/49", "tiny/50", "tiny/51"}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (break_golden, "golden.0.: the logit error is 0.5000"),
        (lambda path: (path / "tokenizer.json").unlink(), "No such file"),
    ],
    ids=["golden", "missing"],
)
def test_a_bad_version_is_refused_with_its_reason_and_changes_nothing(
    exchanging: Start, root: Path, spoil: Callable[[Path], object], says: str
) -> None:
    server = exchanging()
    spoil(make_version(root, 2))
    with server.client() as client, server.admin() as admin:
        refused(lambda: admin.load("tiny"), grpc.StatusCode.FAILED_PRECONDITION, says)

        assert client.classify("good").model.version == 1
        refused(lambda: client.classify("good", model="tiny/2"), grpc.StatusCode.NOT_FOUND, "loaded are tiny/1")
    assert server.metric("sentiment_model_changes_total", change="failed") == 1
    assert server.metric("sentiment_model_changes_total", change="used") == 0
    state, reason = server.states()["tiny/2"]
    assert state == "UNAVAILABLE"
    assert says.replace(".0.", "[0]") in reason


def test_a_repaired_version_is_loaded_and_its_failure_forgotten(exchanging: Start, root: Path) -> None:
    server = exchanging()
    break_golden(make_version(root, 2))
    with server.admin() as admin:
        refused(lambda: admin.load("tiny"), grpc.StatusCode.FAILED_PRECONDITION, "golden")
        shutil.rmtree(root / "tiny/2")
        make_version(root, 2)

        admin.load("tiny")

    assert server.states()["tiny/2"] == ("READY", "default")


def test_a_loaded_version_whose_files_changed_is_refused(exchanging: Start, root: Path) -> None:
    server = exchanging()
    manifest = json.loads((root / "tiny/1/manifest.json").read_text())
    (root / "tiny/1/manifest.json").write_text(json.dumps(manifest | {"provenance": {"changed": True}}))
    with server.admin() as admin:
        refused(lambda: admin.load("tiny/1"), grpc.StatusCode.FAILED_PRECONDITION, "give the new files a new version")


@pytest.mark.parametrize("limit", ["models", "bytes"])
def test_at_a_limit_the_version_kept_longest_is_unloaded(exchanging: Start, root: Path, limit: str) -> None:
    size = sum(file.stat().st_size for file in (root / "tiny/1").iterdir() if file.name != "manifest.json")
    server = exchanging(**{"models_max": 2} if limit == "models" else {"models_bytes_max": 2 * size + size // 2})
    for version in (2, 3):
        make_version(root, version)
    with server.admin() as admin, server.client() as client:
        admin.load("tiny/2")
        admin.load("tiny/3")

        assert {model for model, (state, _) in server.states().items() if state == "READY"} == {"tiny/2", "tiny/3"}
        refused(lambda: client.classify("good", model="tiny/1"), grpc.StatusCode.NOT_FOUND, "loaded are tiny/2, tiny/3")
    assert 0 < sum(sample.value for sample in samples(scrape(server)[0]) if sample.name == "sentiment_model_bytes") <= 2 * size


def test_a_version_in_use_is_never_unloaded_to_make_room(exchanging: Start, root: Path) -> None:
    server = exchanging(models_max=1)
    make_version(root, 2)
    with server.admin() as admin, server.client() as client:
        refused(lambda: admin.load("tiny/2"), grpc.StatusCode.FAILED_PRECONDITION, "models_max = 1")
        assert client.classify("good").model.version == 1


def test_unloading_a_model_removes_its_series_and_no_others(exchanging: Start, root: Path) -> None:
    server = exchanging()
    make_version(root, 2)

    def models() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for sample in samples(scrape(server)[0]):
            if "model" in sample.labels:
                found.setdefault(sample.labels["model"], set()).add(sample.name)
        return found

    before = models()
    with server.admin() as admin, server.client() as client:
        admin.load("tiny/2")
        client.classify("good", model="tiny/1")
        both = models()
        admin.unload("tiny/1")
        client.classify("good")

        assert both["tiny/1"] == both["tiny/2"] == before["tiny/1"]
        assert models() == {"": before[""], "tiny/2": before["tiny/1"]}
    assert server.metric("sentiment_requests_total", method="Classify", code="OK", model="tiny/2") == 1
    assert server.metric("sentiment_model_changes_total", change="unloaded") == 1


def test_a_model_is_unloaded_only_after_its_requests_are_answered(exchanging: Start, root: Path) -> None:
    """An explanation that is still being read keeps its version in memory; new requests do not get it."""
    server = exchanging()
    make_version(root, 2)

    async def read_while_it_is_unloaded() -> tuple[bool, bool]:
        repository = server.lifecycle
        old = server.models.find("tiny/1")
        asked = ExplanationRequest("good film", methods=("occlusion",), attributions=True)
        parts = old.explaining.explain(asked, asyncio.get_running_loop().time() + 60)
        await anext(parts)
        await repository.load("tiny/2")
        unloading = asyncio.create_task(repository.unload("tiny/1"))
        await asyncio.wait({unloading}, timeout=0.1)
        states = {entry.state for entry in await repository.index() if entry.name == "tiny"}
        still_there = not unloading.done() and states == {"READY", "UNLOADING"}
        rest = [part async for part in parts]
        await unloading
        return still_there, isinstance(rest[-1], Summary) and rest[-1].complete

    done = asyncio.run_coroutine_threadsafe(read_while_it_is_unloaded(), server.loop)

    assert done.result(60) == (True, True)
    with server.client() as client:
        refused(lambda: client.classify("good", model="tiny/1"), grpc.StatusCode.NOT_FOUND, "loaded are tiny/2")


def test_the_default_model_and_a_version_in_use_are_not_unloaded(exchanging: Start, root: Path) -> None:
    server = exchanging(models_max=4)
    make_version(root, 2)
    for version in (1, 2):
        make_version(root, version, "other")
    with server.admin() as admin:
        admin.load("tiny/2")
        admin.load("other/1")
        admin.load("other/2")
        refused(lambda: admin.unload("tiny/2"), grpc.StatusCode.FAILED_PRECONDITION, "put another version to use first")
        refused(lambda: admin.unload("tiny"), grpc.StatusCode.FAILED_PRECONDITION, "requests that name no model")
        refused(lambda: admin.unload("other/2"), grpc.StatusCode.FAILED_PRECONDITION, "requests for other without a version")
        refused(lambda: admin.unload("nosuch"), grpc.StatusCode.NOT_FOUND, "not loaded")
        refused(lambda: admin.use("other"), grpc.StatusCode.NOT_FOUND, "model 'other' is loaded as other/1, other/2: name a version")

        admin.unload("other")

    ready = {model for model, (state, _) in server.states().items() if state == "READY"}
    assert ready == {"tiny/1", "tiny/2"}


def test_several_models_load_at_startup_and_a_name_means_its_highest_version(exchanging: Start, root: Path) -> None:
    make_version(root, 2)
    for version in (1, 2):
        make_version(root, version, "other")
    server = exchanging(model="tiny/1", models=("other/1", "other/2"))

    with server.client() as client:
        assert client.classify("good").model.version == 1
        assert client.classify("good", model="other").model.version == 2
        assert client.classify("good", model="other/1").model.version == 1
        assert [(one.id.name, one.id.version) for one in client.list_models().models] == [("tiny", 1), ("other", 1), ("other", 2)]


def test_a_further_model_that_is_bad_or_too_large_stops_the_startup(settings: Settings, root: Path) -> None:
    break_golden(make_version(root, 1, "other"))
    tokens = root / "tokens"
    tokens.write_text(TOKEN)
    own = {"bundles": (root,), "admin_listen": "127.0.0.1:0", "admin_tokens": str(tokens)}

    with pytest.raises(BadBundle, match=r"golden\[0\]"):
        run_and_fail(settings.model_copy(update=own | {"models": ("other",)}))
    with pytest.raises(BadSettings, match="models_bytes_max"):
        run_and_fail(settings.model_copy(update=own | {"models_bytes_max": 10}))


def test_a_version_with_other_labels_is_reported(exchanging: Start, root: Path) -> None:
    server = exchanging()
    manifest = make_version(root, 2) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"negative"', '"bad"'))

    with server.admin() as admin, capture_logs() as logs:
        admin.load("tiny/2")
        admin.use("tiny/1")

    said = [(line["model"], line["labels"], line["before"]) for line in logs if line["event"] == "labels_changed"]
    usual, other = ("negative", "positive"), ("bad", "positive")
    assert said == [("tiny/2", other, usual), ("tiny/1", usual, other)]
