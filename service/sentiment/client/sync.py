"""The blocking client."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import grpc

from sentiment.client import requests
from sentiment.client.explain_options import ExplainOptions
from sentiment.client.explanation_reader import explained_of, explanation_of
from sentiment.client.explanations import Explanation
from sentiment.client.policy import ATTEMPTS_MAX, EXPLAIN_TIMEOUT_S, backoff_s, channel_options
from sentiment.client.requests import TextOrPair
from sentiment.client.results import (
    REQUEST_ID,
    CallFailed,
    Classification,
    FeedbackTaken,
    Result,
    failure_of_rpc,
    feedback_of,
    result_of,
    retryable,
)
from sentiment.security.client_credentials import Credentials
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc

R = TypeVar("R")
DEFAULT_TARGET = "127.0.0.1:50051"
# classify_all sends CHUNK texts per call and CALLS_AHEAD calls at once: enough to keep a server's runners busy.
CHUNK = 128
CALLS_AHEAD = 4
# Well under the server's message limit, so that a long text does not make a call with other texts too large.
CHUNK_BYTES = 2**21


class Client:
    """Client with deadlines, retries, round-robin load balancing and keepalive. Safe to share between threads.

    Use it as a context manager, or call ``close``.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout_s: float = 5.0,
        credentials: grpc.ChannelCredentials | Credentials | None = None,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        """Connect lazily.

        Args:
            target: ``host:port`` or any gRPC target. If the name has several addresses, calls are balanced over all of them.
            timeout_s: default timeout of a call.
            credentials: ``Credentials`` (TLS and token) or gRPC's own, such as ``grpc.ssl_channel_credentials``; None: plaintext.
            options: channel arguments, added to the defaults or replacing them.

        Raises:
            BadSettings: a credentials file cannot be used.
        """
        if isinstance(credentials, Credentials):
            credentials = credentials.for_grpc()
        arguments = list({**dict(channel_options()), **dict(options)}.items())
        self._channel = grpc.secure_channel(target, credentials, arguments) if credentials else grpc.insecure_channel(target, arguments)
        # The stub class is typed for both kinds of channel.
        self._stub = cast(Any, pb_grpc.SentimentServiceStub(self._channel))
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Calls in progress fail."""
        self._channel.close()

    def classify(
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
        """Classify one text or pair.

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
        return explained_of(self._call(self._stub.Classify, request, timeout_s, request_id), text, text_pair)

    def explain(
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
        with closing(self._explained(request, timeout_s)) as messages:
            return explanation_of(messages, text, text_pair)

    def classify_batch(
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
        response = self._call(self._stub.ClassifyBatch, batch.request, timeout_s, request_id)
        return batch.results(map(result_of, response.results))

    def classify_all(
        self,
        texts: Iterable[TextOrPair],
        *,
        model: str = "",
        truncation: str = "",
        priority: str = "",
        timeout_s: float = 60.0,
        attempts_max: int = 8,
    ) -> Iterator[Result]:
        """Classify any number of texts, lazily, in input order and in bounded memory: at most ``CHUNK * CALLS_AHEAD`` texts at a time.

        Texts that the server refuses for lack of capacity or time are sent again, up to ``attempts_max`` times. The result of a text that
        still fails is a CallFailed.
        """
        under_way: deque[tuple[Sequence[TextOrPair], requests.Batch, Any]] = deque()
        source = chunks(texts)
        try:
            yield from self._in_order(source, under_way, requests.Options(model, truncation, priority), timeout_s, attempts_max)
        finally:
            # The caller may close the iterator early.
            for *_, future in under_way:
                future.cancel()

    def _in_order(
        self,
        source: Iterator[list[TextOrPair]],
        under_way: "deque[tuple[Sequence[TextOrPair], requests.Batch, Any]]",
        options: requests.Options,
        timeout_s: float,
        attempts_max: int,
    ) -> Iterator[Result]:
        while True:
            while len(under_way) < CALLS_AHEAD and (taken := next(source, None)):
                batch = requests.Batch(taken, options)
                under_way.append((taken, batch, self._stub.ClassifyBatch.future(batch.request, timeout=timeout_s)))
            if not under_way:
                return
            chunk, batch, future = under_way.popleft()
            results = batch.results(_results(future.result, batch.sent))
            yield from self._finish(chunk, results, options, timeout_s, attempts_max)

    def _finish(
        self, chunk: Sequence[TextOrPair], results: list[Result], options: requests.Options, timeout_s: float, attempts_max: int
    ) -> Sequence[Result]:
        for attempt in range(1, attempts_max):
            again = [index for index, result in enumerate(results) if retryable(result)]
            if not again:
                break
            time.sleep(_pause_s([results[index] for index in again], attempt))
            request = requests.Batch([chunk[index] for index in again], options).request
            answers = _results(lambda request=request: self._stub.ClassifyBatch(request, timeout=timeout_s), len(again))  # type: ignore[misc]  # default binds the loop's value
            for index, answer in zip(again, answers, strict=True):
                results[index] = answer
        return results

    def list_models(self, *, timeout_s: float | None = None) -> pb.ListModelsResponse:
        """List the loaded models."""
        return cast(pb.ListModelsResponse, self._call(self._stub.ListModels, pb.ListModelsRequest(), timeout_s))

    def get_model(self, model: str = "", *, timeout_s: float | None = None) -> pb.Model:
        """Get one loaded model with its card."""
        return cast(pb.GetModelResponse, self._call(self._stub.GetModel, pb.GetModelRequest(model=model), timeout_s)).model

    def feedback(
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
        return feedback_of(cast(pb.FeedbackResponse, self._call(self._stub.Feedback, request, timeout_s)))

    def _explained(self, request: pb.ExplainRequest, timeout_s: float) -> Generator[pb.ExplainResponse, None, None]:
        deadline_at = time.monotonic() + timeout_s
        for attempt in range(1, ATTEMPTS_MAX + 1):
            call = self._stub.Explain(request, timeout=max(0.0, deadline_at - time.monotonic()))
            begun = False
            try:
                for message in call:
                    begun = True
                    yield message
                return
            except grpc.RpcError as error:
                # As in ``_call``, but an explanation that has begun to arrive is not repeated.
                stopped = error.code() is grpc.StatusCode.CANCELLED and attempt < ATTEMPTS_MAX and time.monotonic() < deadline_at
                if begun or not stopped:
                    raise failure(error) from error
                time.sleep(backoff_s(attempt, deadline_at - time.monotonic()))
            finally:
                call.cancel()

    def _call(self, method: Callable[..., R], request: object, timeout_s: float | None, request_id: str = "") -> R:
        headers = {"metadata": ((REQUEST_ID, request_id),)} if request_id else {}
        deadline_at = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return method(request, timeout=max(0.0, deadline_at - time.monotonic()), **headers)
            except grpc.RpcError as error:
                # A stopping or overloaded grpc.aio server can drop a new call with CANCELLED. Nothing here cancels calls.
                stopped = error.code() is grpc.StatusCode.CANCELLED and attempt < ATTEMPTS_MAX and time.monotonic() < deadline_at
                if not stopped:
                    raise failure(error) from error
                time.sleep(backoff_s(attempt, deadline_at - time.monotonic()))
        raise AssertionError("the last attempt returns or raises")


def chunks(texts: Iterable[TextOrPair]) -> Iterator[list[TextOrPair]]:
    """Cut texts into lists of at most CHUNK texts and CHUNK_BYTES bytes. A longer text gets a list of its own."""
    chunk: list[TextOrPair] = []
    size = 0
    for text in texts:
        # Upper bound of four bytes per character; exact sizes need an encoding.
        added = sum(len(part) * (1 if part.isascii() else 4) for part in ([text] if isinstance(text, str) else text))
        if chunk and (len(chunk) == CHUNK or size + added > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(text)
        size += added
    if chunk:
        yield chunk


def failure(error: grpc.RpcError) -> CallFailed:
    """Convert the error of a call to ``CallFailed``."""
    # At run time the error is the call itself, with its status.
    call = cast(grpc.Call, error)
    return failure_of_rpc(call.code(), call.details() or "", tuple(call.trailing_metadata() or ()))


def _results(call: Callable[[], pb.ClassifyBatchResponse], count: int) -> list[Result]:
    try:
        return [result_of(result) for result in call().results]
    except grpc.RpcError as error:
        return [failure(error)] * count


def _pause_s(failures: Sequence[Result], attempt: int) -> float:
    retry_after_s = max(failed.retry_after_s or 0.0 for failed in failures if isinstance(failed, CallFailed))
    return min(10.0, max(retry_after_s, 0.05 * 2.0**attempt))
