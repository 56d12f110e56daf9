"""``Local``: a bundle in this process, with the interface of the client and the answers of a server."""

import os
import re
import time
from collections.abc import Generator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sentiment.call import convert
from sentiment.call.explain_request import explanation_request, in_classify
from sentiment.call.explain_response import Messages
from sentiment.call.status import status_of
from sentiment.client import CallFailed, Classification, ExplainOptions, Explanation, Result, requests
from sentiment.client.calls import Calls
from sentiment.client.columns import Column, Item
from sentiment.client.explained import reader_of
from sentiment.client.policy import EXPLAIN_TIMEOUT_S
from sentiment.client.progress import counting
from sentiment.client.results import failure_of_status
from sentiment.errors import BadBundle, InvalidInput, ModelNotFound, RequestError
from sentiment.explain.engine import Explainer
from sentiment.explain.queue import not_computed
from sentiment.model.bundle import MANIFEST, find_bundle
from sentiment.model.classifier import Classifier
from sentiment.offline import Closed, OfflineClassifier
from sentiment.pipeline.queries import Query
from sentiment.settings import MODEL
from sentiment.v1 import sentiment_pb2 as pb

# Limit of an explanation, which does not go through a socket.
BYTES_MAX = 2**31 - 1
Folders = str | Path | Iterable[str | Path]


class Local(Calls):
    """Classifies and explains with a bundle in this process: no server, no event loop, no network. Safe to share between threads.

    It has the calls of ``Client`` but for ``feedback``, and the same results and errors. On a CPU the answers are those of a server, bit
    for bit. What only a server has (``priority``, ``request_id``, ``timeout_s`` but for explanations, ``attempts_max``) is accepted
    and changes nothing. ``model`` is empty, this model's name or name/version, or what it was opened by; another is a CallFailed. After
    ``close``, calls raise ValueError.

    ``classify_all`` has at most about 2,000 texts at a time. As many explanations run at a time as there are threads; others wait for
    them within their timeout.

    On CPUs it also works in a forked process, which shares the model's memory.

    Use it as a context manager, or call ``close``.

    >>> from sentiment import Local
    >>> with Local() as local:
    ...     print(local.classify("a good film").label)
    positive
    """

    # Another attempt would find the same.
    _repeats = False
    _timeout_s = EXPLAIN_TIMEOUT_S

    def __init__(self, model: str | Path = "", *, bundles: Folders | None = None, device: str = "auto", threads: int = 0) -> None:
        """Load the bundle and check its answers on this machine. Takes 1 s for the default bundle on a CPU, on a GPU a minute.

        Args:
            model: name, name/version, or a bundle's folder. Empty: SENTIMENT_MODEL, else the service's default. A name without a version
                means its highest.
            bundles: folders that hold bundles, searched first. None: those of SENTIMENT_BUNDLES. Then follow those that ``sentiment
                serve`` searches too: /models, the checkout, and bundles that pip installed.
            device: cpu; cuda; a list such as cuda:0,cuda:1; auto: the GPUs if they work, else the CPU.
            threads: that run batches on the CPU at a time; 0: one for each core granted to the process.

        Raises:
            BadBundle: there is no such bundle, or it cannot be run.
            BadSettings: there is no such device.
        """
        if threads < 0:
            raise ValueError(f"threads must be at least 0 (each core granted), got {threads}")
        folder = _folder(model)
        name = "" if folder else str(model) or os.environ.get("SENTIMENT_MODEL", "")
        self._offline = OfflineClassifier(name, _roots(bundles), folder=folder, device=device, threads=threads)
        self._explainer = Explainer(self._offline.explained)
        self._made_of = str(model) or self.classifier.bundle.id

    def __repr__(self) -> str:
        return f"Local({self.classifier.bundle.id!r})"

    def close(self) -> None:
        """Wait for the batches and explanations that run, and release the memory. Other calls in progress fail with ValueError."""
        self._offline.close()
        self._explainer.unload(for_good=True)

    @property
    def classifier(self) -> Classifier:
        """The loaded bundle. Only this object may run it."""
        return self._offline.classifier

    def _check(self, options: requests.Options) -> None:
        self._check_model(options.model)

    def _one(self, item: Item, options: requests.Options, explain: ExplainOptions | None) -> Classification:
        # Before the explanation, which takes longer and is of the reading in full: a text without an answer has none.
        (answer,) = self._answers([item], options if explain is None else replace(options, effort=""))
        if isinstance(answer, CallFailed):
            raise answer
        if explain is None:
            return answer
        return replace(answer, explanation=self._explanation(requests.one(item, options, explain), options.timeout_s))

    def _batch(self, column: Column, options: requests.Options) -> list[Result]:
        items, limit = list(column.items), self._offline.batch_items_max
        if not 1 <= len(items) <= limit:
            raise _failure(InvalidInput("items", f"must have 1 to {limit} items, got {len(items)}"))
        return list(self._answers(items, options))

    def _each(self, column: Column, options: requests.Options) -> Generator[Result, None, None]:
        with counting(column.count, options.progress) as count:
            for result in self._answers(column.items, options):
                count(result)
                yield result

    def _answers(self, items: Iterable[Item], options: requests.Options) -> Generator[Result, None, None]:
        return self._offline.classify_all(items, truncation=options.truncation, sentences=options.sentences, effort=options.effort)

    def _call(self, method: str, request: Any, *_: object) -> Any:  # as in Calls
        if method == "ListModels":
            return pb.ListModelsResponse(models=[self._described(with_card=False)])
        self._check_model(request.model)
        return pb.GetModelResponse(model=self._described(with_card=True))

    def _described(self, with_card: bool) -> pb.Model:
        limited = self._offline.text_limits
        limits = pb.Limits(
            text_bytes=limited.bytes_max, explanation_bytes=BYTES_MAX, sentences=limited.sentences_max, targets=limited.targets_max
        )
        return convert.model_of(self, True, limits, self._explainer.methods, with_card)

    def _check_model(self, model: str) -> None:
        bundle = self.classifier.bundle
        if model not in ("", self._made_of, bundle.manifest.name, bundle.id):
            raise _failure(ModelNotFound(f"model {model[:128]!r} is not loaded; loaded are {bundle.id}"))

    def _explanation(self, request: pb.ExplainRequest | pb.ClassifyRequest, timeout_s: float) -> Explanation:
        until = time.monotonic() + timeout_s
        messages = Messages(convert.model_id(self), self.classifier.manifest.labels)
        reader = reader_of(request)
        try:
            with self._offline.turn(timeout_s):
                explanation = explanation_request(request, BYTES_MAX)
                self._offline.check(Query(explanation.text, explanation.text_pair, explanation.truncation))
                for part in self._explainer.explain(explanation, lambda: until - time.monotonic()):
                    for message in messages.of(part):
                        reader.take(message)
        except InvalidInput as error:
            raise _failure(in_classify(error) if isinstance(request, pb.ClassifyRequest) else error) from error
        except RequestError as error:
            raise _failure(error) from error
        except (CallFailed, Closed):
            raise
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            raise _failure(not_computed(error)) from error
        return reader.explanation()


def _failure(error: RequestError) -> CallFailed:
    return failure_of_status(status_of(error))


def _folder(model: str | Path) -> Path | None:
    """The bundle's folder, if the model is given as one; None for a name.

    Raises:
        BadBundle: there is no bundle in it.
    """
    path = Path(model)
    if model and (path / MANIFEST).is_file():
        return path.absolute()
    if not isinstance(model, Path) and (os.sep not in model or re.fullmatch(MODEL, model)):
        return None
    if not path.is_dir():
        raise BadBundle(f"{path}: no such folder")
    # A model's folder, with its versions.
    return find_bundle(path.absolute().name, [path.absolute().parent])


def _roots(bundles: Folders | None) -> list[Path]:
    if bundles is None:
        bundles = [part for part in os.environ.get("SENTIMENT_BUNDLES", "").split(os.pathsep) if part]
    return [Path(bundles)] if isinstance(bundles, str | Path) else [Path(part) for part in bundles]
