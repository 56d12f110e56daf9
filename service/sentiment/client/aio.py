"""The asyncio client."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import grpc

from sentiment.client import requests
from sentiment.client.explain_options import ExplainOptions
from sentiment.client.explanation_reader import Reader, explained_of
from sentiment.client.explanations import Explanation
from sentiment.client.policy import ATTEMPTS_MAX, EXPLAIN_TIMEOUT_S, backoff_s, channel_options
from sentiment.client.requests import TextOrPair
from sentiment.client.results import REQUEST_ID, CallFailed, Classification, FeedbackTaken, Result, failure_of_rpc, feedback_of, result_of
from sentiment.client.sync import DEFAULT_TARGET
from sentiment.security.client_credentials import Credentials
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc

R = TypeVar("R")
# The message that grpc.aio reports if the server ends a stream while the client writes; servers never send it.
ENDED_WHILE_WRITING = "Internal error from Core"


class AsyncClient:
    """Like ``Client``, for asyncio. Create and use it in one event loop."""

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout_s: float = 5.0,
        credentials: grpc.ChannelCredentials | Credentials | None = None,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        """Connect lazily; arguments as in ``Client``."""
        if isinstance(credentials, Credentials):
            credentials = credentials.for_grpc()
        arguments = list({**dict(channel_options()), **dict(options)}.items())
        self._channel = (
            grpc.aio.secure_channel(target, credentials, arguments) if credentials else grpc.aio.insecure_channel(target, arguments)
        )
        # The stub class is typed for both kinds of channel.
        self._stub = cast(Any, pb_grpc.SentimentServiceStub(self._channel))
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Calls in progress fail."""
        await self._channel.close()

    async def classify(
        self,
        text: str,
        text_pair: str | None = None,
        *,
        model: str = "",
        truncation: str = "",
        priority: str = "",
        explain: ExplainOptions | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> Classification:
        """Classify one text or pair. Cancelling the task removes the request from the server's queue.

        ``model``: name or name/version. ``truncation``: refuse, head, head_tail or windows. ``priority``: interactive or bulk. Empty
        strings mean the default. ``explain``: explanation to add to the answer, which must fit one message (``explain`` has no such limit);
        the default timeout is then 30 s. ``request_id``: names the call in the server's log and journal, in 1 to 128 printable ASCII
        characters.

        Raises:
            CallFailed: the call failed; ``code`` says why.
        """
        item = text if text_pair is None else (text, text_pair)
        request = requests.one(item, requests.Options(model, truncation, priority), explain)
        if explain is not None and timeout_s is None:
            timeout_s = EXPLAIN_TIMEOUT_S
        return explained_of(await self._call(self._stub.Classify, request, timeout_s, request_id), text, text_pair)

    async def explain(
        self,
        text: str,
        text_pair: str | None = None,
        *,
        model: str = "",
        label: str = "",
        options: ExplainOptions | None = None,
        truncation: str = "",
        timeout_s: float = EXPLAIN_TIMEOUT_S,
    ) -> Explanation:
        """Explain the answer to one text or pair. The server gives classification requests priority over explanations.

        ``label``: the label whose logit is explained; empty: the predicted label. ``options``: what to explain; None: an attribution with
        evidence. Parts that do not fit into the timeout are left out, and ``Explanation.summary`` says so. ``truncation``: refuse, head or
        head_tail; empty: the model's default.

        Raises:
            CallFailed: the explanation is not complete; ``code`` says why.
        """
        item = text if text_pair is None else (text, text_pair)
        request = requests.explanation(item, requests.Options(model, truncation), label, options)
        reader = Reader(text, text_pair)
        async with aclosing(self._explained(request, timeout_s)) as messages:
            async for message in messages:
                reader.take(message)
        return reader.explanation()

    async def classify_batch(
        self,
        texts: Sequence[TextOrPair],
        *,
        model: str = "",
        truncation: str = "",
        priority: str = "",
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> list[Result]:
        """Classify up to 1,024 texts in one call. Results are in input order; the result of a failed item is a CallFailed.

        ``request_id``: as in ``classify``.

        Raises:
            CallFailed: the whole call failed.
        """
        batch = requests.Batch(texts, requests.Options(model, truncation, priority))
        if texts and not batch.sent:
            return batch.results([])
        response = await self._call(self._stub.ClassifyBatch, batch.request, timeout_s, request_id)
        return batch.results(map(result_of, response.results))

    async def classify_stream(
        self,
        items: AsyncIterable[tuple[str, TextOrPair]],
        *,
        model: str = "",
        truncation: str = "",
        priority: str = "",
        timeout_s: float | None = None,
        item_timeout_s: float | None = None,
    ) -> AsyncIterator[tuple[str, Result]]:
        """Classify (id, text) items as they arrive. Yields (id, result) in the order of completion, not of input.

        A stream stays on one server and is not retried. If it ends early, for example because the server stops, send the unanswered items
        again.

        Args:
            items: pairs of an id that you choose (at most 256 bytes) and a text or pair.
            model: as in ``classify``.
            truncation: as in ``classify``.
            priority: interactive if a user waits for the items; default: bulk.
            timeout_s: of the whole stream; None: no limit.
            item_timeout_s: of each item, from its arrival at the server. None: the server's default (5 s). 256 long texts at a time may
                exceed it on few cores.

        Raises:
            CallFailed: the stream ended early, or a text is not valid Unicode. Exceptions of ``items`` are passed on.
        """
        options = pb.StreamOptions()
        requests.Options(model, truncation, priority).write(options)
        failed: list[Exception] = []
        sent = received = 0
        complete = False

        async def send() -> AsyncIterator[pb.ClassifyStreamRequest]:
            nonlocal sent, complete
            try:
                async for item_id, text in items:
                    sent += 1
                    request = pb.ClassifyStreamRequest(id=item_id, item=requests.item_of(text), options=options)
                    if item_timeout_s is not None:
                        request.timeout.FromNanoseconds(int(item_timeout_s * 1e9))
                    yield request
                complete = True
            except Exception as error:  # raised to the caller below
                failed.append(error)
                raise

        call = self._stub.ClassifyStream(send(), timeout=timeout_s)
        try:
            async for response in call:
                received += 1
                yield response.id, result_of(response)
            if not complete or received < sent:
                raise CallFailed(
                    grpc.StatusCode.UNAVAILABLE, f"the server ended the stream after {received} answers to at least {sent} items"
                )
        except grpc.aio.AioRpcError as error:
            raise failure(error) from error
        except asyncio.CancelledError:
            # grpc.aio cancels the call if its request iterator raises. Without this, the caller sees only a cancellation.
            if failed:
                raise failed[0] from None
            raise
        finally:
            call.cancel()

    async def list_models(self, *, timeout_s: float | None = None) -> pb.ListModelsResponse:
        """List the loaded models."""
        return cast(pb.ListModelsResponse, await self._call(self._stub.ListModels, pb.ListModelsRequest(), timeout_s))

    async def get_model(self, model: str = "", *, timeout_s: float | None = None) -> pb.Model:
        """Get one loaded model with its card."""
        return cast(pb.GetModelResponse, await self._call(self._stub.GetModel, pb.GetModelRequest(model=model), timeout_s)).model

    async def feedback(
        self,
        label: str,
        text: TextOrPair | None = None,
        *,
        request_id: str = "",
        item: int = 0,
        model: str = "",
        timeout_s: float | None = None,
    ) -> FeedbackTaken:
        """Tell the right label of a text, or of the answer to the request with this id.

        The server needs a journal. For an answer or a text the last label counts. ``item``: the text's place in a batch, from 0,
        among those that were sent: a text that is not valid Unicode is not. ``model``: as in ``classify``, with a text.

        Raises:
            CallFailed: the call failed: FAILED_PRECONDITION without a journal, NOT_FOUND if it does not have the answer.
            ValueError: neither or both of text and request_id are given.
        """
        request = requests.feedback(label, text, request_id, item, model)
        return feedback_of(cast(pb.FeedbackResponse, await self._call(self._stub.Feedback, request, timeout_s)))

    async def _explained(self, request: pb.ExplainRequest, timeout_s: float) -> AsyncGenerator[pb.ExplainResponse, None]:
        deadline_at = time.monotonic() + timeout_s
        for attempt in range(1, ATTEMPTS_MAX + 1):
            call = self._stub.Explain(request, timeout=max(0.0, deadline_at - time.monotonic()))
            begun = False
            try:
                async for message in call:
                    begun = True
                    yield message
                return
            except grpc.aio.AioRpcError as error:
                # As in ``_call``, but an explanation that has begun to arrive is not repeated.
                stopped = error.code() is grpc.StatusCode.CANCELLED and attempt < ATTEMPTS_MAX and time.monotonic() < deadline_at
                if begun or not stopped:
                    raise failure(error) from error
                await asyncio.sleep(backoff_s(attempt, deadline_at - time.monotonic()))
            finally:
                call.cancel()

    async def _call(self, method: Callable[..., Awaitable[R]], request: object, timeout_s: float | None, request_id: str = "") -> R:
        headers = {"metadata": ((REQUEST_ID, request_id),)} if request_id else {}
        deadline_at = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return await method(request, timeout=max(0.0, deadline_at - time.monotonic()), **headers)
            except grpc.aio.AioRpcError as error:
                # A stopping or overloaded grpc.aio server can drop a new call with CANCELLED. A cancellation by our own caller is an
                # asyncio.CancelledError instead.
                stopped = error.code() is grpc.StatusCode.CANCELLED and attempt < ATTEMPTS_MAX and time.monotonic() < deadline_at
                if not stopped:
                    raise failure(error) from error
                await asyncio.sleep(backoff_s(attempt, deadline_at - time.monotonic()))
        raise AssertionError("the last attempt returns or raises")


def failure(error: grpc.aio.AioRpcError) -> CallFailed:
    """Convert the error of a call to ``CallFailed``."""
    code, message = error.code(), error.details() or ""
    if code is grpc.StatusCode.INTERNAL and message == ENDED_WHILE_WRITING:
        code, message = grpc.StatusCode.UNAVAILABLE, "the server ended the stream"
    return failure_of_rpc(code, message, tuple(error.trailing_metadata() or ()))
