"""What the clients refuse themselves, with the message that the server would give: texts that protobuf cannot encode, each alone."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from sentiment import Local
from sentiment.client import AsyncClient, CallFailed, Classification, Client, Result
from tests.conftest import RunningServer

NO_UNICODE = "caf\udce9"
REASON = "text: has a lone surrogate at code point 3; Unicode text has none"
OF_PAIR = REASON.replace("text", "text_pair", 1)
FAILED = f"INVALID_ARGUMENT {REASON}"
# A batch and its results; one of invalid texts alone is not sent.
BATCHES = [([NO_UNICODE, "good", NO_UNICODE, "bad"], [FAILED, "positive", FAILED, "negative"]), ([NO_UNICODE] * 2, [FAILED] * 2)]


def kinds(results: list[Result]) -> list[str]:
    return [result.label if isinstance(result, Classification) else f"{result.code.name} {result.message}" for result in results]


@pytest.mark.parametrize(
    ("texts", "reason"), [((NO_UNICODE,), REASON), (("good", NO_UNICODE), OF_PAIR), ((NO_UNICODE, "good"), REASON)], ids=str
)
def test_a_call_with_an_invalid_text_fails_as_invalid_argument(client: Client, texts: tuple[str, ...], reason: str) -> None:
    with pytest.raises(CallFailed) as caught:
        client.classify(*texts)

    assert (caught.value.code, caught.value.message) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    assert [violation.field for violation in caught.value.violations] == [reason.partition(":")[0]]


@pytest.mark.parametrize(("texts", "expected"), BATCHES, ids=["among others", "alone"])
def test_an_invalid_text_of_a_batch_fails_in_its_place(client: Client, texts: list[str], expected: list[str]) -> None:
    assert kinds(client.classify_batch(texts)) == expected


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda client: client.classify("good", explain=True),
            "explain must be ExplainOptions, such as explain=ExplainOptions(), got bool",
        ),
        (lambda client: client.explain("good", options={}), "options must be ExplainOptions, such as options=ExplainOptions(), got dict"),
        (lambda client: Client(3), "target must be a string such as HOST:PORT, got int"),
    ],
    ids=["explain", "options", "target"],
)
def test_an_argument_of_another_type_is_refused_with_the_expected_type(call: Callable[[Any], object], says: str, client: Client) -> None:
    with pytest.raises(TypeError) as wrong:
        call(client)

    assert str(wrong.value) == says


def test_an_empty_batch_is_sent_and_refused_by_the_server(client: Client) -> None:
    with pytest.raises(CallFailed, match="items: must have 1 to 1024 items, got 0"):
        client.classify_batch([])


def test_classify_all_keeps_invalid_texts_in_their_places(client: Client) -> None:
    texts = [NO_UNICODE if number % 100 == 50 else "good" for number in range(400)]

    labels = kinds(list(client.classify_all(texts)))

    assert labels == [FAILED if text == NO_UNICODE else "positive" for text in texts]


@pytest.mark.parametrize(
    ("error", "text", "message"), [(CallFailed, NO_UNICODE, REASON), (KeyError, None, "raised by the items")], ids=["text", "exception"]
)
async def test_an_error_of_the_items_ends_the_stream_and_reaches_the_caller(
    server: RunningServer, error: type[Exception], text: str | None, message: str
) -> None:
    async def items() -> AsyncIterator[tuple[str, str]]:
        yield "1", "good"
        if text is None:
            raise KeyError(message)
        yield "2", text

    async with AsyncClient(server.target) as client:
        with pytest.raises(error, match=message):
            async for _ in client.classify_stream(items(), timeout_s=10):
                pass


@pytest.mark.parametrize(
    ("item", "error"), [(7, "text: must be a string, got int"), (["a", "b", "c"], "text: must be a string, got list")], ids=str
)
async def test_values_that_are_not_texts_are_refused_in_feedback_and_streams(
    item: object, error: str, client: Client, server: RunningServer
) -> None:
    error = f"text: must be a string, got {type(item).__name__}"

    async def items() -> AsyncIterator[tuple[str, object]]:
        yield "1", item

    with pytest.raises(CallFailed, match=error):
        client.feedback("positive", item)  # type: ignore[arg-type]  # what is tested
    async with AsyncClient(server.target) as asyncio_client:
        with pytest.raises(CallFailed, match=error):
            async for _ in asyncio_client.classify_stream(items(), timeout_s=10):  # type: ignore[arg-type]  # as above
                pass


@pytest.mark.parametrize("request_id", ["caf\u00e9", "x" * 129, "two\nlines"], ids=["not ASCII", "too long", "not printable"])
def test_a_request_id_that_no_server_keeps_is_refused(request_id: str, client: Client, bundles: Path) -> None:
    wrong = pytest.raises(ValueError, match=f"request_id must have 1 to 128 printable ASCII characters, got {len(request_id)} characters")
    with Local("tiny", bundles=bundles) as local:
        for either in (client, local):
            with wrong:
                either.classify("good", request_id=request_id)
            with wrong:
                either.classify_batch(["good"], request_id=request_id)
