"""Models change while several processes serve them: no call fails, and each answer is that of the version it names.

Each version has weights of its own, and every second one a third label, so that logits of another version cannot pass as its own.
"""

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from sentiment.admin_client import AdminClient
from sentiment.client import CallFailed, Classification, Client
from sentiment_front_ends.front_end import DROP_S
from tests.core.lifecycle.conftest import TOKEN
from tests.core.lifecycle.load import WAYS, Load
from tests.core.servers import PATIENCE_S, Server, eventually_answers, until
from tests.front_ends.held import HELD, Held
from tests.front_ends.test_shared_port import connections
from tests.tiny import LABELS, WEIGHTS, make_bundle, read_manifest, write_manifest

SWAPS = 4
WORDS = ("good", "bad", "great", "w3", "w-9")


def make_version(root: Path, version: int, *, name: str = "tiny", scale: float = 0.0) -> Path:
    """Write ``root/name/version``, all at once. ``scale``: of its weights, if not the version."""
    scale = scale or version
    part = make_bundle(root / ".part", name, version)
    model = onnx.load(part / "fp32.onnx")
    (table,) = [one for one in model.graph.initializer if one.name == "table"]
    weights = numpy_helper.to_array(table) * np.float32(scale)
    neutral = [] if version % 2 else ["neutral"]
    table.CopyFrom(numpy_helper.from_array(np.hstack([weights, *(np.zeros_like(weights[:, :1]) for _ in neutral)]), "table"))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = len(LABELS) + len(neutral)
    onnx.save(model, part / "fp32.onnx")
    manifest = read_manifest(part)
    manifest["labels"] = [*LABELS, *neutral]
    # They count the labels of version 1.
    del manifest["references"]
    golden = {"text": "a good film", "label": "positive", "logits": [-scale, scale, *(0.0 for _ in neutral)]}
    write_manifest(part, manifest | {"golden": [golden]})
    (root / name).mkdir(parents=True, exist_ok=True)
    os.rename(part, root / name / str(version))
    return root / name / str(version)


def is_answer(result: object, text: str, scale: float = 0.0) -> bool:
    """Whether this is what the version that the result names answers to a text."""
    if not isinstance(result, Classification):
        return False
    logit = sum(WEIGHTS[word] for word in text.split()) * (scale or result.model.version)
    logits = {"negative": -logit, "positive": logit} | ({} if result.model.version % 2 else {"neutral": 0.0})
    total = sum(map(math.exp, logits.values()))
    return result.scores.keys() == logits.keys() and all(
        abs(result.scores[label] - math.exp(one) / total) < 1e-4 for label, one in logits.items()
    )


class Exchanging(Server):
    """A server with front ends and an admin port."""

    def __init__(self, folder: Path, *flags: str) -> None:
        (folder / "tokens").write_text(TOKEN)
        self._admin = f"unix:{folder}/admin.sock"
        own = ("--front-ends", "2", "--admin-listen", self._admin, "--admin-tokens", str(folder / "tokens"))
        # Explanations run at idle priority, and a busy machine must not cut them short.
        super().__init__(folder / "bundles", *own, "--deadline-max-s", "600", *flags)

    def admin(self) -> AdminClient:
        return AdminClient(self._admin, token=TOKEN)

    def states(self) -> dict[str, tuple[str, str]]:
        with self.admin() as admin:
            return {f"{one.name}/{one.version}": (one.state, one.reason) for one in admin.index() if one.name != "english"}

    def clients(self) -> dict[str, Client]:
        """A connected client of each front end."""
        found: dict[str, Client] = {}
        while len(found) < 2:
            before = {name: connections(self.pid(name), self.target) for name in ("front-0", "front-1")}
            client = self.client()
            client.classify("good")
            (name,) = [name for name, count in before.items() if connections(self.pid(name), self.target) > count]
            if found.setdefault(name, client) is not client:
                client.close()
        return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with tiny/1."""
    make_version(tmp_path / "bundles", 1)
    return tmp_path / "bundles"


@pytest.fixture
def exchanging(root: Path, tmp_path: Path) -> Iterator[Callable[..., Exchanging]]:
    with ExitStack() as started:

        def begin(*flags: str) -> Exchanging:
            server = Exchanging(tmp_path, *flags)
            started.callback(server.end)
            return server.wait_ready()

        yield begin


def not_found(call: Callable[[], object]) -> bool:
    with pytest.raises(CallFailed) as failed:
        call()
    return failed.value.code is grpc.StatusCode.NOT_FOUND


def keep_calling(client: Client) -> None:
    """Call until the front ends must have looked for models that no call uses."""
    end = time.monotonic() + 3 * DROP_S
    while time.monotonic() < end:
        client.classify("good")


def test_under_load_no_call_fails_and_each_answer_is_of_the_version_it_names(exchanging: Callable[..., Exchanging], root: Path) -> None:
    """Each swap loads a version, uses it and unloads the one before."""
    server = exchanging()
    fronts = server.clients()

    with Load(list(fronts.values()), server.target, WORDS, is_answer) as load, server.admin() as admin:
        for version in range(2, SWAPS + 2):
            make_version(root, version)
            admin.load("tiny")
            assert [client.classify("good").model.version for client in fronts.values()] == [version] * 2
            old = f"tiny/{version - 1}"
            assert [client.classify("good", model=old).model.version for client in fronts.values()] == [version - 1] * 2
            assert server.total("requests_total", model=old) > 0
            admin.unload(old)
            assert all(not_found(partial(client.classify, "good", model=old)) for client in fronts.values())
            load.wait(50)

    assert load.failures == []
    assert set(load.answered) == {*WAYS, "stream"}
    assert set(load.seen) == set(range(1, SWAPS + 2))
    assert server.states() == {f"tiny/{SWAPS + 1}": ("READY", "default")} | {
        f"tiny/{version}": ("UNAVAILABLE", "") for version in range(1, SWAPS + 1)
    }
    (described,) = fronts["front-0"].list_models().models
    assert described.id.version == SWAPS + 1
    for change in ("loaded", "used", "unloaded"):
        assert server.total("model_changes_total", change=change) == SWAPS
    assert {sample.labels["model"] for sample in server.metrics() if "model" in sample.labels} == {"", f"tiny/{SWAPS + 1}"}
    counted = server.total("requests_total", model=f"tiny/{SWAPS + 1}", method="Classify", code="OK")
    fronts["front-0"].classify("good")
    fronts["front-1"].classify("good")
    assert server.total("requests_total", model=f"tiny/{SWAPS + 1}", method="Classify", code="OK") == counted + 2
    with server.admin() as admin:
        admin.load("tiny/1", use=False)
    # It counts from zero again, as after a restart.
    assert server.total("requests_total", model="tiny/1") == 0


def test_what_runs_on_a_version_is_answered_by_it_before_it_is_unloaded(
    exchanging: Callable[..., Exchanging], root: Path, hold: Held
) -> None:
    server = exchanging("--runners", "1")
    make_version(root, 2)
    with ThreadPoolExecutor(2) as pool, server.admin() as admin, server.client() as client:
        running = pool.submit(client.classify, f"good {HELD}", timeout_s=PATIENCE_S)
        hold.wait()
        admin.load("tiny")
        unloading = pool.submit(admin.unload, "tiny/1")
        until(lambda: server.states()["tiny/1"][0] == "UNLOADING")
        after = client.classify("good")
        # The front ends look meanwhile whether its calls have ended.
        keep_calling(client)
        pending = not unloading.done() and not running.done()

        hold.release()
        held = running.result(PATIENCE_S)
        unloading.result(PATIENCE_S)

    assert pending
    assert (after.model.version, held.model.version) == (2, 1)
    assert is_answer(after, "good")
    assert is_answer(held, f"good {HELD}")


def test_front_ends_follow_what_a_new_executor_serves(exchanging: Callable[..., Exchanging], root: Path) -> None:
    """As after a restart of one process: what was loaded by hand is not loaded again, and the folders may have changed."""
    server = exchanging("--model", "tiny/1")
    fronts = server.clients()
    pids = [server.pid(name) for name in fronts]
    make_version(root, 2)
    with server.admin() as admin:
        admin.load("tiny")
    before = fronts["front-0"].classify("good", model="tiny/1").model
    shutil.rmtree(root / "tiny/1")
    make_version(root, 1, scale=5.0)

    server.kill("executor")
    for client in fronts.values():
        eventually_answers(client)

    server.url = f"http://{server.wait_for('ready', 2)['http']}"
    results = [client.classify("good") for client in fronts.values()]
    assert [server.pid(name) for name in fronts] == pids
    assert {result.model.version for result in results} == {1}
    assert {result.model.digest for result in results} != {before.digest}
    assert all(is_answer(result, "good", scale=5.0) for result in results)
    assert all(not_found(partial(client.classify, "good", model="tiny/2")) for client in fronts.values())
    assert {model for model, (state, _) in server.states().items() if state == "READY"} == {"tiny/1"}
    # Calls are counted also after the front ends have dropped the other model of this name.
    keep_calling(fronts["front-0"])
    counted = server.total("requests_total", model="tiny/1", method="Classify", code="OK")
    fronts["front-0"].classify("good")
    assert server.total("requests_total", model="tiny/1", method="Classify", code="OK") == counted + 1
