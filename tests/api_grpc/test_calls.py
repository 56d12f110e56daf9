"""What all methods share: malformed messages, request ids, and server faults."""

import json

import grpc
import pytest
import structlog

from sentiment.client import CallFailed
from sentiment.v1 import sentiment_pb2 as pb
from tests.api_grpc.gate import Start, served_by, total
from tests.conftest import NO_RETRIES, RunningServer

Code = grpc.StatusCode


def test_a_bug_is_internal_says_nothing_of_internals_and_is_logged_under_its_request_id(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    monkeypatch.setattr(served_by(server).classifier.tokenizer, "encode_short", lambda *_: 1 / 0)

    with structlog.testing.capture_logs() as logs, server.client() as client, pytest.raises(CallFailed) as caught:
        client.classify("good")

    logged = next(entry for entry in logs if entry["event"] == "call_failed")
    assert caught.value.code is Code.INTERNAL
    assert caught.value.request_id == logged["request_id"]
    assert caught.value.message == f"internal error; see the server's log for request id {logged['request_id']}"
    assert server.metric("sentiment_requests_total", method="Classify", code="INTERNAL", model="tiny/1") == 1
    assert server.metric("sentiment_items_total", method="Classify", code="INTERNAL", model="tiny/1") == 1


@pytest.mark.parametrize(("sent", "kept"), [("abc-123", True), ("x" * 129, False), ("", False)])
def test_the_clients_request_id_is_kept_if_it_is_one(server: RunningServer, sent: str, kept: bool) -> None:
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel, pytest.raises(grpc.RpcError) as caught:
        call = channel.unary_unary("/sentiment.v1.SentimentService/Classify")
        call(pb.ClassifyRequest().SerializeToString(), metadata=(("x-request-id", sent),))

    found = dict(caught.value.trailing_metadata())["x-request-id"]
    assert (found == sent) is kept
    assert 0 < len(found) <= 128


def test_ids_that_the_server_gives_tell_nothing_of_each_other(server: RunningServer) -> None:
    def given() -> int:
        with pytest.raises(CallFailed) as caught:
            client.classify("")
        return int(caught.value.request_id, 16)

    with server.client() as client:
        ids = [given() for _ in range(40)]

    # Each of 128 bits is 0 in one and 1 in another; by chance it is not once in 2**32 runs.
    zeros, ones = 2**128 - 1, 2**128 - 1
    for one in ids:
        zeros, ones = zeros & one, ones & ~one
    assert (zeros, ones) == (0, 0)


def test_a_failing_model_fails_only_the_text_that_it_fails_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    session = served_by(server).classifier.session
    run = session.run
    poison = served_by(server).classifier.tokenizer.encode("awful").ids[1]

    def fail_on_poison(feeds, stop=None):
        if (feeds["input_ids"] == poison).any():
            raise RuntimeError("kernel failed")
        return run(feeds, stop)

    monkeypatch.setattr(session, "run", fail_on_poison)
    texts = ["good"] * 40
    texts[17] = "awful"

    with server.client() as client:
        results = client.classify_batch(texts)

    codes = [result.code if isinstance(result, CallFailed) else result.label for result in results]
    assert codes == [Code.INTERNAL if number == 17 else "positive" for number in range(40)]
    assert "kernel" not in str(results[17])


def test_logits_that_are_not_numbers_are_a_failure_and_not_an_answer(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    session = served_by(server).classifier.session
    run = session.run
    monkeypatch.setattr(session, "run", lambda feeds, stop=None: run(feeds, stop) * float("nan"))

    with server.client() as client, pytest.raises(CallFailed) as caught:
        client.classify("good")

    assert caught.value.code is Code.INTERNAL
    json.dumps(caught.value.message)


# A method and an empty entry of one of its lists or texts.
METHODS = [
    ("sentiment.v1.SentimentService/Classify", b"\x0a\x00"),
    ("sentiment.v1.SentimentService/ClassifyBatch", b"\x0a\x00"),
    ("sentiment.v1.SentimentService/ClassifyStream", b"\x12\x00"),
    ("sentiment.v1.SentimentService/Explain", b"\x32\x00"),
    ("inference.GRPCInferenceService/ModelInfer", b"\x3a\x00"),
]


@pytest.mark.parametrize(("method", "entry"), METHODS)
def test_a_message_that_cannot_be_parsed_is_invalid_and_counted(server: RunningServer, method: str, entry: bytes) -> None:
    """Not protobuf, invalid UTF-8, cut off, and more fields than the limit, which is found before the message is parsed."""
    labels = {"method": method.partition("/")[2], "code": "INVALID_ARGUMENT", "model": ""}
    too_many = "the message has more than 8192 fields and list entries"
    malformed = {b"\xff\xff": "", b"\x0a\x02\xff\xfe": "", b"\x0a\xff\xff\xff\xff\x0f": "", entry * 2**20: too_many}
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        for number, (data, message) in enumerate(malformed.items(), 1):
            before = total(server, "requests", **labels)

            with pytest.raises(grpc.RpcError) as caught:
                list(channel.stream_stream(f"/{method}")(iter([data]), timeout=30))

            assert caught.value.code() is Code.INVALID_ARGUMENT, number
            assert message in caught.value.details()
            assert total(server, "requests", **labels) == before + 1
