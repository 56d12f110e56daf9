"""The blocking client."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, cast, overload

import grpc

from sentiment.client import greenlets, requests
from sentiment.client.chunks import CALL_TIMEOUT_S, CALLS_AHEAD, SENT_MAX, again, chunks, pause_s
from sentiment.client.columns import Column, Item, Targets, TextOrPair, Texts, column_of
from sentiment.client.connecting import Connecting
from sentiment.client.explain_options import ExplainOptions
from sentiment.client.explained import explained_of, explanation_of
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
    retryable,
)
from sentiment.client.unpicklable import unpicklable
from sentiment.durations import checked_s
from sentiment.security.client_credentials import Credentials
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc

R = TypeVar("R")
# The texts of a call under way, its request and its future; None if there is nothing to send.
_Call = tuple[Sequence[Item], requests.Batch, Any]


class Client:
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
            TypeError, ValueError: a time is no number, or none that a call can take; so do all calls.
        """
        self._timeout_s, self._wait_s = checked_s("timeout_s", timeout_s), checked_s("wait_s", wait_s, least_s=0)
        FORKS.check()
        greenlets.prepare()
        self._connecting = to = Connecting(target, credentials, options)
        self._channel = (
            grpc.secure_channel(to.target, to.credentials, to.arguments)
            if to.credentials
            else grpc.insecure_channel(to.target, to.arguments)
        )
        # The stub class is typed for both kinds of channel.
        self._stub = cast(Any, pb_grpc.SentimentServiceStub(self._channel))
        self._reached = False

    def __repr__(self) -> str:
        return f"Client({self._connecting.target!r})"

    def __reduce__(self) -> NoReturn:
        raise unpicklable(self, repr(self._connecting.target))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Calls in progress fail."""
        self._channel.close()

    @overload
    def classify(  # type: ignore[overload-overlap]  # a string is an iterable of strings; the first overload takes it
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
    def classify(
        self,
        text: Texts,
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

    def classify(
        self,
        text: str | Texts,
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
        """Classify one text or pair, or many: a string gives a ``Classification``, anything else ``Results``.

        >>> client.classify("a good film").label
        'positive'
        >>> client.classify(["a good film", "awful"]).to_pandas()["label"].to_list()
        ['positive', 'negative']

        Many texts are an iterable, a pandas or polars Series, a NumPy array or an Arrow column of strings or pairs. They are sent as in
        ``classify_all``. The result of a text without an answer is a CallFailed. A value that is missing (None, NaN, null) or no string is
        not sent, and its code is INVALID_ARGUMENT. If the server is lost on the way, the answers up to the first lost text are kept; all
        texts after it get its error, even if their answers have come.

        Args:
            text: the text, or many.
            text_pair: the second text, or as many second texts.
            model: name or name/version. Empty: the server's default model.
            truncation: refuse, head, head_tail or windows. Empty: the model's default.
            priority: interactive or bulk. Empty: interactive for one text, bulk for many.
            sentences: answer each sentence too (``Classification.sentences``), at the cost of as many short texts.
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
            ValueError: there are not as many second texts as texts, an option for one text is given with many, or ``request_id`` is none.
        """
        options = requests.Options(model, truncation, priority, sentences)
        if not isinstance(text, str):
            requests.check_options_of_many(explain, request_id)
            column = column_of(text, text_pair, targets)
            return self._classify_many(column, options, CALL_TIMEOUT_S if timeout_s is None else timeout_s, progress)
        item, _ = requests.single(text, text_pair, targets)
        if explain is not None and timeout_s is None:
            timeout_s = EXPLAIN_TIMEOUT_S
        request = requests.one(item, options, explain)
        return explained_of(self._call(self._stub.Classify, request, timeout_s, request_id), request)

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

        >>> explanation = client.explain("a good film")
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
        return self._explanation(request, text, second, timeout_s)

    def explain_all(
        self,
        texts: Texts,
        *,
        model: str = "",
        label: str = "",
        options: ExplainOptions | None = None,
        truncation: str = "",
        timeout_s: float = EXPLAIN_TIMEOUT_S,
        attempts_max: int = SENT_MAX,
        progress: bool | None = False,
    ) -> Generator[Explanation | CallFailed, None, None]:
        """Explain any number of texts or pairs, lazily, in input order, one at a time.

        >>> for found in client.explain_all(["a good film", ""]):
        ...     print(found.message if isinstance(found, CallFailed) else found.label)
        positive
        text: has 0 characters and none but white space; at least one other is needed

        ``texts`` and ``progress``: as in ``classify``. A text that is refused for lack of capacity or time is sent again, up to
        ``attempts_max`` times. The result of a text that still fails is a CallFailed. ``timeout_s``: of each attempt. Others: as in
        ``explain``.

        Raises:
            TypeError: as in ``classify``.
        """
        column, call_options = column_of(texts), requests.Options(model, truncation)

        def one(item: Item) -> Explanation | CallFailed:
            try:
                request = requests.explanation(item, call_options, label, options)
                return self._explanation(request, *requests.texts_of(item), timeout_s)
            except CallFailed as error:
                return error

        checked_s("timeout_s", timeout_s)
        return self._each(column, one, attempts_max, progress)

    def classify_batch(
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

        >>> [result.label for result in client.classify_batch(["a good film", "awful"])]
        ['positive', 'negative']

        ``request_id``, ``sentences`` and ``targets``: as in ``classify``.

        Raises:
            CallFailed: the whole call failed.
        """
        batch = requests.Batch(column_of(texts, targets=targets).items, requests.Options(model, truncation, priority, sentences))
        if batch.count and not batch.sent:
            return batch.results([])
        response = self._call(self._stub.ClassifyBatch, batch.request, timeout_s, request_id)
        return batch.results(batch.answers(response))

    def classify_all(
        self,
        texts: Texts,
        *,
        model: str = "",
        truncation: str = "",
        priority: str = "",
        sentences: bool = False,
        targets: Targets = (),
        timeout_s: float = CALL_TIMEOUT_S,
        attempts_max: int = SENT_MAX,
        progress: bool | None = False,
    ) -> Generator[Result, None, None]:
        """Classify any number of texts, lazily, in input order and in bounded memory: at most 512 texts at a time.

        >>> [result.label for result in client.classify_all(line for line in ("a good film", "awful"))]
        ['positive', 'negative']

        ``texts``, ``sentences`` and ``targets``: as in ``classify``. Texts that the server refuses for lack of capacity or time are sent
        again, up to ``attempts_max`` times. The result of a text that still fails is a CallFailed. ``timeout_s``: of each attempt of a
        call with up to 128 texts.
        ``progress``: as in ``classify``.

        Raises:
            TypeError: as in ``classify``.
        """
        column = column_of(texts, targets=targets)
        checked_s("timeout_s", timeout_s)
        return self._shown(column, requests.Options(model, truncation, priority, sentences), timeout_s, attempts_max, progress)

    def _classify_many(self, column: Column, options: requests.Options, timeout_s: float, progress: bool | None) -> Results:
        checked_s("timeout_s", timeout_s)
        # Finds out within the client's own timeout that a server, model or token is not there, and what labels there are.
        labels = self.get_model(options.model).labels
        return Results(self._while_there(column, options, timeout_s, progress), labels=labels, index=column.index)

    def _while_there(self, column: Column, options: requests.Options, timeout_s: float, progress: bool | None) -> Iterator[Result]:
        """One result a text, also if the server does not come back: all that are left then fail without being sent."""
        given = 0
        with closing(self._shown(column, options, timeout_s, SENT_MAX, progress)) as results:
            for result in results:
                given += 1
                yield result
                if of_every_text(result):
                    break
            else:
                return
        for _ in range(column.read_to_end() - given):
            yield result

    def _shown(
        self, column: Column, options: requests.Options, timeout_s: float, attempts_max: int, progress: bool | None
    ) -> Generator[Result, None, None]:
        self._wait()
        under_way: deque[_Call] = deque()
        try:
            with counting(column.count, progress) as count:
                for result in self._in_order(chunks(column.items), under_way, options, timeout_s, attempts_max):
                    count(result)
                    yield result
        finally:
            # The caller may close the iterator early.
            for *_, future in under_way:
                if future is not None:
                    future.cancel()

    def _in_order(
        self, source: Iterator[list[Item]], under_way: "deque[_Call]", options: requests.Options, timeout_s: float, attempts_max: int
    ) -> Iterator[Result]:
        while True:
            while len(under_way) < CALLS_AHEAD and (taken := next(source, None)):
                batch = requests.Batch(taken, options)
                # A call without texts would be refused.
                future = self._begun(batch.request, timeout_s) if batch.sent else None
                under_way.append((taken, batch, future))
            if not under_way:
                return
            chunk, batch, future = under_way.popleft()
            results = batch.results([] if future is None else self._results(future.result, batch, timeout_s))
            yield from self._finish(chunk, results, options, timeout_s, attempts_max)

    def _finish(
        self, chunk: Sequence[Item], results: list[Result], options: requests.Options, timeout_s: float, attempts_max: int
    ) -> Sequence[Result]:
        for attempt in range(1, attempts_max):
            places = again(results)
            if not places:
                break
            time.sleep(pause_s([results[place] for place in places], attempt))
            batch = requests.Batch([chunk[place] for place in places], options)
            answers = self._results(
                lambda batch=batch: _once(self._stub.ClassifyBatch, batch.request, time.monotonic() + timeout_s),  # type: ignore[misc]  # default binds the loop's value
                batch,
                timeout_s,
            )
            for place, answer in zip(places, answers, strict=True):
                results[place] = answer
        return results

    def _each(
        self, column: Column, explain: Callable[[Item], Explanation | CallFailed], attempts_max: int, progress: bool | None
    ) -> Generator[Explanation | CallFailed, None, None]:
        with counting(column.count, progress, "explain") as count:
            for item in column.items:
                found = explain(item)
                for attempt in range(1, attempts_max):
                    if not (isinstance(found, CallFailed) and retryable(found)):
                        break
                    time.sleep(pause_s([found], attempt))
                    found = explain(item)
                count(found)
                yield found

    def list_models(self, *, timeout_s: float | None = None) -> pb.ListModelsResponse:
        """List the loaded models.

        >>> [model.id.name for model in client.list_models().models]
        ['tiny']
        """
        return shown(cast(pb.ListModelsResponse, self._call(self._stub.ListModels, pb.ListModelsRequest(), timeout_s)))

    def get_model(self, model: str = "", *, timeout_s: float | None = None) -> pb.Model:
        """Get one loaded model with its card.

        >>> model = client.get_model()
        >>> list(model.labels), model.max_tokens
        (['negative', 'positive'], 32)
        """
        request = pb.GetModelRequest(model=model)
        return shown(cast(pb.GetModelResponse, self._call(self._stub.GetModel, request, timeout_s)).model)

    def feedback(
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

        >>> answer = client.classify("a good film", request_id="4f1c9f5e")
        >>> client.feedback("positive", request_id="4f1c9f5e").right
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
        return feedback_of(cast(pb.FeedbackResponse, self._call(self._stub.Feedback, request, timeout_s)))

    def _explanation(self, request: pb.ExplainRequest, text: str, text_pair: str | None, timeout_s: float) -> Explanation:
        with closing(self._explained(request, checked_s("timeout_s", timeout_s))) as messages:
            return explanation_of(messages, text, text_pair)

    def _wait(self) -> None:
        """Wait for a ready server, if there has been none. If none comes, the call that follows says why."""
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

    def _failure(self, error: grpc.RpcError, timeout_s: float) -> CallFailed:
        # At run time the error is the call itself, with its status.
        call = cast(grpc.Call, error)
        self._reached = self._reached and call.code() is not grpc.StatusCode.UNAVAILABLE
        return self._connecting.failure(call.code(), call.details() or "", tuple(call.trailing_metadata() or ()), timeout_s)

    def _results(self, call: Callable[[], pb.ClassifyBatchResponse], batch: requests.Batch, timeout_s: float) -> list[Result]:
        try:
            return batch.answers(call())
        except grpc.RpcError as error:
            return [self._failure(error, timeout_s)] * batch.sent
        except CallFailed as error:
            return [error] * batch.sent

    def _explained(self, request: pb.ExplainRequest, timeout_s: float) -> Generator[pb.ExplainResponse, None, None]:
        self._wait()
        deadline_at = time.monotonic() + timeout_s
        for attempt in range(1, ATTEMPTS_MAX + 1):
            begun = False
            try:
                with FORKS.call(deadline_at):
                    call = self._stub.Explain(request, timeout=max(0.0, deadline_at - time.monotonic()))
                    try:
                        for message in call:
                            begun = True
                            yield message
                        return
                    finally:
                        call.cancel()
            except grpc.RpcError as error:
                # As in ``_call``, but an explanation that has begun to arrive is not repeated.
                stopped = error.code() is grpc.StatusCode.CANCELLED and attempt < ATTEMPTS_MAX and time.monotonic() < deadline_at
                if begun or not stopped:
                    raise self._failure(error, timeout_s) from error
                time.sleep(backoff_s(attempt, deadline_at - time.monotonic()))

    def _call(self, method: Callable[..., R], request: object, timeout_s: float | None, request_id: str = "") -> R:
        timeout_s = self._timeout_s if timeout_s is None else checked_s("timeout_s", timeout_s)
        headers = requests.headers(request_id)
        self._wait()
        deadline_at = time.monotonic() + timeout_s
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return _once(method, request, deadline_at, **headers)
            except grpc.RpcError as error:
                # A stopping or overloaded grpc.aio server can drop a new call with CANCELLED. Nothing here cancels calls.
                stopped = error.code() is grpc.StatusCode.CANCELLED and attempt < ATTEMPTS_MAX and time.monotonic() < deadline_at
                if not stopped:
                    raise self._failure(error, timeout_s) from error
                time.sleep(backoff_s(attempt, deadline_at - time.monotonic()))
        raise AssertionError("the last attempt returns or raises")

    def _begun(self, request: pb.ClassifyBatchRequest, timeout_s: float) -> Any:  # a grpc.Future, which its stubs do not type
        deadline_at = time.monotonic() + timeout_s
        try:
            FORKS.enter(deadline_at)
        except CallFailed as error:
            failed: Future[pb.ClassifyBatchResponse] = Future()
            failed.set_exception(error)
            return failed
        try:
            future = self._stub.ClassifyBatch.future(request, timeout=max(0.0, deadline_at - time.monotonic()))
        except BaseException:
            FORKS.leave()
            raise
        future.add_done_callback(lambda _: FORKS.leave())
        return future


def _once(method: Callable[..., R], request: object, deadline_at: float, **options: Any) -> R:  # options: those of gRPC's calls
    with FORKS.call(deadline_at):
        return method(request, timeout=max(0.0, deadline_at - time.monotonic()), **options)
