"""The asyncio client."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, cast, overload

import grpc

from sentiment.client import greenlets, requests
from sentiment.client.chunks import CALL_TIMEOUT_S, CALLS_AHEAD, SENT_MAX, Chunks, again, pause_s
from sentiment.client.columns import (
    AsyncColumn,
    AsyncTexts,
    Item,
    Targeted,
    Targets,
    TextOrPair,
    Texts,
    column_of,
    item_of_value,
)
from sentiment.client.connecting import Connecting
from sentiment.client.explain_options import ExplainOptions
from sentiment.client.explained import explained_of, reader_of
from sentiment.client.explanations import Explanation
from sentiment.client.forks import FORKS
from sentiment.client.frames import Results
from sentiment.client.notebook import shown
from sentiment.client.policy import ATTEMPTS_MAX, EXPLAIN_TIMEOUT_S, backoff_s
from sentiment.client.progress import counting
from sentiment.client.results import (
    CallFailed,
    Classification,
    FeedbackTaken,
    Result,
    feedback_of,
    of_every_text,
    result_of,
    retryable,
)
from sentiment.client.unpicklable import unpicklable
from sentiment.durations import DURATION_S_MAX, checked_s
from sentiment.security.client_credentials import Credentials
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc

R = TypeVar("R")
# The message that grpc.aio reports if the server ends a stream while the client writes; servers never send it.
ENDED_WHILE_WRITING = "Internal error from Core"


class AsyncClient:
    """Like ``Client``, for asyncio. It belongs to the event loop of its first call; a call in another loop raises RuntimeError.

    Nothing that uses gRPC works in a process forked while one is open.

    >>> async with AsyncClient("127.0.0.1:50051") as client:
    ...     print((await client.classify("a good film")).label)
    positive
    """

    def __init__(
        self,
        target: str | None = None,
        *,
        timeout_s: float = 5.0,
        wait_s: float = 0.0,
        credentials: grpc.ChannelCredentials | Credentials | None = None,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        """Connect lazily; arguments as in ``Client``."""
        self._timeout_s, self._wait_s = checked_s("timeout_s", timeout_s), checked_s("wait_s", wait_s, least_s=0)
        self._connecting = Connecting(target, credentials, options)
        self._channel: grpc.aio.Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reached = False

    def _opened(self) -> grpc.aio.Channel:
        """The channel, in the event loop of the first call.

        Raises:
            RuntimeError: this is another loop, gevent runs it, or gRPC does not work in this process, which was forked.
        """
        FORKS.check()
        loop = asyncio.get_running_loop()
        if self._channel is None:
            if greenlets.patched():
                raise RuntimeError("an AsyncClient would wait forever where gevent has replaced Python's threads; use Client")
            FORKS.asynchronous(self)
            to, self._loop = self._connecting, loop
            self._channel = (
                grpc.aio.secure_channel(to.target, to.credentials, to.arguments)
                if to.credentials
                else grpc.aio.insecure_channel(to.target, to.arguments)
            )
            self._calls = pb_grpc.SentimentServiceStub(self._channel)
        if self._loop is not loop:
            raise RuntimeError(f"{self!r} was first used in another event loop; make one in each loop")
        return self._channel

    @property
    def _stub(self) -> Any:  # the stub class is typed for both kinds of channel
        self._opened()
        return self._calls

    def __repr__(self) -> str:
        return f"AsyncClient({self._connecting.target!r})"

    def __reduce__(self) -> NoReturn:
        raise unpicklable(self, repr(self._connecting.target))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Calls in progress fail."""
        if self._channel is not None:
            await self._channel.close()
        FORKS.closed(self)

    @overload
    async def classify(  # type: ignore[overload-overlap]  # a string is an iterable of strings; the first overload takes it
        self,
        text: str,
        text_pair: str | None = None,
        *,
        model: str = "",
        truncation: str = "",
        priority: str = "",
        sentences: bool = False,
        targets: Targets = (),
        explain: ExplainOptions | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
        progress: bool | None = None,
    ) -> Classification: ...

    @overload
    async def classify(
        self,
        text: AsyncTexts,
        text_pair: Texts | None = None,
        *,
        model: str = "",
        truncation: str = "",
        priority: str = "",
        sentences: bool = False,
        targets: Targets = (),
        timeout_s: float | None = None,
        progress: bool | None = None,
    ) -> Results: ...

    async def classify(
        self,
        text: str | AsyncTexts,
        text_pair: str | Texts | None = None,
        *,
        model: str = "",
        truncation: str = "",
        priority: str = "",
        sentences: bool = False,
        targets: Targets = (),
        explain: ExplainOptions | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
        progress: bool | None = None,
    ) -> Classification | Results:
        """Classify one text or pair, or many, as ``Client.classify`` does. Many may also come from an asynchronous iterable.

        >>> (await client.classify("a good film")).label
        'positive'
        >>> await client.classify(["a good film", "awful"])
        Results(2 texts: 1 negative, 1 positive)

        Cancelling the task removes the texts from the server's queue.
        """
        options = requests.Options(model, truncation, priority, sentences)
        if not isinstance(text, str):
            requests.check_options_of_many(explain, request_id)
            column = AsyncColumn(text, text_pair, targets)
            return await self._classify_many(column, options, CALL_TIMEOUT_S if timeout_s is None else timeout_s, progress)
        item, _ = requests.single(text, text_pair, targets)
        if explain is not None and timeout_s is None:
            timeout_s = EXPLAIN_TIMEOUT_S
        request = requests.one(item, options, explain)
        return explained_of(await self._call(self._stub.Classify, request, timeout_s, request_id), request)

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

        >>> explanation = await client.explain("a good film")
        >>> explanation.attributions["occlusion"].words.tolist()
        [0.0, 1.0, 0.0]

        ``label``: the label that is explained; empty: the predicted label. ``options``: what to explain; None: an attribution with
        evidence. Parts that do not fit into the timeout are left out, and ``Explanation.summary`` says so. ``truncation``: refuse, head or
        head_tail; empty: the model's default.

        Raises:
            CallFailed: the explanation is not complete; ``code`` says why.
            ModuleNotFoundError: NumPy is not installed.
            TypeError: the text or the pair is no string.
            ValueError: a number of ``options`` does not fit 32 bits, or ``options.against`` is the label.
        """
        item, second = requests.single(text, text_pair)
        request = requests.explanation(item, requests.Options(model, truncation), label, options)
        return await self._explanation(request, text, second, timeout_s)

    def explain_all(
        self,
        texts: AsyncTexts,
        *,
        model: str = "",
        label: str = "",
        options: ExplainOptions | None = None,
        truncation: str = "",
        timeout_s: float = EXPLAIN_TIMEOUT_S,
        attempts_max: int = SENT_MAX,
        progress: bool | None = False,
    ) -> AsyncGenerator[Explanation | CallFailed, None]:
        """Explain any number of texts or pairs, lazily, in input order, one at a time, as ``Client.explain_all`` does.

        >>> [found.label async for found in client.explain_all(["a good film", "awful"])]
        ['positive', 'negative']

        ``texts`` may also be an asynchronous iterable. Close the iterator (``contextlib.aclosing``) if you leave it early.
        """
        column, call_options = AsyncColumn(texts), requests.Options(model, truncation)

        async def one(item: Item) -> Explanation | CallFailed:
            try:
                request = requests.explanation(item, call_options, label, options)
                return await self._explanation(request, *requests.texts_of(item), timeout_s)
            except CallFailed as error:
                return error

        checked_s("timeout_s", timeout_s)
        return self._each(column, one, attempts_max, progress)

    async def classify_batch(
        self,
        texts: Texts,
        *,
        model: str = "",
        truncation: str = "",
        priority: str = "",
        sentences: bool = False,
        targets: Targets = (),
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> list[Result]:
        """Classify up to 1,024 texts in one call. Results are in input order; the result of a failed item is a CallFailed,
        whose field is ``text``, ``text_pair`` or ``targets``, without a place among the items.

        >>> [result.label for result in await client.classify_batch(["a good film", "awful"])]
        ['positive', 'negative']

        ``request_id``, ``sentences`` and ``targets``: as in ``classify``.

        Raises:
            CallFailed: the whole call failed.
        """
        batch = requests.Batch(column_of(texts, targets=targets).items, requests.Options(model, truncation, priority, sentences))
        if batch.count and not batch.sent:
            return batch.results([])
        response = await self._call(self._stub.ClassifyBatch, batch.request, timeout_s, request_id)
        return batch.results(batch.answers(response))

    def classify_all(
        self,
        texts: AsyncTexts,
        *,
        model: str = "",
        truncation: str = "",
        priority: str = "",
        sentences: bool = False,
        targets: Targets = (),
        timeout_s: float = CALL_TIMEOUT_S,
        attempts_max: int = SENT_MAX,
        progress: bool | None = False,
    ) -> AsyncGenerator[Result, None]:
        """Classify any number of texts, lazily, in input order and in bounded memory, as ``Client.classify_all`` does.

        >>> [result.label async for result in client.classify_all(["a good film", "awful"])]
        ['positive', 'negative']

        ``texts`` may also be an asynchronous iterable. 128 texts make a call; for texts that arrive one by one, and slowly, use
        ``classify_stream``. Close the iterator (``contextlib.aclosing``) if you leave it early.
        """
        column = AsyncColumn(texts, targets=targets)
        options = requests.Options(model, truncation, priority, sentences)
        checked_s("timeout_s", timeout_s)
        return self._shown(column, options, timeout_s, attempts_max, progress)

    async def classify_stream(
        self,
        items: AsyncIterable[tuple[str, TextOrPair | Targeted]],
        *,
        model: str = "",
        truncation: str = "",
        priority: str = "",
        sentences: bool = False,
        targets: Iterable[str] = (),
        timeout_s: float | None = None,
        item_timeout_s: float | None = None,
    ) -> AsyncIterator[tuple[str, Result]]:
        """Classify (id, text) items as they arrive. Yields (id, result) in the order of completion, not of input.

        >>> async def items():
        ...     yield "first", "a good film"
        >>> async for item_id, result in client.classify_stream(items()):
        ...     print(item_id, result.label)
        first positive

        A stream stays on one server and is not retried. If it ends early, for example because the server stops, send the unanswered items
        again.

        Args:
            items: pairs of an id that you choose (at most 256 bytes) and a text or pair, or one that is ``Targeted``.
            model: as in ``classify``.
            truncation: as in ``classify``.
            priority: interactive if a user waits for the items; default: bulk.
            sentences: as in ``classify``. Items under way then need ids that differ, by which sentences get their text.
            targets: as in ``classify``, for every text that is not ``Targeted``. Ids as with ``sentences``.
            timeout_s: of the whole stream; None: no limit.
            item_timeout_s: of each item, from its arrival at the server. None: the server's default (5 s). 256 long texts at a time may
                exceed it on few cores.

        Raises:
            CallFailed: the stream ended early, or a text is not valid Unicode. Exceptions of ``items`` are passed on.
            ValueError: two items under way have the same id, and one of them asks for sentences or targets.
        """
        for name, given_s in (("timeout_s", timeout_s), ("item_timeout_s", item_timeout_s)):
            if given_s is not None:
                checked_s(name, given_s)
        asked = requests.same_targets(targets)
        options = pb.StreamOptions()
        requests.Options(model, truncation, priority, sentences).write(options)
        failed: list[Exception] = []
        # Items under way by their id, for an answer does not repeat them. One id may have several if none asks for parts.
        under_way: dict[str, list[pb.Item]] = {}
        sent = received = 0
        complete = False

        async def send() -> AsyncIterator[pb.ClassifyStreamRequest]:
            nonlocal sent, complete
            try:
                async for item_id, text in items:
                    sent += 1
                    item = requests.item_of(item_of_value(text, asked))
                    same = under_way.setdefault(item_id, [])
                    if same and (sentences or item.targets or same[0].targets):
                        raise ValueError(f"the id {item_id!r} is that of an item under way; with sentences or targets each needs its own")
                    same.append(item)
                    request = pb.ClassifyStreamRequest(id=item_id, item=item, options=options)
                    if item_timeout_s is not None:
                        request.timeout.FromNanoseconds(int(item_timeout_s * 1e9))
                    yield request
                complete = True
            except Exception as error:  # raised to the caller below
                failed.append(error)
                raise

        await self._wait()
        call = self._stub.ClassifyStream(send(), timeout=timeout_s)
        try:
            async for response in call:
                received += 1
                same = under_way.pop(response.id, [])
                # The server cuts an id that is too long, and answers it with an error.
                item = same.pop() if same else pb.Item()
                if same:
                    under_way[response.id] = same
                yield response.id, result_of(response, item, sentences)
            if not complete or received < sent:
                raise CallFailed(
                    grpc.StatusCode.UNAVAILABLE, f"the server ended the stream after {received} answers to at least {sent} items"
                )
        except grpc.aio.AioRpcError as error:
            raise self._failure(error, DURATION_S_MAX if timeout_s is None else timeout_s) from error
        except asyncio.CancelledError:
            # grpc.aio cancels the call if its request iterator raises. Without this, the caller sees only a cancellation.
            if failed:
                raise failed[0] from None
            raise
        finally:
            call.cancel()

    async def _each(
        self, column: AsyncColumn, explain: Callable[[Item], Awaitable[Explanation | CallFailed]], attempts_max: int, progress: bool | None
    ) -> AsyncGenerator[Explanation | CallFailed, None]:
        with counting(column.count, progress, "explain") as count:
            async with aclosing(column.items) as items:
                async for item in items:
                    found = await explain(item)
                    for attempt in range(1, attempts_max):
                        if not (isinstance(found, CallFailed) and retryable(found)):
                            break
                        await asyncio.sleep(pause_s([found], attempt))
                        found = await explain(item)
                    count(found)
                    yield found

    async def list_models(self, *, timeout_s: float | None = None) -> pb.ListModelsResponse:
        """List the loaded models.

        >>> [model.id.name for model in (await client.list_models()).models]
        ['tiny']
        """
        return shown(cast(pb.ListModelsResponse, await self._call(self._stub.ListModels, pb.ListModelsRequest(), timeout_s)))

    async def get_model(self, model: str = "", *, timeout_s: float | None = None) -> pb.Model:
        """Get one loaded model with its card.

        >>> model = await client.get_model()
        >>> list(model.labels), model.max_tokens
        (['negative', 'positive'], 32)
        """
        request = pb.GetModelRequest(model=model)
        return shown(cast(pb.GetModelResponse, await self._call(self._stub.GetModel, request, timeout_s)).model)

    async def feedback(
        self,
        label: str | None,
        text: TextOrPair | None = None,
        *,
        request_id: str = "",
        item: int = 0,
        model: str = "",
        timeout_s: float | None = None,
    ) -> FeedbackTaken:
        """Tell the right label of a text, or of the answer to the request with this id.

        >>> answer = await client.classify("a good film", request_id="4f1c9f5e")
        >>> (await client.feedback("positive", request_id="4f1c9f5e")).right
        True

        The server needs a journal. For an answer or a text the last label counts.

        Args:
            label: the right one of the model's labels; None: none of them is right.
            text: the labelled text or pair, which is classified again, if you give no request_id.
            request_id: of the answer.
            item: the text's place in a batch, from 0, among those that were sent: a text that is not valid Unicode is not.
            model: as in ``classify``, with a text.
            timeout_s: as in ``classify``.

        Raises:
            CallFailed: the call failed: FAILED_PRECONDITION without a journal, NOT_FOUND if it does not have the answer.
            ValueError: neither or both of text and request_id are given.
        """
        request = requests.feedback(label, text, request_id, item, model)
        return feedback_of(cast(pb.FeedbackResponse, await self._call(self._stub.Feedback, request, timeout_s)))

    async def _classify_many(self, column: AsyncColumn, options: requests.Options, timeout_s: float, progress: bool | None) -> Results:
        # As in Client.
        checked_s("timeout_s", timeout_s)
        labels = (await self.get_model(options.model)).labels
        found: list[Result] = []
        async with aclosing(column.items), aclosing(self._shown(column, options, timeout_s, SENT_MAX, progress)) as results:
            async for result in results:
                found.append(result)
                if of_every_text(result):
                    found += [result] * (await column.read_to_end() - len(found))
                    break
        return Results(found, labels=labels, index=column.index)

    async def _shown(
        self, column: AsyncColumn, options: requests.Options, timeout_s: float, attempts_max: int, progress: bool | None
    ) -> AsyncGenerator[Result, None]:
        await self._wait()
        under_way: deque[asyncio.Task[Sequence[Result]]] = deque()
        try:
            with counting(column.count, progress) as count:
                async for chunk in _chunks(column.items):
                    under_way.append(asyncio.create_task(self._chunk(chunk, options, timeout_s, attempts_max)))
                    if len(under_way) == CALLS_AHEAD:
                        for result in await under_way[0]:
                            count(result)
                            yield result
                        under_way.popleft()
                while under_way:
                    for result in await under_way[0]:
                        count(result)
                        yield result
                    under_way.popleft()
        finally:
            # The caller may close the iterator early, or be cancelled.
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _chunk(self, chunk: Sequence[Item], options: requests.Options, timeout_s: float, attempts_max: int) -> Sequence[Result]:
        batch = requests.Batch(chunk, options)
        results = batch.results(await self._results(batch, timeout_s))
        for attempt in range(1, attempts_max):
            places = again(results)
            if not places:
                break
            await asyncio.sleep(pause_s([results[place] for place in places], attempt))
            answers = await self._results(requests.Batch([chunk[place] for place in places], options), timeout_s)
            for place, answer in zip(places, answers, strict=True):
                results[place] = answer
        return results

    async def _results(self, batch: requests.Batch, timeout_s: float) -> list[Result]:
        # A call without texts would be refused.
        if not batch.sent:
            return []
        try:
            response = await self._stub.ClassifyBatch(batch.request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            return [self._failure(error, timeout_s)] * batch.sent
        return batch.answers(response)

    async def _explanation(self, request: pb.ExplainRequest, text: str, text_pair: str | None, timeout_s: float) -> Explanation:
        reader = reader_of(text, text_pair)
        async with aclosing(self._explained(request, checked_s("timeout_s", timeout_s))) as messages:
            async for message in messages:
                reader.take(message)
        return reader.explanation()

    async def _wait(self) -> None:
        # As in Client.
        if self._wait_s and not self._reached:
            channel = self._opened()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s):
                    await channel.channel_ready()
                    self._reached = True

    def _failure(self, error: grpc.aio.AioRpcError, timeout_s: float) -> CallFailed:
        code, message = error.code(), error.details() or ""
        self._reached = self._reached and code is not grpc.StatusCode.UNAVAILABLE
        if code is grpc.StatusCode.INTERNAL and message == ENDED_WHILE_WRITING:
            code, message = grpc.StatusCode.UNAVAILABLE, "the server ended the stream"
        return self._connecting.failure(code, message, tuple(error.trailing_metadata() or ()), timeout_s)

    async def _explained(self, request: pb.ExplainRequest, timeout_s: float) -> AsyncGenerator[pb.ExplainResponse, None]:
        await self._wait()
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
                    raise self._failure(error, timeout_s) from error
                await asyncio.sleep(backoff_s(attempt, deadline_at - time.monotonic()))
            finally:
                call.cancel()

    async def _call(self, method: Callable[..., Awaitable[R]], request: object, timeout_s: float | None, request_id: str = "") -> R:
        timeout_s = self._timeout_s if timeout_s is None else checked_s("timeout_s", timeout_s)
        headers = requests.headers(request_id)
        await self._wait()
        deadline_at = time.monotonic() + timeout_s
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return await method(request, timeout=max(0.0, deadline_at - time.monotonic()), **headers)
            except grpc.aio.AioRpcError as error:
                # A stopping or overloaded grpc.aio server can drop a new call with CANCELLED. A cancellation by our own caller is an
                # asyncio.CancelledError instead.
                stopped = error.code() is grpc.StatusCode.CANCELLED and attempt < ATTEMPTS_MAX and time.monotonic() < deadline_at
                if not stopped:
                    raise self._failure(error, timeout_s) from error
                await asyncio.sleep(backoff_s(attempt, deadline_at - time.monotonic()))
        raise AssertionError("the last attempt returns or raises")


async def _chunks(items: AsyncIterator[Item]) -> AsyncIterator[list[Item]]:
    waiting = Chunks()
    async for item in items:
        if full := waiting.add(item):
            yield full
    if rest := waiting.rest():
        yield rest
