"""Texts that no message can carry: each fails alone, as the server would have said it."""

from collections.abc import AsyncIterator

import grpc
import pytest

from sentiment.client import AsyncClient, CallFailed, Classification, Client, Result
from tests.conftest import RunningServer

NO_UNICODE = "caf\udce9"
REASON = "text: has a lone surrogate at code point 3; Unicode text has none"


def kinds(results: list[Result]) -> list[str]:
    return [result.label if isinstance(result, Classification) else f"{result.code.name} {result.message}" for result in results]


def test_a_call_with_such_a_text_is_invalid(client: Client) -> None:
    for text, pair in ((NO_UNICODE, None), ("good", NO_UNICODE)):
        with pytest.raises(CallFailed) as caught:
            client.classify(text, pair)

        assert (caught.value.code, caught.value.message) == (grpc.StatusCode.INVALID_ARGUMENT, REASON)
        assert [violation.field for violation in caught.value.violations] == ["text"]


def test_in_a_batch_it_leaves_the_others_alone(client: Client) -> None:
    results = client.classify_batch([NO_UNICODE, "good", NO_UNICODE, "bad"])

    assert kinds(results) == [f"INVALID_ARGUMENT {REASON}", "positive", f"INVALID_ARGUMENT {REASON}", "negative"]


def test_a_batch_of_nothing_else_is_answered_too(client: Client) -> None:
    assert kinds(client.classify_batch([NO_UNICODE] * 2)) == [f"INVALID_ARGUMENT {REASON}"] * 2


def test_an_empty_batch_is_still_the_servers_to_refuse(client: Client) -> None:
    with pytest.raises(CallFailed, match="items: has 0 items"):
        client.classify_batch([])


def test_among_any_number_of_texts_it_stays_in_its_place(client: Client) -> None:
    texts = [NO_UNICODE if number % 100 == 50 else "good" for number in range(400)]

    labels = kinds(list(client.classify_all(texts)))

    assert labels == [f"INVALID_ARGUMENT {REASON}" if number % 100 == 50 else "positive" for number in range(400)]


async def test_the_asyncio_client_does_the_same(server: RunningServer) -> None:
    async with AsyncClient(server.target) as client:
        mixed = await client.classify_batch([NO_UNICODE, "good"])
        alone = await client.classify_batch([NO_UNICODE])
        with pytest.raises(CallFailed) as caught:
            await client.classify(NO_UNICODE)

    assert kinds(mixed) == [f"INVALID_ARGUMENT {REASON}", "positive"]
    assert kinds(alone) == [f"INVALID_ARGUMENT {REASON}"]
    assert caught.value.message == REASON


async def test_in_a_stream_it_ends_the_stream_and_is_no_cancelling(server: RunningServer) -> None:
    async def items() -> AsyncIterator[tuple[str, str]]:
        yield "1", "good"
        yield "2", NO_UNICODE

    async with AsyncClient(server.target) as client:
        with pytest.raises(CallFailed) as caught:
            async for _ in client.classify_stream(items(), timeout_s=10):
                pass

    assert caught.value.message == REASON


async def test_what_the_items_of_a_stream_raise_is_raised_to_its_caller(server: RunningServer) -> None:
    async def items() -> AsyncIterator[tuple[str, str]]:
        yield "1", "good"
        raise KeyError("the caller's own")

    async with AsyncClient(server.target) as client:
        with pytest.raises(KeyError, match="the caller's own"):
            async for _ in client.classify_stream(items(), timeout_s=10):
                pass
