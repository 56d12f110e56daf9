"""The admin port: who is let in, what is refused, what Triton's clients send; and the command that calls it."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from sentiment.admin_client import AdminClient
from sentiment.client import CallFailed
from sentiment.errors import BadSettings, CannotServe
from sentiment.oip import inference_pb2 as oip
from sentiment.oip import inference_pb2_grpc as oip_grpc
from sentiment.settings import Settings
from tests.conftest import RunningServer, far_address
from tests.motion.conftest import TOKEN, Exchanging, make_version

Start = Callable[..., Exchanging]
BEARER = (("authorization", f"Bearer {TOKEN}"),)


def port(server: Exchanging) -> str:
    return f"127.0.0.1:{server.app._exchange.port}"


def code_of(call: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as failed:
        call()
    return failed.value.code()


def test_nobody_is_let_in_without_a_token_that_is_valid_there(exchanging: Start) -> None:
    server = exchanging()
    with grpc.insecure_channel(port(server)) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        for metadata in ((), (("authorization", "Bearer nothing-of-the-kind"),), (("authorization", TOKEN),)):
            for call, request in (
                (stub.RepositoryIndex, oip.RepositoryIndexRequest()),
                (stub.RepositoryModelLoad, oip.RepositoryModelLoadRequest(model_name="tiny")),
                (stub.RepositoryModelUnload, oip.RepositoryModelUnloadRequest(model_name="tiny/1")),
            ):
                found = code_of(lambda call=call, request=request, metadata=metadata: call(request, metadata=metadata, timeout=20))
                assert found is grpc.StatusCode.UNAUTHENTICATED


def test_the_client_sends_its_token_to_this_machine_only(exchanging: Start) -> None:
    server = exchanging(grpc_listen="0.0.0.0:0")
    address = far_address()

    # The main port, for the other listens on a loopback address only.
    with AdminClient(f"{address}:{server.app.grpc_port}", token=TOKEN) as elsewhere, pytest.raises(CallFailed) as refused:
        elsewhere.index()
    with AdminClient(f"127.0.0.1:{server.app.grpc_port}", token=TOKEN) as here, pytest.raises(CallFailed) as answered:
        here.index()

    assert (refused.value.code, answered.value.code) == (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED)


def test_the_client_reaches_a_unix_socket(exchanging: Start, tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/admin.sock"
    exchanging(admin_listen=target)

    with AdminClient(target, token=TOKEN) as admin:
        assert admin.index(ready=True)


def test_models_are_not_exchanged_on_the_main_port(exchanging: Start) -> None:
    server = exchanging()
    request = oip.RepositoryModelLoadRequest(model_name="tiny")
    with grpc.insecure_channel(server.target) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)

        found = code_of(lambda: stub.RepositoryModelLoad(request, metadata=BEARER, timeout=20))

    assert found is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("method", "request_", "says"),
    [
        ("RepositoryIndex", oip.RepositoryIndexRequest(repository_name="other"), "repository_name"),
        ("RepositoryModelLoad", oip.RepositoryModelLoadRequest(model_name="tiny", repository_name="other"), "repository_name"),
        (
            "RepositoryModelLoad",
            oip.RepositoryModelLoadRequest(model_name="tiny", parameters={"config": oip.ModelRepositoryParameter(string_param="{}")}),
            "known are use, loaded",
        ),
        (
            "RepositoryModelLoad",
            oip.RepositoryModelLoadRequest(model_name="tiny", parameters={"use": oip.ModelRepositoryParameter(int64_param=1)}),
            "no bool_param",
        ),
        (
            "RepositoryModelLoad",
            oip.RepositoryModelLoadRequest(
                model_name="tiny/1",
                parameters={
                    "use": oip.ModelRepositoryParameter(bool_param=False),
                    "loaded": oip.ModelRepositoryParameter(bool_param=True),
                },
            ),
            "asks for nothing",
        ),
        ("RepositoryModelUnload", oip.RepositoryModelUnloadRequest(parameters={"x": oip.ModelRepositoryParameter()}), "unload_dependents"),
    ],
)
def test_what_is_not_understood_is_refused(exchanging: Start, method: str, request_: object, says: str) -> None:
    server = exchanging()
    with grpc.insecure_channel(port(server)) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as failed:
            getattr(stub, method)(request_, metadata=BEARER, timeout=20)

    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert says in failed.value.details()


def test_bytes_that_are_no_message_are_refused(exchanging: Start) -> None:
    server = exchanging()
    with grpc.insecure_channel(port(server)) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/RepositoryIndex")

        assert code_of(lambda: call(b"\xff\xff", metadata=BEARER, timeout=20)) is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("model", ["nosuch", "tiny/7", "", "../tiny", "tiny/1/1", "tiny/../tiny/1", "/etc"])
def test_a_model_that_is_not_there_is_not_found(exchanging: Start, model: str) -> None:
    server = exchanging()
    with server.admin() as admin:
        for call in (admin.load, admin.use, admin.unload):
            with pytest.raises(CallFailed) as failed:
                call(model)
            assert failed.value.code is grpc.StatusCode.NOT_FOUND


def test_one_is_loaded_at_a_time_and_a_stop_does_not_wait_for_it(exchanging: Start, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that does not come back holds up neither requests nor the stop."""
    server = exchanging()
    for version in (2, 3):
        make_version(root, version)
    hangs, over = threading.Event(), threading.Event()

    def hang(_: object) -> Iterator[str]:
        hangs.set()
        over.wait(60)
        yield from ()

    monkeypatch.setattr("sentiment.model.classifier.golden_failures", hang)
    failures: list[CallFailed] = []

    def load() -> None:
        with server.admin() as admin:
            try:
                admin.load("tiny/2")
            except CallFailed as error:
                failures.append(error)

    loading = threading.Thread(target=load)
    loading.start()
    try:
        assert hangs.wait(60)
        with server.admin() as admin, server.client() as client:
            assert server.states()["tiny/2"] == ("LOADING", "")
            with pytest.raises(CallFailed, match="tiny/2 is being loaded") as failed:
                admin.load("tiny/3")
            assert failed.value.code is grpc.StatusCode.UNAVAILABLE
            assert client.classify("good").model.version == 1
        begun = time.monotonic()
        server.stop()
        assert time.monotonic() - begun < 20
    finally:
        over.set()
        loading.join(60)
    assert [failure.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED) for failure in failures] == [True]


def test_who_leaves_does_not_end_the_load_that_he_asked_for(exchanging: Start, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = exchanging()
    make_version(root, 2)
    loads, let_go, left = threading.Event(), threading.Event(), threading.Event()

    def wait(_: object) -> Iterator[str]:
        loads.set()
        let_go.wait(60)
        yield from ()

    monkeypatch.setattr("sentiment.model.classifier.golden_failures", wait)
    repository = server.app._repository
    load = repository.load

    async def loads_until_he_leaves(model: str, use: bool = True) -> None:
        try:
            await load(model, use)
        except asyncio.CancelledError:
            left.set()
            raise

    monkeypatch.setattr(repository, "load", loads_until_he_leaves)
    request = oip.RepositoryModelLoadRequest(model_name="tiny/2")
    with grpc.insecure_channel(port(server)) as channel, server.client() as client:
        try:
            call = oip_grpc.GRPCInferenceServiceStub(channel).RepositoryModelLoad.future(request, metadata=BEARER, timeout=60)
            assert loads.wait(60)
            call.cancel()
            assert left.wait(60)
            assert client.classify("good").model.version == 1
        finally:
            let_go.set()
        ends_at = time.monotonic() + 60
        while client.classify("good").model.version != 2:
            assert time.monotonic() < ends_at
            time.sleep(0.01)


def test_a_port_without_tokens_or_that_is_taken_stops_the_start(settings: Settings, exchanging: Start, tmp_path: Path) -> None:
    taken = exchanging()
    with pytest.raises(BadSettings, match="admin_tokens is empty"):
        RunningServer(settings.model_copy(update={"admin_listen": "127.0.0.1:0"}))
    with pytest.raises(BadSettings, match="nosuch"):
        RunningServer(settings.model_copy(update={"admin_listen": "127.0.0.1:0", "admin_tokens": str(tmp_path / "nosuch")}))
    with pytest.raises(CannotServe, match="cannot listen"):
        exchanging(admin_listen=port(taken))


def command(server: Exchanging, tokens: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    own = {"SENTIMENT_ADMIN_LISTEN": port(server), "SENTIMENT_ADMIN_TOKENS": str(tokens)}
    begin = [sys.executable, "-m", "sentiment", "models"]
    return subprocess.run([*begin, *arguments], check=False, capture_output=True, text=True, timeout=60, env={**os.environ, **own})


def test_the_command_lists_loads_returns_and_unloads(exchanging: Start, root: Path, tmp_path: Path) -> None:
    server = exchanging()
    make_version(root, 2)
    tokens = tmp_path / "tokens"

    def run(*arguments: str) -> tuple[int, str, str]:
        ended = command(server, tokens, *arguments)
        kept = "".join(line for line in ended.stdout.splitlines(keepends=True) if not line.startswith("english"))
        return ended.returncode, kept, ended.stderr

    assert run("list") == (0, "tiny/1                   READY        default\ntiny/2                   UNAVAILABLE\n", "")
    assert run("load", "tiny/2", "--beside") == (0, "", "")
    assert run("list")[1] == "tiny/1                   READY        default\ntiny/2                   READY\n"
    assert run("use", "tiny/2") == (0, "", "")
    assert run("unload", "tiny/1") == (0, "", "")
    assert run("list")[1] == "tiny/1                   UNAVAILABLE\ntiny/2                   READY        default\n"
    code, out, said = run("unload", "tiny/2")
    assert (code, out) == (1, "")
    assert said.startswith("error: FAILED_PRECONDITION: tiny answers requests that name no model") or "tiny/2 answers" in said


def test_the_command_says_what_is_wrong_with_its_token(exchanging: Start, tmp_path: Path) -> None:
    server = exchanging()
    wrong, empty = tmp_path / "wrong", tmp_path / "empty"
    wrong.write_text("another-token-0123456789\n")
    empty.write_text("# none\n")

    denied, without = command(server, wrong, "list"), command(server, empty, "list")

    assert (denied.returncode, without.returncode) == (1, 2)
    assert denied.stderr.startswith("error: UNAUTHENTICATED")
    assert without.stderr == f"error: {empty}: no token found\n"
