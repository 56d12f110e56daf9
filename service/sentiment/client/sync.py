"""The blocking client: its channel, and what its calls do there."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, cast

import grpc

from sentiment.client import greenlets
from sentiment.client.calls import Served
from sentiment.client.forks import FORKS
from sentiment.client.results import CallFailed
from sentiment.security.client_credentials import Credentials
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc


class Client(Served):
    """Client with deadlines, retries, round-robin load balancing and keepalive. Safe to share between threads.

    Also works in a process forked while it is idle. A fork waits for its calls in other threads, at most 5 s.

    Use it as a context manager, or call ``close``.

    >>> with Client("127.0.0.1:50051") as client:
    ...     print(client.classify("a good film").label)
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
        """Connect lazily.

        Args:
            target: ``host:port`` or any gRPC target. If the name has several addresses, calls are balanced over all of them. None: the
                variable ``SENTIMENT_TARGET``, or 127.0.0.1:50051. A target on this machine is called directly, another through the proxy
                of ``grpc_proxy``, ``https_proxy`` or ``http_proxy``, if there is one and ``no_proxy`` does not name the host.
            timeout_s: default timeout of a call. As all times here, at most a day.
            wait_s: how long to wait for a ready server before the time of a call begins, while it starts or is not there; 0: not at all.
                A server that has answered is waited for again only after a call has failed with UNAVAILABLE.
            credentials: ``Credentials`` (TLS and token) or gRPC's own, such as ``grpc.ssl_channel_credentials``; None: plaintext.
            options: channel arguments, added to the defaults or replacing them.

        Raises:
            BadSettings: the target is a URL or has no valid port, or a credentials file cannot be used.
            RuntimeError: gRPC does not work in this process, which was forked; so do all calls.
            TypeError, ValueError: a time is not a number or is out of range; so do all calls.
        """
        super().__init__(target, timeout_s, wait_s, credentials, options)
        FORKS.check()
        greenlets.prepare()
        self._channel = self._connecting.channel(grpc.secure_channel, grpc.insecure_channel)
        self._calls = pb_grpc.SentimentServiceStub(self._channel)

    def close(self) -> None:
        """Close the connections. Calls in progress fail, and later ones raise ValueError."""
        self._closed = True
        self._channel.close()

    @property
    def _stub(self) -> Any:  # the stub class is typed for both kinds of channel
        self._check_open()
        return self._calls

    def _wait(self) -> None:
        self._check_open()
        if self._wait_s and not self._reached:
            ends_at = time.monotonic() + self._wait_s
            # The wait has a thread of its own in gRPC, which a fork has to wait for.
            with suppress(grpc.FutureTimeoutError, CallFailed), FORKS.call(ends_at):
                ready = grpc.channel_ready_future(self._channel)
                try:
                    ready.result(max(0.0, ends_at - time.monotonic()))
                    self._reached = True
                finally:
                    ready.cancel()

    def _once(self, method: str, request: Any, deadline_at: float, **headers: Any) -> Any:  # messages of gRPC
        with FORKS.call(deadline_at):
            return getattr(self._stub, method)(request, timeout=max(0.0, deadline_at - time.monotonic()), **headers)

    @contextmanager
    def _messages(self, request: pb.ExplainRequest, deadline_at: float) -> Iterator[Iterator[pb.ExplainResponse]]:
        with FORKS.call(deadline_at):
            call = self._stub.Explain(request, timeout=max(0.0, deadline_at - time.monotonic()))
            try:
                yield call
            finally:
                call.cancel()

    def _begin(self, request: pb.ClassifyBatchRequest, timeout_s: float) -> Any:  # a grpc.Future, which its stubs do not type
        done: Future[pb.ClassifyBatchResponse] = Future()
        if not request.items:
            done.set_result(pb.ClassifyBatchResponse())
            return done
        deadline_at = time.monotonic() + timeout_s
        try:
            FORKS.enter(deadline_at)
        except CallFailed as error:
            done.set_exception(error)
            return done
        try:
            future = self._stub.ClassifyBatch.future(request, timeout=max(0.0, deadline_at - time.monotonic()))
        except BaseException:
            FORKS.leave()
            raise
        future.add_done_callback(lambda _: FORKS.leave())
        return future

    def _response(self, begun: Any) -> pb.ClassifyBatchResponse:  # as above
        return cast(pb.ClassifyBatchResponse, begun.result())
