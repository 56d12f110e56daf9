"""Unloading of versions: it completes even if its caller leaves or something fails; and counts after it."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sentiment.call.calls import CallLimits, Calls
from sentiment.client import CallFailed
from sentiment.explain.parts import ExplanationRequest, Part, Summary
from sentiment.explain.thread import ExplainThreads, ExplanationTask
from sentiment.lifecycle.states import State
from sentiment.observability.metrics import Metrics
from tests.core.lifecycle.conftest import Exchanging, make_version

Start = Callable[..., Exchanging]


def test_an_unload_completes_for_all_versions_when_its_caller_leaves(
    exchanging: Start, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version whose costs cannot be written delays neither the others nor the release of its own memory."""
    server = exchanging(models_max=4)
    for version in (1, 2):
        make_version(root, version, "other")
    with server.admin() as admin:
        admin.load("other/1")
        admin.load("other/2")
    repository, models = server.lifecycle, server.models
    runners = [runner for running in repository.running if running.classifier.manifest.name == "other" for runner in running.loaded.runners]
    threads = [runner._thread for runner in runners]
    let_go: asyncio.Event = asyncio.Event()

    async def keeps_no_costs(_: object) -> None:
        await let_go.wait()
        raise OSError("the disk is full")

    monkeypatch.setattr("sentiment.lifecycle.served_model.RunningModel.keep_costs", keeps_no_costs)

    async def unload_and_leave() -> set[str]:
        unloading = asyncio.create_task(repository.unload("other"))
        await asyncio.sleep(0)
        await asyncio.wait({unloading}, timeout=0.05)
        unloading.cancel()
        await asyncio.wait({unloading})
        leaving = set(models.ids(State.ENDING))
        let_go.set()
        async with asyncio.timeout(60):
            while models.ids(State.ENDING):
                await asyncio.sleep(0.01)
        return leaving

    assert asyncio.run_coroutine_threadsafe(unload_and_leave(), server.loop).result(90) == {"other/1", "other/2"}
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_nothing_is_unloaded_for_a_version_that_does_not_fit_or_is_invalid(exchanging: Start, root: Path) -> None:
    size = sum(file.stat().st_size for file in (root / "tiny/1").iterdir())
    server = exchanging(models_max=2, models_bytes_max=2 * size + size // 2)
    for version in (2, 3, 4):
        make_version(root, version)
    (root / "tiny/3/model.bin").write_bytes(b"x" * 3 * size)
    graph = root / "tiny/4/fp32.onnx"
    graph.write_bytes(b"x" * graph.stat().st_size)
    with server.admin() as admin:
        admin.load("tiny/2")
        for version, says in ((3, "bytes are loaded; this one has"), (4, "SHA-256 is")):
            with pytest.raises(CallFailed, match=says):
                admin.load(f"tiny/{version}")

    states = server.states()
    assert (states["tiny/1"], states["tiny/2"]) == (("READY", "kept"), ("READY", "default"))


def test_a_load_without_room_may_be_retried_once_an_unload_is_over(exchanging: Start, root: Path) -> None:
    server = exchanging(models_max=2)
    for version in (2, 3):
        make_version(root, version)

    async def load_while_one_leaves() -> str:
        repository = server.lifecycle
        await repository.load("tiny/2")
        old = server.models.find("tiny/1")
        asked = ExplanationRequest("good film", methods=("occlusion",), attributions=True)
        parts = old.explaining.explain(asked, asyncio.get_running_loop().time() + 60)
        await anext(parts)
        unloading = asyncio.create_task(repository.unload("tiny/1"))
        await asyncio.sleep(0)
        said = ""
        try:
            await repository.load("tiny/3")
        except Exception as error:  # the test checks its type
            said = f"{type(error).__name__}: {error}"
        await parts.aclose()
        await unloading
        await repository.load("tiny/3")
        return said

    done = asyncio.run_coroutine_threadsafe(load_while_one_leaves(), server.loop)

    assert done.result(90) == "Unavailable: there is no room until tiny/1 is unloaded; try again"
    assert server.metric("sentiment_model_changes_total", change="failed") == 0


def test_an_explain_graph_that_cannot_be_unloaded_changes_nothing(exchanging: Start, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is unloaded in a thread, not on the event loop."""
    server = exchanging()
    make_version(root, 2)
    looks_in: list[bool] = []
    tried = threading.Event()

    def unload(_explaining: object, for_good: bool = False) -> None:
        try:
            asyncio.get_running_loop()
            looks_in.append(True)
        except RuntimeError:
            looks_in.append(False)
        tried.set()
        if not for_good:
            raise PermissionError("the folder")

    monkeypatch.setattr("sentiment.explain.engine.Explainer.unload", unload)
    with server.admin() as admin, server.client() as client:
        admin.load("tiny/2")
        assert tried.wait(20)
        admin.unload("tiny/1")

        assert client.classify("good").model.version == 2
    assert looks_in == [False, False]


def test_a_busy_explain_thread_ends_after_it_is_closed() -> None:
    """A run requested after the close still completes: a thread that waited for it for ever would keep its model in memory."""
    works, let_go = threading.Event(), threading.Event()

    class Slow:
        def explain(self, *asked: Any) -> Iterator[Part]:
            execute = asked[3]
            works.set()
            let_go.wait(60)
            execute(lambda: None)
            yield Summary(True, (), 0, 0, 0.0)

    threads = ExplainThreads(Slow(), 1, lambda *_: None, lambda *_: None, lambda: 1.0)
    now = time.monotonic()
    asked: dict[str, Any] = {"caller": "", "short": True, "heavy": False, "arrived_at": now, "deadline_at": now + 60}
    threads.submit(ExplanationTask(**asked, work_s=1, least_s=1, request=ExplanationRequest("good")))
    assert works.wait(60)

    threads.close(0.0)
    let_go.set()

    for thread in threads.threads:
        thread.join(20)
        assert not thread.is_alive()


async def test_a_stream_that_outlives_its_version_is_counted_under_no_model() -> None:
    metrics = Metrics(("OK",))
    calls = Calls(metrics, CallLimits(2**20, 5.0, 60.0, 8, 0.5, 0.002))
    call = calls.begin("ClassifyStream", None, tuple)
    call.served = SimpleNamespace(metrics=metrics.model("tiny/1", [], ()))

    async def outlive() -> None:
        call.served.metrics.forget()

    await calls.settle(call, outlive())

    counted = metrics.registry.get_sample_value
    assert counted("sentiment_requests_total", {"method": "ClassifyStream", "code": "OK", "model": ""}) == 1
    assert counted("sentiment_request_seconds_count", {"method": "ClassifyStream", "model": ""}) == 1
