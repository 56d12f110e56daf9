"""``explain_all``, and ``explain`` of what is not one text. Its results stand in test_local.py."""

import itertools
from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc
import pytest

from sentiment.client import AsyncClient, CallFailed, Client, ExplainOptions, Explanation
from sentiment.v1 import sentiment_pb2 as pb
from tests.conftest import RunningServer

OPTIONS = ExplainOptions(methods=["occlusion"])


def told(found: Explanation | CallFailed) -> str:
    return found.label if isinstance(found, Explanation) else found.message


@pytest.mark.parametrize("several", [["a", "b"], ("a", "b"), 5, b"good", None], ids=repr)
def test_one_explanation_is_not_asked_of_what_is_not_one_text(several: object, client: Client) -> None:
    with pytest.raises(TypeError, match=f"text must be a string, got {type(several).__name__}; for several texts call explain_all"):
        client.explain(several)  # type: ignore[arg-type]  # what is tested


def test_texts_are_read_and_explained_one_at_a_time(client: Client) -> None:
    read = itertools.count()
    texts = ("good film" for _ in iter(lambda: next(read), -1))

    found = list(itertools.islice(client.explain_all(texts, options=OPTIONS), 3))

    assert [told(one) for one in found] == ["positive"] * 3
    assert next(read) == 3


async def test_texts_of_an_asynchronous_source_are_explained_in_order(server: RunningServer) -> None:
    async def texts() -> AsyncIterator[str | None]:
        for text in ("good", None, "awful"):
            yield text

    async with AsyncClient(server.target) as client, aclosing(client.explain_all(texts(), options=OPTIONS)) as explanations:
        found = [told(one) async for one in explanations]

    assert found == ["positive", "text: is missing (None)", "negative"]


async def test_a_text_that_a_busy_server_refuses_is_sent_again(
    server: RunningServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = itertools.count()
    real = Client._explanation

    def refuse(self: Client, request: pb.ExplainRequest, timeout_s: float) -> Explanation:
        if request.text == "refused" or next(refusals) == 0:
            raise CallFailed(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{request.text} is too much", retry_after_s=0.0)
        return real(self, request, timeout_s)

    monkeypatch.setattr(Client, "_explanation", refuse)

    found = [told(one) for one in client.explain_all(["good", "refused", "bad"], options=OPTIONS, attempts_max=2)]

    assert found == ["positive", "refused is too much", "negative"]
