"""Who may call through Envoy, how much, and what becomes of the calls."""

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from sentiment.client import AsyncClient, CallFailed, Client
from sentiment.oip import inference_pb2 as oip
from sentiment.oip import inference_pb2_grpc as oip_grpc
from tests.conftest import NO_RETRIES, PLAIN, RunningServer
from tests.deploy.envoy.conftest import Fleet, answered, targets
from tests.deploy.envoy.proxy import Proxy
from tests.deploy.envoy.tokens import Issuer, unsigned

pytestmark = [pytest.mark.needs_tool("envoy"), pytest.mark.needs_tool("openssl")]
Code = grpc.StatusCode
CALLS = 600


def code_of(client: Client) -> grpc.StatusCode:
    try:
        client.classify("good")
    except CallFailed as error:
        return error.code
    return Code.OK


def test_our_own_clients_work_unchanged_with_a_token(proxy: Proxy) -> None:
    with proxy.client() as client:
        assert client.classify("a good film").label == "positive"
        assert [one.label for one in client.classify_batch(["good", "bad"])] == ["positive", "negative"]


async def test_streams_and_tensors_go_through(proxy: Proxy) -> None:
    texts = ["good", "bad", "great film", "awful"] * 25
    async with AsyncClient(proxy.target, credentials=proxy.credentials()) as client:

        async def items() -> AsyncIterator[tuple[str, str]]:
            for index, text in enumerate(texts):
                yield str(index), text

        found = {int(key): answer.label async for key, answer in client.classify_stream(items())}
    async with grpc.aio.secure_channel(proxy.target, proxy.credentials()) as channel:
        tensor = oip.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
        request = oip.ModelInferRequest(model_name="tiny", inputs=[tensor], raw_input_contents=[b"\4\0\0\0good"])
        response = await oip_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)

    assert [found[index] for index in range(len(texts))] == ["positive", "negative"] * 50
    assert response.raw_output_contents[0] == b"\x08\0\0\0positive"


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (lambda issuer: "no.token", Code.UNAUTHENTICATED),
        (lambda issuer: Issuer().token(), Code.UNAUTHENTICATED),
        (lambda issuer: unsigned(issuer.token()), Code.UNAUTHENTICATED),
        (lambda issuer: issuer.token(exp=int(time.time()) - 3600), Code.UNAUTHENTICATED),
        (lambda issuer: issuer.token(exp=None), Code.UNAUTHENTICATED),
        (lambda issuer: issuer.token(iss="https://another.example"), Code.UNAUTHENTICATED),
        (lambda issuer: issuer.token(aud="another service"), Code.PERMISSION_DENIED),
    ],
    ids=["garbage", "another-key", "unsigned", "expired", "for-ever", "another-issuer", "another-audience"],
)
def test_a_token_that_is_not_good_is_refused(proxy: Proxy, fleet: Fleet, made: Callable[[Issuer], str], code: grpc.StatusCode) -> None:
    before = sum(answered(server) for server in fleet["stable"])

    with proxy.client(made(proxy.issuer)) as client:
        assert code_of(client) is code

    assert sum(answered(server) for server in fleet["stable"]) == before


def test_without_a_token_one_may_ask_for_health_and_nothing_else(proxy: Proxy) -> None:
    with grpc.secure_channel(proxy.target, grpc.ssl_channel_credentials(proxy.certificate.read_bytes())) as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=10)
    assert caught.value.code() is Code.UNAUTHENTICATED


@pytest.mark.parametrize("path", ["/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/grpc.health.v1.Health/Watch", "/x.Y/Z"])
def test_a_method_without_a_route_is_unimplemented(proxy: Proxy, path: str) -> None:
    with grpc.secure_channel(proxy.target, proxy.credentials()) as channel, pytest.raises(grpc.RpcError) as caught:
        list(channel.unary_stream(path)(b"", timeout=10))
    assert caught.value.code() is Code.UNIMPLEMENTED


def test_an_answers_status_and_details_come_through(proxy: Proxy) -> None:
    with proxy.client() as client, pytest.raises(CallFailed) as caught:
        client.classify(" ")
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert caught.value.violations[0].field == "text"
    assert caught.value.request_id


def test_a_client_has_its_quota_whatever_it_says_of_itself(proxy: Proxy) -> None:
    token = proxy.issuer.token("trial")
    forged = [("x-client", "another"), ("x-client", "trial2")]
    codes = []
    with grpc.secure_channel(proxy.target, proxy.credentials(token), NO_RETRIES) as channel:
        classify = channel.unary_unary("/sentiment.v1.SentimentService/Classify")
        for number in range(8):
            try:
                classify(b"\x0a\4good", timeout=10, metadata=forged[: number % 3])
                codes.append(Code.OK)
            except grpc.RpcError as error:
                codes.append(error.code())

    # Five, and one more if they took 12 s.
    assert codes[:5] == [Code.OK] * 5
    assert codes.count(Code.RESOURCE_EXHAUSTED) >= 2
    with proxy.client() as client:
        assert code_of(client) is Code.OK


def quotas(configuration: Any) -> Any:
    """The filter that keeps them."""
    (listener,) = configuration["static_resources"]["listeners"]
    filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    (found,) = [one["typed_config"] for one in filters if one["name"] == "envoy.filters.http.local_ratelimit"]
    return found


def test_each_client_without_a_quota_of_its_own_has_one_too(fleet: Fleet, begin: Callable[..., Proxy]) -> None:
    def tighten(configuration: Any) -> None:
        (everybody,) = [one for one in quotas(configuration)["descriptors"] if "value" not in one["entries"][0]]
        everybody["token_bucket"] = {"max_tokens": 2, "tokens_per_fill": 1, "fill_interval": "3600s"}

    proxy = begin(targets(fleet), tighten)
    codes = {}
    with grpc.secure_channel(proxy.target, grpc.ssl_channel_credentials(proxy.certificate.read_bytes())) as channel:
        for _ in range(4):  # calls of health cannot spend it
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10, metadata=[("x-client", "one")])
    for name in ("one", "other"):
        with proxy.client(proxy.issuer.token(name), options=PLAIN) as client:
            codes[name] = [code_of(client) for _ in range(4)]

    assert codes == dict.fromkeys(("one", "other"), [Code.OK] * 2 + [Code.RESOURCE_EXHAUSTED] * 2)


def test_calls_are_spread_evenly_in_turn(proxy: Proxy, fleet: Fleet) -> None:
    before = [answered(server) for server in fleet["stable"]]
    proxy.set(canary__sentiment__canary=0)
    with proxy.client() as client:
        for _ in range(40):
            client.classify("good")
    proxy.set(canary__sentiment__canary="")

    assert [answered(server) - old for server, old in zip(fleet["stable"], before, strict=True)] == [20, 20]


def unlimited(configuration: Any) -> None:
    """Quotas off: a test calls faster than one client may."""
    quotas(configuration)["filter_enforced"]["default_value"]["numerator"] = 0


def test_the_canary_gets_its_part_and_the_mirror_copies(fleet: Fleet, begin: Callable[..., Proxy]) -> None:
    """Of 600 calls 30 go to the canary, give or take five standard deviations; then all, without a restart."""
    proxy = begin(targets(fleet), unlimited)
    (canary,), (mirror,) = fleet["canary"], fleet["mirror"]
    before = answered(canary), answered(mirror)
    with proxy.client() as client:
        for _ in range(CALLS):
            client.classify("good")
        at_5 = answered(canary) - before[0]
        assert 3 <= at_5 <= 57
        # One in a hundred: 6, give or take six standard deviations.
        assert answered(mirror) - before[1] <= 21

        proxy.set(canary__sentiment__canary=100, canary__sentiment__stable=0, mirror__sentiment=100)
        before = answered(canary), answered(mirror)
        for _ in range(50):
            client.classify("good")

    assert answered(canary) - before[0] == 50
    proxy.until(lambda: answered(mirror) - before[1] == 50)


def test_a_failed_mirror_does_not_affect_calls(fleet: Fleet, begin: Callable[..., Proxy], start: Callable[..., RunningServer]) -> None:
    mirror = start()
    proxy = begin({**targets(fleet), "mirror": [mirror.target]})
    proxy.set(mirror__sentiment=100)
    mirror.stop()

    with proxy.client(options=NO_RETRIES) as client:
        assert [code_of(client) for _ in range(20)] == [Code.OK] * 20
