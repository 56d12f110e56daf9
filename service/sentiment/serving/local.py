"""Runs a bundle in this process, with the server's pipeline and the client's result types."""

import asyncio
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from sentiment.api.grpc import convert
from sentiment.api.grpc.explain_request import explanation_request
from sentiment.api.grpc.explain_response import Messages
from sentiment.api.grpc.status import code_of, status_of
from sentiment.batching.row_queue import Reading
from sentiment.batching.ticket import Priority
from sentiment.client import CallFailed, Classification, ExplainOptions, Explanation, ModelId, Result, Timing, requests
from sentiment.client.explanation_reader import Reader
from sentiment.client.policy import EXPLAIN_TIMEOUT_S
from sentiment.client.results import failure_of_status
from sentiment.errors import RequestError
from sentiment.explain.engine import Explainer
from sentiment.model.classifier import Classifier
from sentiment.observability.metrics import Metrics
from sentiment.serving.lifecycle.loading import load
from sentiment.serving.lifecycle.served_model import make_served
from sentiment.serving.pipeline import Answer, Outcome
from sentiment.serving.queries import Query, QueryReader
from sentiment.settings import load_settings
from sentiment.v1 import sentiment_pb2 as pb

# Texts that are queued together: enough to batch rows of similar length, few enough to bound memory.
CHUNK = 1024
# There are no interactive callers here; the deadline only bounds a hang.
DEADLINE_S = 3600.0
# Limit of an explanation, which does not go through a socket.
BYTES_MAX = 2**31 - 1


class LocalClassifier:
    """Classifies and explains with a bundle, without a server. Not thread-safe. Use it as a context manager."""

    def __init__(self, model: str = "", bundles: Sequence[Path] = (), *, device: str = "auto", runners: int = 0) -> None:
        """Load and warm up. ``device`` and ``runners`` are as in the settings.

        Raises:
            BadBundle: the bundle cannot be served.
            BadSettings: the model's name is invalid.
        """
        named = {"model": model} if model else {}
        given = {"bundles": tuple(bundles), "device": device, "runners": runners}
        # Wide batches would have to be measured first.
        fixed = {"call_rows_max": CHUNK, "explain": False, "batch_threads_max": 1}
        settings, _ = load_settings({**named, **given, **fixed}, {})
        loaded = load(settings, measure_s=0)
        self._loop = asyncio.new_event_loop()
        self._runners = loaded.runners

        async def build() -> None:
            self._served = make_served(loaded, settings, Metrics(("local",), ("OK",)))

        self._loop.run_until_complete(build())
        # In the calling thread: there is no event loop to keep free.
        self._explainer = Explainer(loaded.explained)
        self._reader = QueryReader(loaded.classifier, settings.text_bytes_max)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._served.close()
        for runner in self._runners:
            runner.close(wait_s=1.0)
        self._loop.close()

    @property
    def classifier(self) -> Classifier:
        """The loaded bundle. Only this object may run it."""
        return self._served.classifier

    @property
    def digest(self) -> str:
        """The bundle's digest."""
        return self.classifier.bundle.digest

    def get_model(self) -> pb.Model:
        """The model with its card, as ``Client.get_model`` gives it."""
        return convert.model_of(self._served, True, pb.Limits(explanation_bytes=BYTES_MAX), self._explainer.methods, with_card=True)

    def classify_all(self, texts: Iterable[str], *, truncation: str = "") -> Iterator[Result]:
        """Classify texts lazily, in order and in bounded memory; a text that fails gives a CallFailed in its place."""
        source = iter(texts)
        while chunk := list(itertools.islice(source, CHUNK)):
            queries = [Query(text, truncation=truncation or None, priority=Priority.BULK) for text in chunk]
            now = time.monotonic()
            outcomes = self._loop.run_until_complete(self._served.classify_many(queries, now, now + DEADLINE_S))
            yield from map(self._result, outcomes)

    def readings(self, texts: Iterable[str], *, truncation: str = "") -> list[Reading]:
        """What the model reads of texts that it has answered, with the same truncation."""
        return self._reader.read([Query(text, truncation=truncation or None) for text in texts])

    def explain(
        self,
        text: str,
        text_pair: str | None = None,
        *,
        label: str = "",
        options: ExplainOptions | None = None,
        truncation: str = "",
        timeout_s: float = EXPLAIN_TIMEOUT_S,
    ) -> Explanation:
        """Explain the answer to one text or pair, as ``Client.explain`` does.

        Raises:
            CallFailed: there is no explanation; the codes are the server's.
        """
        item = text if text_pair is None else (text, text_pair)
        request = requests.explanation(item, requests.Options(truncation=truncation), label, options)
        until = time.monotonic() + timeout_s
        messages = Messages(convert.model_id(self._served), self._served.classifier.manifest.labels)
        reader = Reader(text, text_pair)
        try:
            for part in self._explainer.explain(explanation_request(request, BYTES_MAX), lambda: until - time.monotonic()):
                for message in messages.of(part):
                    reader.take(message)
        except RequestError as error:
            raise failure_of_status(status_of(error)) from error
        return reader.explanation()

    def _result(self, outcome: Outcome) -> Result:
        if not isinstance(outcome, Answer):
            return CallFailed(code_of(outcome), str(outcome))
        bundle, scored = self._served.classifier.bundle, outcome.scored
        return Classification(
            label=scored.label,
            score=scored.score,
            scores=MappingProxyType(dict(zip(bundle.manifest.labels, scored.scores, strict=True))),
            abstain=scored.abstain,
            model=ModelId(bundle.manifest.name, bundle.manifest.version, bundle.digest),
            tokens=outcome.tokens,
            truncated=outcome.truncated,
            timing=Timing(outcome.total_s, outcome.tokenize_s, outcome.queue_s, outcome.run_s, outcome.batch_rows),
        )
