"""The calls of the asyncio client. docs/blocking.py makes ``calls.py`` from it, those of the blocking client: ``make reference``."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self, cast, overload

import grpc

from sentiment.client import requests
from sentiment.client.ahead import AsyncAhead
from sentiment.client.chunks import CALL_TIMEOUT_S, CALLS_AHEAD, CHUNK, CHUNK_BYTES, SENT_MAX, bytes_most, pause_s
from sentiment.client.columns import AsyncColumn, AsyncTexts, Column, Item, Targets, TextOrPair, Texts
from sentiment.client.connecting import Connecting
from sentiment.client.explain_options import ExplainOptions
from sentiment.client.explained import explained_of, reader_of
from sentiment.client.explanations import Explanation
from sentiment.client.frames import Results
from sentiment.client.policy import ATTEMPTS_MAX, EXPLAIN_TIMEOUT_S, RETRIES
from sentiment.client.progress import counting
from sentiment.client.requests import Effort, Priority, Truncation
from sentiment.client.results import CallFailed, Classification, FeedbackTaken, Result, feedback_of, of_every_text, retryable
from sentiment.durations import checked_s
from sentiment.security.client_credentials import Credentials
from sentiment.v1 import sentiment_pb2 as pb

# The message that grpc.aio reports if the server ends a stream while the client writes; servers never send it.
ENDED_WHILE_WRITING = "Internal error from Core"


class AsyncCalls:
    """The calls of whatever answers texts. How it does so is up to the subclasses."""

    # The argument by which another one like it is made.
    _made_of: str
    # Default timeout of a call.
    _timeout_s: float
    # Whether a text that fails for lack of capacity or time is worth another attempt.
    _repeats = True

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name} cannot be pickled or copied; make one in each process: {name}({self._made_of!r})")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Release what answers. Calls in progress fail."""

    @overload
    async def classify(  # type: ignore[overload-overlap]  # a string is an iterable of strings; the first overload takes it
        self,
        text: str,
        text_pair: str | None = None,
        *,
        model: str = "",
        truncation: Truncation = "",
        priority: Priority = "",
        sentences: bool = False,
        effort: Effort = "",
        no_cache: bool = False,
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
        truncation: Truncation = "",
        priority: Priority = "",
        sentences: bool = False,
        effort: Effort = "",
        no_cache: bool = False,
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
        truncation: Truncation = "",
        priority: Priority = "",
        sentences: bool = False,
        effort: Effort = "",
        no_cache: bool = False,
        targets: Targets = (),
        explain: ExplainOptions | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
        progress: bool | None = None,
    ) -> Classification | Results:
        """Classify one text or pair, or many: a string gives a ``Classification``, anything else ``Results``.

        >>> (await client.classify("a good film")).label
        'positive'
        >>> (await client.classify(["a good film", "awful"])).to_pandas()["label"].to_list()
        ['positive', 'negative']

        Many texts are an iterable, a pandas or polars Series, a NumPy array or an Arrow column of strings or pairs. They are sent as in
        ``classify_all``. The result of a text without an answer is a CallFailed. A value that is missing (None, NaN, null) or no string is
        not sent, and its code is INVALID_ARGUMENT. If the server is lost on the way, the answers up to the first lost text are kept; all
        texts after it get its error, even if their answers have come.

        In asyncio many texts may also come from an asynchronous iterable, and cancelling the task removes the texts from the server's
        queue.

        Args:
            text: the text, or many.
            text_pair: the second text, or as many second texts.
            model: name or name/version. Empty: the server's default model.
            truncation: refuse, head, head_tail or windows. Empty: the model's default.
            priority: interactive or bulk. Empty: interactive for one text, bulk for many.
            sentences: answer each sentence too (``Classification.sentences``), at the cost of as many short texts.
            effort: adaptive reads a part of a long text first, and the whole only if that does not suffice; full reads all. Empty: the
                server's default.
            no_cache: let the model run, whatever answers the server keeps.
            targets: answer the sentiment towards each of these too (``Classification.targets``), such as ``["battery", "service"]``. For
                many texts also a column with a list for each. The model must have ``Model.targets``.
            explain: for one text: explanation to add to the answer, which must fit one message (``explain`` has no such limit).
            request_id: for one text: names the call in the server's log and journal, in 1 to 128 printable ASCII characters.
            timeout_s: of the call for one text: 5 s, the client's own ``timeout_s``, or 30 s with ``explain``. For many: of each attempt
                of a call with up to 128 texts, 60 s.
            progress: for many: whether to show a progress bar. None: on a terminal or in a notebook, if tqdm is installed and the work
                takes over 2 s.

        Raises:
            CallFailed: one text has no answer; ``code`` says why. For many texts: the server or the model is not there at the beginning.
            ModuleNotFoundError: ``progress`` is True and tqdm is not installed, or ``explain`` is given and NumPy is not.
            TypeError: ``text`` is bytes, a mapping or a whole table.
            ValueError: texts and second texts differ in number, an option for one text is given with many, or ``request_id`` is invalid.
        """
        if timeout_s is None:
            timeout_s = CALL_TIMEOUT_S if not isinstance(text, str) else EXPLAIN_TIMEOUT_S if explain else self._timeout_s
        options = requests.Options(model, truncation, priority, sentences, effort, no_cache, request_id, timeout_s, SENT_MAX, progress)
        self._check(options)
        if isinstance(text, str):
            return await self._one(requests.single(text, text_pair, targets)[0], options, explain)
        requests.check_options_of_many(explain, request_id)
        column = AsyncColumn(text, text_pair, targets)
        # Finds out within the client's own timeout that a server, model or token is not there, and what labels there are.
        labels = (await self.get_model(model)).labels
        found: list[Result] = []
        async with aclosing(column.items), aclosing(self._each(column, options)) as results:
            async for result in results:
                found.append(result)
                if of_every_text(result):
                    # The server does not come back: all that are left fail without being sent.
                    found += [result] * (await column.read_to_end() - len(found))
                    break
        return Results(found, labels=labels, index=column.index)

    async def explain(
        self,
        text: str,
        text_pair: str | None = None,
        *,
        model: str = "",
        label: str = "",
        target: str = "",
        options: ExplainOptions | None = None,
        truncation: Truncation = "",
        timeout_s: float = EXPLAIN_TIMEOUT_S,
    ) -> Explanation:
        """Explain the answer to one text or pair. The server gives classification requests priority over explanations.

        >>> explanation = await client.explain("a good film")
        >>> explanation.attributions["occlusion"].words.tolist()
        [0.0, 1.0, 0.0]

        ``label``: the label that is explained; empty: the predicted label. ``target``: explain the answer towards this target, which the
        text names; empty: the answer to the whole text. ``options``: what to explain; None: an attribution with evidence. Parts that do not
        fit into the timeout are left out, and ``Explanation.summary`` says so. ``truncation``: refuse, head or head_tail; empty: the
        model's default.

        Raises:
            CallFailed: the explanation is not complete; ``code`` says why.
            ModuleNotFoundError: NumPy is not installed.
            TypeError: the text or the pair is not a string.
            ValueError: a number of ``options`` does not fit 32 bits, or ``options.against`` is the label.
        """
        item, _ = requests.single(text, text_pair)
        asked = requests.Options(model, truncation, timeout_s=timeout_s)
        self._check(asked)
        return await self._explanation(requests.explanation(item, asked, label, options, target), timeout_s)

    def explain_all(
        self,
        texts: AsyncTexts,
        *,
        model: str = "",
        label: str = "",
        target: str = "",
        options: ExplainOptions | None = None,
        truncation: Truncation = "",
        timeout_s: float = EXPLAIN_TIMEOUT_S,
        attempts_max: int = SENT_MAX,
        progress: bool | None = False,
    ) -> AsyncGenerator[Explanation | CallFailed, None]:
        """Explain any number of texts or pairs, lazily, in input order, one at a time.

        >>> async for found in client.explain_all(["a good film", ""]):
        ...     print(found.message if isinstance(found, CallFailed) else found.label)
        positive
        text: has 0 characters and none but white space; at least one other is needed

        ``texts`` and ``progress``: as in ``classify``. A text that is refused for lack of capacity or time is sent again, up to
        ``attempts_max`` times. The result of a text that still fails is a CallFailed. ``timeout_s``: of each attempt. Others: as in
        ``explain``.

        In asyncio ``texts`` may also be an asynchronous iterable. Close the iterator (``contextlib.aclosing``) if you leave it early.

        Raises:
            TypeError: as in ``classify``.
        """
        column, asked = AsyncColumn(texts), requests.Options(model, truncation, timeout_s=timeout_s)
        self._check(asked)

        async def one(item: Item) -> Explanation | CallFailed:
            try:
                return await self._explanation(requests.explanation(item, asked, label, options, target), timeout_s)
            except CallFailed as error:
                return error

        async def each() -> AsyncGenerator[Explanation | CallFailed, None]:
            with counting(column.count, progress, "explain") as count:
                async with aclosing(column.items) as items:
                    async for item in items:
                        found = await one(item)
                        for attempt in range(1, attempts_max if self._repeats else 1):
                            if not (isinstance(found, CallFailed) and retryable(found)):
                                break
                            await asyncio.sleep(pause_s([found], attempt))
                            found = await one(item)
                        count(found)
                        yield found

        return each()

    async def classify_batch(
        self,
        texts: Texts,
        *,
        model: str = "",
        truncation: Truncation = "",
        priority: Priority = "",
        sentences: bool = False,
        effort: Effort = "",
        no_cache: bool = False,
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
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        options = requests.Options(model, truncation, priority, sentences, effort, no_cache, request_id, timeout_s)
        self._check(options)
        return await self._batch(Column(texts, targets=targets), options)

    def classify_all(
        self,
        texts: AsyncTexts,
        *,
        model: str = "",
        truncation: Truncation = "",
        priority: Priority = "",
        sentences: bool = False,
        effort: Effort = "",
        no_cache: bool = False,
        targets: Targets = (),
        timeout_s: float = CALL_TIMEOUT_S,
        attempts_max: int = SENT_MAX,
        progress: bool | None = False,
    ) -> AsyncGenerator[Result, None]:
        """Classify any number of texts, lazily, in input order and in bounded memory: at most 512 texts at a time.

        >>> [result.label async for result in client.classify_all(line for line in ("a good film", "awful"))]
        ['positive', 'negative']

        ``texts``, ``sentences`` and ``targets``: as in ``classify``. Texts that the server refuses for lack of capacity or time are sent
        again, up to ``attempts_max`` times. The result of a text that still fails is a CallFailed. ``timeout_s``: of each attempt of a
        call with up to 128 texts.
        ``progress``: as in ``classify``.

        In asyncio ``texts`` may also be an asynchronous iterable; for texts that arrive one by one, and slowly, use ``classify_stream``.
        Close the iterator (``contextlib.aclosing``) if you leave it early.

        Raises:
            TypeError: as in ``classify``.
        """
        column = AsyncColumn(texts, targets=targets)
        options = requests.Options(model, truncation, priority, sentences, effort, no_cache, "", timeout_s, attempts_max, progress)
        self._check(options)
        return self._each(column, options)

    async def list_models(self, *, timeout_s: float | None = None) -> pb.ListModelsResponse:
        """List the loaded models.

        >>> [model.id.name for model in (await client.list_models()).models]
        ['tiny']
        """
        return cast(pb.ListModelsResponse, await self._call("ListModels", pb.ListModelsRequest(), timeout_s))

    async def get_model(self, model: str = "", *, timeout_s: float | None = None) -> pb.Model:
        """Get one loaded model with its card.

        >>> model = await client.get_model()
        >>> list(model.labels), model.max_tokens
        (['negative', 'positive'], 32)
        """
        request = pb.GetModelRequest(model=model)
        return cast(pb.GetModelResponse, await self._call("GetModel", request, timeout_s)).model

    @abstractmethod
    def _check(self, options: requests.Options) -> None:
        """Refuse a model that cannot be asked, and a time that no call can take."""

    @abstractmethod
    async def _one(self, item: Item, options: requests.Options, explain: ExplainOptions | None) -> Classification: ...

    @abstractmethod
    async def _batch(self, column: Column, options: requests.Options) -> list[Result]: ...

    @abstractmethod
    def _each(self, column: AsyncColumn, options: requests.Options) -> AsyncGenerator[Result, None]: ...

    @abstractmethod
    async def _explanation(self, request: pb.ExplainRequest, timeout_s: float) -> Explanation: ...

    @abstractmethod
    async def _call(self, method: str, request: Any, timeout_s: float | None, request_id: str = "") -> Any: ...  # messages of gRPC


class AsyncServed(AsyncCalls):
    """The calls answered by a server. Its subclass opens the channel and makes single attempts."""

    def __init__(
        self,
        target: str | None,
        timeout_s: float,
        wait_s: float,
        credentials: grpc.ChannelCredentials | Credentials | None,
        options: Sequence[tuple[str, Any]],
    ) -> None:
        self._timeout_s, self._wait_s = checked_s("timeout_s", timeout_s), checked_s("wait_s", wait_s, least_s=0)
        self._connecting = Connecting(target, credentials, options)
        self._made_of = self._connecting.target
        self._reached = self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._made_of!r})"

    def _check_open(self) -> None:
        """Raises ValueError if it is closed."""
        if self._closed:
            raise ValueError(f"{self!r} is closed")

    @abstractmethod
    async def _wait(self) -> None:
        """Wait for a ready server, if there has been none. If none comes, the call that follows says why."""

    @abstractmethod
    async def _once(self, method: str, request: Any, deadline_at: float, **headers: Any) -> Any: ...  # messages of gRPC

    @abstractmethod
    def _messages(self, request: pb.ExplainRequest, deadline_at: float) -> AbstractAsyncContextManager[AsyncIterator[pb.ExplainResponse]]:
        """Around the messages of one attempt, which is cancelled at the end."""

    @abstractmethod
    def _begin(self, request: pb.ClassifyBatchRequest, timeout_s: float) -> Any:  # a call or a future
        """Begin an attempt, which goes on by itself. One without texts, which would be refused, is answered here."""

    @abstractmethod
    async def _response(self, begun: Any) -> pb.ClassifyBatchResponse: ...  # as above

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
        return feedback_of(cast(pb.FeedbackResponse, await self._call("Feedback", request, timeout_s)))

    def _check(self, options: requests.Options) -> None:
        checked_s("timeout_s", options.timeout_s)

    async def _one(self, item: Item, options: requests.Options, explain: ExplainOptions | None) -> Classification:
        request = requests.one(item, options, explain)
        return explained_of(await self._call("Classify", request, options.timeout_s, options.request_id), request)

    async def _batch(self, column: Column, options: requests.Options) -> list[Result]:
        batch = requests.Batch(column.items, options)
        if batch.count and not batch.sent:
            return batch.results([])
        return batch.results(batch.answers(await self._call("ClassifyBatch", batch.request, options.timeout_s, options.request_id)))

    async def _each(self, column: AsyncColumn, options: requests.Options) -> AsyncGenerator[Result, None]:
        await self._wait()
        ahead, source = AsyncAhead(), chunks(column.items)
        try:
            with counting(column.count, options.progress) as count:
                while True:
                    while len(ahead) < CALLS_AHEAD and (chunk := await anext(source, None)):
                        batch = requests.Batch(chunk, options)
                        ahead.add(self._begin(batch.request, options.timeout_s), partial(self._finish, chunk, batch, options))
                    if not ahead:
                        break
                    for result in await ahead.first():
                        count(result)
                        yield result
        finally:
            # The caller may close the iterator early, or be cancelled.
            await ahead.cancel()

    async def _finish(self, chunk: Sequence[Item], batch: requests.Batch, options: requests.Options, begun: Any) -> list[Result]:
        # begun: as in _begin
        results = batch.results(await self._answers(begun, batch, options))
        for attempt in range(1, options.attempts_max):
            places = [place for place, result in enumerate(results) if retryable(result)]
            if not places:
                break
            await asyncio.sleep(pause_s([results[place] for place in places], attempt))
            rest = requests.Batch([chunk[place] for place in places], options)
            answers = await self._answers(self._begin(rest.request, options.timeout_s), rest, options)
            for place, answer in zip(places, answers, strict=True):
                results[place] = answer
        return results

    async def _answers(self, begun: Any, batch: requests.Batch, options: requests.Options) -> list[Result]:  # as in _begin
        try:
            return batch.answers(await self._response(begun))
        except grpc.RpcError as error:
            return [self._failure(error, options.timeout_s)] * batch.sent
        except CallFailed as error:
            return [error] * batch.sent

    async def _explanation(self, request: pb.ExplainRequest, timeout_s: float) -> Explanation:
        reader = reader_of(request)
        async with aclosing(self._explained(request, timeout_s)) as messages:
            async for message in messages:
                reader.take(message)
        return reader.explanation()

    async def _explained(self, request: pb.ExplainRequest, timeout_s: float) -> AsyncGenerator[pb.ExplainResponse, None]:
        await self._wait()
        deadline_at = time.monotonic() + timeout_s
        for attempt in range(1, ATTEMPTS_MAX + 1):
            begun = False
            try:
                async with self._messages(request, deadline_at) as messages:
                    async for message in messages:
                        begun = True
                        yield message
                return
            except grpc.RpcError as error:
                # An explanation that has begun to arrive is not repeated.
                await self._pause(error, ATTEMPTS_MAX if begun else attempt, deadline_at, timeout_s)

    async def _call(self, method: str, request: Any, timeout_s: float | None, request_id: str = "") -> Any:  # messages of gRPC
        timeout_s = self._timeout_s if timeout_s is None else checked_s("timeout_s", timeout_s)
        headers = requests.headers(request_id)
        await self._wait()
        deadline_at = time.monotonic() + timeout_s
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return await self._once(method, request, deadline_at, **headers)
            except grpc.RpcError as error:
                await self._pause(error, attempt, deadline_at, timeout_s)
        raise AssertionError("the last attempt returns or raises")

    async def _pause(self, error: grpc.RpcError, attempt: int, deadline_at: float, timeout_s: float) -> None:
        """Wait before another attempt of a call that the server dropped.

        Raises:
            CallFailed: it failed otherwise, or there is no other attempt.
        """
        left_s = deadline_at - time.monotonic()
        # A stopping or overloaded grpc.aio server can drop a new call with CANCELLED. No caller's own cancellation gives this error.
        if error.code() is not grpc.StatusCode.CANCELLED or attempt == ATTEMPTS_MAX or left_s <= 0:
            raise self._failure(error, timeout_s) from error
        await asyncio.sleep(min(left_s, RETRIES.pause_s(attempt)))

    def _failure(self, error: grpc.RpcError, timeout_s: float) -> CallFailed:
        # At run time the error has the status of its call.
        call = cast(grpc.Call, error)
        code, message = call.code(), call.details() or ""
        self._reached = self._reached and code is not grpc.StatusCode.UNAVAILABLE
        if code is grpc.StatusCode.INTERNAL and message == ENDED_WHILE_WRITING:
            code, message = grpc.StatusCode.UNAVAILABLE, "the server ended the stream"
        return self._connecting.failure(code, message, tuple(call.trailing_metadata() or ()), timeout_s)


async def chunks(items: AsyncIterable[Item]) -> AsyncGenerator[list[Item], None]:
    """The texts of each call: at most CHUNK of them and CHUNK_BYTES bytes. A longer text gets a call of its own."""
    chunk: list[Item] = []
    left = CHUNK_BYTES
    async for item in items:
        size = bytes_most(item)
        if chunk and (len(chunk) == CHUNK or size > left):
            yield chunk
            chunk, left = [], CHUNK_BYTES
        chunk.append(item)
        left -= size
    if chunk:
        yield chunk
