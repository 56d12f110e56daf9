"""The admin port: authentication, invalid requests, Triton's clients; and the command that calls it."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from sentiment.admin_client import AdminClient
from sentiment.cli.main import main
from sentiment.client import CallFailed, Client
from sentiment.errors import BadSettings, CannotServe
from sentiment.oip import inference_pb2 as oip
from sentiment.oip import inference_pb2_grpc as oip_grpc
from sentiment.settings import Settings
from sentiment.v1 import sentiment_pb2 as pb
from tests.conftest import RunningServer, far_address
from tests.core.lifecycle.conftest import TOKEN, Exchanging, make_version
from tests.core.servers import until

Start = Callable[..., Exchanging]
Parameter = oip.ModelRepositoryParameter
BEARER = (("authorization", f"Bearer {TOKEN}"),)


def load_with(**parameters: Parameter) -> oip.RepositoryModelLoadRequest:
    return oip.RepositoryModelLoadRequest(model_name="tiny/1", parameters=parameters)


def port(server: Exchanging) -> str:
    return f"127.0.0.1:{server.app._exchange.port}"


def code_of(call: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as failed:
        call()
    return failed.value.code()


def test_every_call_needs_a_valid_token(unchanged: Exchanging) -> None:
    with grpc.insecure_channel(port(unchanged)) as channel:
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


def test_the_main_port_does_not_change_models(unchanged: Exchanging) -> None:
    request = oip.RepositoryModelLoadRequest(model_name="tiny")
    with grpc.insecure_channel(unchanged.target) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)

        found = code_of(lambda: stub.RepositoryModelLoad(request, metadata=BEARER, timeout=20))

    assert found is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("method", "request_", "says"),
    [
        ("RepositoryIndex", oip.RepositoryIndexRequest(repository_name="other"), "repository_name"),
        ("RepositoryModelLoad", oip.RepositoryModelLoadRequest(model_name="tiny", repository_name="other"), "repository_name"),
        ("RepositoryModelLoad", load_with(config=Parameter(string_param="{}")), "expected use, loaded"),
        ("RepositoryModelLoad", load_with(use=Parameter(int64_param=1)), "must be a bool_param"),
        ("RepositoryModelLoad", load_with(use=Parameter(bool_param=False), loaded=Parameter(bool_param=True)), "nothing to do"),
        ("RepositoryModelUnload", oip.RepositoryModelUnloadRequest(parameters={"x": Parameter()}), "unload_dependents"),
    ],
)
def test_an_unknown_argument_is_refused(unchanged: Exchanging, method: str, request_: object, says: str) -> None:
    with grpc.insecure_channel(port(unchanged)) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as failed:
            getattr(stub, method)(request_, metadata=BEARER, timeout=20)

    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert says in failed.value.details()


def test_bytes_that_are_not_a_message_are_refused(unchanged: Exchanging) -> None:
    with grpc.insecure_channel(port(unchanged)) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/RepositoryIndex")

        assert code_of(lambda: call(b"\xff\xff", metadata=BEARER, timeout=20)) is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("model", ["nosuch", "tiny/7", "", "../tiny", "tiny/1/1", "tiny/../tiny/1", "/etc"])
def test_a_model_that_does_not_exist_is_not_found(unchanged: Exchanging, model: str) -> None:
    with unchanged.admin() as admin:
        for call in (admin.load, admin.use, admin.unload):
            with pytest.raises(CallFailed) as failed:
                call(model)
            assert failed.value.code is grpc.StatusCode.NOT_FOUND


Events = tuple[threading.Event, threading.Event]


@pytest.fixture
def hold_loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Events]]:
    """Let further loads wait at the golden set. Two events: a load has begun, and loads may go on (set at the end)."""
    begun, let_go = threading.Event(), threading.Event()

    def wait(_: object) -> Iterator[str]:
        begun.set()
        let_go.wait(60)
        yield from ()

    def hold() -> Events:
        monkeypatch.setattr("sentiment.model.classifier.golden_failures", wait)
        return begun, let_go

    yield hold
    let_go.set()


def test_one_model_is_loaded_at_a_time_and_a_stop_does_not_wait_for_it(
    exchanging: Start, root: Path, hold_loads: Callable[[], Events]
) -> None:
    """A graph whose run never ends delays neither requests nor the stop."""
    server = exchanging()
    for version in (2, 3):
        make_version(root, version)
    begun, let_go = hold_loads()
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
        assert begun.wait(60)
        with server.admin() as admin, server.client() as client:
            assert server.states()["tiny/2"] == ("LOADING", "")
            with pytest.raises(CallFailed, match="tiny/2 is being loaded") as failed:
                admin.load("tiny/3")
            assert failed.value.code is grpc.StatusCode.UNAVAILABLE
            assert client.classify("good").model.version == 1
        server.stop()
        assert not let_go.is_set()
    finally:
        let_go.set()
        loading.join(60)
    assert [failure.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED) for failure in failures] == [True]


def test_a_load_goes_on_when_its_caller_leaves(
    exchanging: Start, root: Path, monkeypatch: pytest.MonkeyPatch, hold_loads: Callable[[], Events]
) -> None:
    server = exchanging()
    make_version(root, 2)
    begun, let_go = hold_loads()
    left = threading.Event()
    repository = server.lifecycle
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
        call = oip_grpc.GRPCInferenceServiceStub(channel).RepositoryModelLoad.future(request, metadata=BEARER, timeout=60)
        assert begun.wait(60)
        call.cancel()
        assert left.wait(60)
        assert client.classify("good").model.version == 1
        let_go.set()
        until(lambda: client.classify("good").model.version == 2, "version 2 is in use")


def test_a_port_without_tokens_or_that_is_taken_stops_the_start(settings: Settings, exchanging: Start, tmp_path: Path) -> None:
    taken = exchanging()
    with pytest.raises(BadSettings, match="needs admin_tokens"):
        RunningServer(settings.model_copy(update={"admin_listen": "127.0.0.1:0"}))
    with pytest.raises(BadSettings, match="nosuch"):
        RunningServer(settings.model_copy(update={"admin_listen": "127.0.0.1:0", "admin_tokens": str(tmp_path / "nosuch")}))
    with pytest.raises(CannotServe, match="cannot listen"):
        exchanging(admin_listen=port(taken))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run ``sentiment models`` with a server; returns its exit code, its output on tiny, and its standard error."""

    def run(server: Exchanging, tokens: Path | str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("SENTIMENT_ADMIN_LISTEN", port(server))
        monkeypatch.setenv("SENTIMENT_ADMIN_TOKENS", str(tokens))
        capsys.readouterr()
        code = main(["models", *arguments])
        out, errors = capsys.readouterr()
        own = [line for line in out.splitlines(keepends=True) if line.startswith("tiny")]
        return code, "".join(own), "".join(line for line in errors.splitlines(keepends=True) if line.startswith("error: "))

    return run


def test_the_command_lists_loads_selects_and_unloads(
    exchanging: Start, root: Path, tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    server = exchanging()
    make_version(root, 2)

    def run(*arguments: str) -> tuple[int, str, str]:
        return command(server, tmp_path / "tokens", *arguments)

    assert run("list") == (0, "tiny/1                   READY        default\ntiny/2                   UNAVAILABLE\n", "")
    assert run("load", "tiny/2", "--beside") == (0, "", "")
    assert run("list")[1] == "tiny/1                   READY        default\ntiny/2                   READY\n"
    assert run("use", "tiny/2") == (0, "", "")
    assert run("unload", "tiny/1") == (0, "", "")
    assert run("list")[1] == "tiny/1                   UNAVAILABLE\ntiny/2                   READY        default\n"
    code, out, reason = run("unload", "tiny/2")
    assert (code, out) == (1, "")
    assert reason.startswith("error: FAILED_PRECONDITION: tiny/2 serves requests that name no model")


def test_the_command_says_what_is_wrong_with_its_token(
    unchanged: Exchanging, tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    wrong, empty = tmp_path / "wrong", tmp_path / "empty"
    wrong.write_text("another-token-0123456789\n")
    empty.write_text("# none\n")

    denied, without = command(unchanged, wrong, "list"), command(unchanged, empty, "list")

    assert (denied[0], without[0]) == (1, 2)
    assert denied[2].startswith("error: UNAUTHENTICATED")
    assert without[2] == f"error: {empty}: has no token\n"


def test_the_command_lists_by_the_grpc_port_what_is_loaded(
    unchanged: Exchanging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("SENTIMENT_ADMIN_LISTEN", "SENTIMENT_ADMIN_TOKENS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "tokens").write_text(TOKEN)
    monkeypatch.setenv("SENTIMENT_TARGET", unchanged.target)

    codes = [main(["models", "list"]), main(["models", "list", "--target", unchanged.target, "--tokens", str(tmp_path / "tokens")])]

    one = "tiny/1                   READY        default; labels negative, positive; 32 tokens; fp32\n"
    assert (codes, capsys.readouterr().out) == ([0, 0], one * 2)


@pytest.mark.parametrize(
    ("precision", "invariance", "told"),
    [("fp16", 2e-3, ""), ("fp16", 3e-3, "; batch mates change a probability by up to 0.003"), ("int8", 1e-4, ""), ("int8", 2e-3, "0.002")],
)
def test_the_list_has_what_batch_mates_change_beyond_rounding_in_the_precision(
    precision: str, invariance: float, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = pb.ListModelsResponse(models=[pb.Model(classify_graph=pb.Graph(precision=precision, invariance=invariance))])
    monkeypatch.setattr(Client, "list_models", lambda _: listed)

    assert main(["models", "list", "--target", "localhost:1"]) == 0

    said = capsys.readouterr().out.strip()
    assert said.endswith(told or precision)


def test_a_command_at_the_wrong_port_says_so(
    unchanged: Exchanging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("SENTIMENT_ADMIN_LISTEN", "SENTIMENT_ADMIN_TOKENS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "tokens").write_text(TOKEN)

    codes = [
        main(["models", "load", "tiny", "--target", unchanged.target, "--token-file", str(tmp_path / "tokens")]),
        main(["models", "list", "--target", port(unchanged)]),
        main(["models", "use", "tiny/1"]),
    ]

    said = capsys.readouterr().err.splitlines()
    assert codes == [1, 1, 2]
    assert said[0].endswith(f"{unchanged.target} is not an admin port; give it with --target or SENTIMENT_ADMIN_LISTEN")
    assert said[1].endswith("lists no models without its token; give --token-file FILE, or for an admin port SENTIMENT_ADMIN_TOKENS")
    assert said[2] == "error: the admin port needs a token: use --token-file FILE or set SENTIMENT_ADMIN_TOKENS"
