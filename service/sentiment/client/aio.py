"""The asyncio client: its channel, what its calls do there, and the stream that it alone has."""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import grpc

from sentiment.client import greenlets, requests
from sentiment.client.async_calls import AsyncServed
from sentiment.client.columns import Targeted, TextOrPair, item_of_value
from sentiment.client.forks import FORKS
from sentiment.client.requests import Effort, Priority, Truncation
from sentiment.client.results import CallFailed, Result, result_of
from sentiment.durations import DURATION_S_MAX, checked_s
from sentiment.security.client_credentials import Credentials
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc


class AsyncClient(AsyncServed):
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
        super().__init__(target, timeout_s, wait_s, credentials, options)
        self._channel: grpc.aio.Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def _opened(self) -> grpc.aio.Channel:
        """The channel, in the event loop of the first call.

        Raises:
            ValueError: the client is closed.
            RuntimeError: this is another loop, gevent runs it, or gRPC does not work in this process, which was forked.
        """
        FORKS.check()
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError(f"{self!r} was first used in another event loop; make one in each loop")
        self._check_open()
        if self._channel is None:
            if greenlets.patched():
                raise RuntimeError("an AsyncClient would wait forever where gevent has replaced Python's threads; use Client")
            FORKS.asynchronous(self)
            self._loop = loop
            self._channel = self._connecting.channel(grpc.aio.secure_channel, grpc.aio.insecure_channel)
            self._calls = pb_grpc.SentimentServiceStub(self._channel)
        return self._channel

    @property
    def _stub(self) -> Any:  # the stub class is typed for both kinds of channel
        self._opened()
        return self._calls

    async def close(self) -> None:
        """Close the connections. Calls in progress fail, and later ones raise ValueError."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()
        FORKS.closed(self)

    async def classify_stream(
        self,
        items: AsyncIterable[tuple[str, TextOrPair | Targeted]],
        *,
        model: str = "",
        truncation: Truncation = "",
        priority: Priority = "",
        sentences: bool = False,
        effort: Effort = "",
        no_cache: bool = False,
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
            effort, no_cache: as in ``classify``.
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
        requests.Options(model, truncation, priority, sentences, effort, no_cache).write(options)
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
        except grpc.RpcError as error:
            raise self._failure(error, DURATION_S_MAX if timeout_s is None else timeout_s) from error
        except asyncio.CancelledError:
            # grpc.aio cancels the call if its request iterator raises. Without this, the caller sees only a cancellation.
            if failed:
                raise failed[0] from None
            raise
        finally:
            call.cancel()

    async def _wait(self) -> None:
        if self._wait_s and not self._reached:
            channel = self._opened()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s):
                    await channel.channel_ready()
                    self._reached = True

    async def _once(self, method: str, request: Any, deadline_at: float, **headers: Any) -> Any:  # messages of gRPC
        return await getattr(self._stub, method)(request, timeout=max(0.0, deadline_at - time.monotonic()), **headers)

    @asynccontextmanager
    async def _messages(self, request: pb.ExplainRequest, deadline_at: float) -> AsyncIterator[AsyncIterator[pb.ExplainResponse]]:
        call = self._stub.Explain(request, timeout=max(0.0, deadline_at - time.monotonic()))
        try:
            yield call
        finally:
            call.cancel()

    def _begin(self, request: pb.ClassifyBatchRequest, timeout_s: float) -> Any:  # a grpc.aio call or a future
        if request.items:
            return self._stub.ClassifyBatch(request, timeout=timeout_s)
        done: asyncio.Future[pb.ClassifyBatchResponse] = asyncio.get_running_loop().create_future()
        done.set_result(pb.ClassifyBatchResponse())
        return done

    async def _response(self, begun: Any) -> pb.ClassifyBatchResponse:  # as above
        return cast(pb.ClassifyBatchResponse, await begun)
