"""``Local``: a bundle in this process, with the interface of the client and the answers of a server."""

# ruff: noqa: ARG002 - the client's arguments that only a server heeds

import os
import re
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self, overload

from sentiment.call import convert
from sentiment.call.explain_request import explanation_request, in_classify
from sentiment.call.explain_response import Messages
from sentiment.call.status import status_of
from sentiment.client import CallFailed, Classification, ExplainOptions, Explanation, Result, Results, requests
from sentiment.client.columns import Column, Item, Targets, Texts, column_of
from sentiment.client.explanation_reader import Reader
from sentiment.client.notebook import shown
from sentiment.client.policy import EXPLAIN_TIMEOUT_S
from sentiment.client.progress import counting
from sentiment.client.results import failure_of_status
from sentiment.client.unpicklable import unpicklable
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


class Local:
    """Classifies and explains with a bundle in this process: no server, no event loop, no network. Safe to share between threads.

    It has the calls of ``Client`` but for ``feedback``, and the same results and errors. On a CPU the answers are those of a server, bit
    for bit. What only a server has (``priority``, ``request_id``, ``timeout_s`` but for explanations, ``attempts_max``) is accepted
    and changes nothing.

    On CPUs it also works in a forked process, which shares the model's memory.

    Use it as a context manager, or call ``close``.

    >>> from sentiment import Local
    >>> with Local() as local:
    ...     print(local.classify("a good film").label)
    positive
    """

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
        self._given = str(model)
        self._offline = OfflineClassifier(name, _roots(bundles), folder=folder, device=device, threads=threads)
        self._explainer = Explainer(self._offline.explained)

    def __reduce__(self) -> NoReturn:
        raise unpicklable(self, repr(self._given or self.classifier.bundle.id))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

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

    @overload
    def classify(  # type: ignore[overload-overlap]  # as in Client
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
        """Classify one text or pair, or many: a string gives a ``Classification``, anything else ``Results``. As ``Client.classify``.

        Args:
            text: the text, or many: an iterable, a pandas or polars Series, a NumPy array or an Arrow column of strings or pairs.
            text_pair: the second text, or as many second texts.
            model: empty, or this model's name, name/version, or what it was opened by.
            truncation: refuse, head, head_tail or windows. Empty: the model's default.
            priority: checked, and without effect.
            sentences: answer each sentence too, as in ``Client.classify``.
            targets: answer the sentiment towards each of these too, as in ``Client.classify``.
            explain: for one text: explanation to add to the answer.
            request_id: for one text: checked, and without effect.
            timeout_s: with ``explain``: of the explanation, 30 s by default. Else without effect.
            progress: for many: whether to show a progress bar. None: on a terminal or in a notebook, if tqdm is installed and the work
                takes over 2 s.

        Raises:
            CallFailed: one text has no answer, or this is another model; ``code`` says why.
            ModuleNotFoundError: ``progress`` is True and tqdm is not installed.
            TypeError: ``text`` is bytes, a mapping or a whole table.
            ValueError: there are not as many second texts as texts, an option for one text is given with many, or ``close`` was called.
        """
        options = requests.Options(model, truncation, priority, sentences)
        self._check_model(model)
        if not isinstance(text, str):
            requests.check_options_of_many(explain, request_id)
            column = column_of(text, text_pair, targets)
            results = self._shown(column, options, progress)
            return Results(results, labels=self.classifier.manifest.labels, index=column.index)
        requests.check_request_id(request_id)
        item, second = requests.single(text, text_pair, targets)
        # Before the explanation, which takes longer: a text without an answer has none.
        (answer,) = self._offline.classify_all([item], truncation=truncation, sentences=sentences)
        if isinstance(answer, CallFailed):
            raise answer
        if explain is None:
            return answer
        timeout_s = EXPLAIN_TIMEOUT_S if timeout_s is None else timeout_s
        explanation = self._explanation(requests.one(item, options, explain), text, second, timeout_s)
        return replace(answer, explanation=explanation)

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
        """Explain the answer to one text or pair. Arguments as in ``Client.explain``.

        As many explanations run at a time as there are threads; others wait for them within their timeout.

        Raises:
            CallFailed: there is no explanation; the codes are the server's.
            TypeError: the text or the pair is no string.
            ValueError: as in ``Client.explain``; also if ``close`` was called.
        """
        item, second = requests.single(text, text_pair)
        self._check_model(model)
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
        attempts_max: int = 0,
        progress: bool | None = False,
    ) -> Generator[Explanation | CallFailed, None, None]:
        """Explain any number of texts or pairs, lazily, in input order, one at a time, as ``Client.explain_all`` does.

        The result of a text that fails is a CallFailed.

        Raises:
            CallFailed: this is another model.
            TypeError: as in ``classify``.
            ValueError: ``close`` was called.
        """
        call_options = requests.Options(model, truncation)
        self._check_model(model)

        def one(item: Item) -> Explanation | CallFailed:
            try:
                return self._explanation(requests.explanation(item, call_options, label, options), *requests.texts_of(item), timeout_s)
            except CallFailed as error:
                return error

        return _each(column_of(texts), one, progress)

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
        """Classify up to 1,024 texts. Results are in input order; the result of a failed item is a CallFailed.

        Raises:
            CallFailed: this is another model, or there are no texts or too many.
        """
        options = requests.Options(model, truncation, priority, sentences)
        requests.check_request_id(request_id)
        items = list(column_of(texts, targets=targets).items)
        self._check_model(options.model)
        limit = self._offline.batch_items_max
        if not 1 <= len(items) <= limit:
            raise _failure(InvalidInput("items", f"must have 1 to {limit} items, got {len(items)}"))
        return list(self._offline.classify_all(items, truncation=truncation, sentences=sentences))

    def classify_all(
        self,
        texts: Texts,
        *,
        model: str = "",
        truncation: str = "",
        priority: str = "",
        sentences: bool = False,
        targets: Targets = (),
        timeout_s: float = 0.0,
        attempts_max: int = 0,
        progress: bool | None = False,
    ) -> Generator[Result, None, None]:
        """Classify any number of texts, lazily, in input order and in bounded memory: at most about 2,000 texts at a time.

        ``texts`` and ``progress``: as in ``classify``. The result of a text that fails is a CallFailed.

        Raises:
            CallFailed: this is another model.
            TypeError: as in ``classify``.
        """
        options = requests.Options(model, truncation, priority, sentences)
        self._check_model(model)
        return self._shown(column_of(texts, targets=targets), options, progress)

    def list_models(self, *, timeout_s: float | None = None) -> pb.ListModelsResponse:
        """List this model, as ``Client.list_models`` does."""
        return shown(pb.ListModelsResponse(models=[self._described(with_card=False)]))

    def get_model(self, model: str = "", *, timeout_s: float | None = None) -> pb.Model:
        """Get this model with its card, as ``Client.get_model`` does.

        Raises:
            CallFailed: this is another model.
        """
        self._check_model(model)
        return shown(self._described(with_card=True))

    def _described(self, with_card: bool) -> pb.Model:
        limited = self._offline.text_limits
        limits = pb.Limits(
            text_bytes=limited.bytes_max, explanation_bytes=BYTES_MAX, sentences=limited.sentences_max, targets=limited.targets_max
        )
        return convert.model_of(self, True, limits, self._explainer.methods, with_card)

    def _check_model(self, model: str) -> None:
        bundle = self.classifier.bundle
        if model not in ("", self._given, bundle.manifest.name, bundle.id):
            raise _failure(ModelNotFound(f"model {model[:128]!r} is not loaded; loaded are {bundle.id}"))

    def _shown(self, column: Column, options: requests.Options, progress: bool | None) -> Generator[Result, None, None]:
        with counting(column.count, progress) as count:
            for result in self._offline.classify_all(column.items, truncation=options.truncation, sentences=options.sentences):
                count(result)
                yield result

    def _explanation(
        self, request: pb.ExplainRequest | pb.ClassifyRequest, text: str, text_pair: str | None, timeout_s: float
    ) -> Explanation:
        until = time.monotonic() + timeout_s
        messages = Messages(convert.model_id(self), self.classifier.manifest.labels)
        reader = Reader(text, text_pair)
        try:
            with self._offline.turn(timeout_s):
                explanation = explanation_request(request, BYTES_MAX)
                self._offline.check(Query(text, text_pair, explanation.truncation))
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


def _each(
    column: Column, explain: Callable[[Item], Explanation | CallFailed], progress: bool | None
) -> Generator[Explanation | CallFailed, None, None]:
    with counting(column.count, progress, "explain") as count:
        for item in column.items:
            found = explain(item)
            count(found)
            yield found


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
