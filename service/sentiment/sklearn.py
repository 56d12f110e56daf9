"""``SentimentClassifier``: a bundle as a scikit-learn classifier of texts. Needs scikit-learn, from the extra ``sklearn``."""

import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sentiment.client.columns import Column, Texts
from sentiment.client.requests import Truncation
from sentiment.client.results import CallFailed, Classification

try:
    import numpy as np
    import numpy.typing as npt
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import unique_labels
except ModuleNotFoundError as missing:
    if (package := {"sklearn": "scikit-learn", "numpy": "NumPy"}.get((missing.name or "").partition(".")[0])) is None:
        raise
    what = f"sentiment.sklearn needs {package}, which is not installed: pip install 'sentiment-service[sklearn]'"
    raise ModuleNotFoundError(what, name=missing.name) from missing

if TYPE_CHECKING:
    from sentiment.local import Folders, Local

# Loaded bundles that are kept: the clones of a cross validation share one.
LOADED_MAX = 2
# The least in 32 bits: a probability that is rounded to 0 has a logarithm, too.
PROBABILITY_MIN = np.finfo(np.float32).tiny
# By process: one forked while another thread loads would find a lock that nobody releases.
_locks: dict[int, threading.Lock] = {}


class SentimentClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no annotations
    """Classifies texts with a bundle in this process. It is trained already: ``fit`` only checks labels, and need not be called.

    ``X`` is a column of texts: an iterable, a pandas or polars Series, a NumPy array of one dimension or an Arrow column. Labels are the
    model's, as strings, or what ``labels`` calls them, such as 0 and 1. What the model abstains from has a label too.

    Clones and copies with equal parameters share one loaded bundle, also between threads. The last LOADED_MAX bundles stay loaded until
    the process ends. An earlier one leaves the memory when no call uses it; on a GPU it stays until the process ends.

    >>> classifier = SentimentClassifier()
    >>> classifier.classes_.tolist()
    ['negative', 'positive']
    >>> classifier.predict(["a good film", "awful"]).tolist()
    ['positive', 'negative']
    >>> classifier.score(["a good film", "awful"], ["positive", "positive"])
    0.5
    >>> SentimentClassifier(labels={0: "negative", 1: "positive"}).predict(["a good film", "awful"]).tolist()
    [1, 0]
    """

    def __init__(
        self,
        model: str | Path = "",
        *,
        bundles: "Folders | None" = None,
        device: str = "auto",
        threads: int = 0,
        truncation: Truncation = "",
        labels: Mapping[Any, str] | None = None,
    ) -> None:
        """The bundle is loaded when it is first needed.

        Args:
            model: as in ``Local``.
            bundles: as in ``Local``.
            device: as in ``Local``.
            threads: as in ``Local``.
            truncation: refuse, head, head_tail or windows. Empty: the model's default.
            labels: what ``y`` and predictions call each of the model's labels: ``{0: "negative", 1: "positive"}``. None: as the model
                does. VotingClassifier and StackingClassifier number the labels, sorted, from 0, and need them so.
        """
        self.model = model
        self.bundles = bundles
        self.device = device
        self.threads = threads
        self.truncation = truncation
        self.labels = labels

    @property
    def classes_(self) -> npt.NDArray[Any]:  # of the names' kind
        """The labels, by the names in ``labels``, sorted: the columns of ``predict_proba``.

        Raises:
            BadBundle, BadSettings: as in ``Local``.
            TypeError: ``labels`` is not a mapping.
            ValueError: ``labels`` does not give each of the model's labels one name, all of one kind.
        """
        return np.array(list(self._names.values()))

    def fit(self, X: Texts, y: Sequence[Any] | None = None) -> Self:  # noqa: ARG002, N803  # scikit-learn's names
        """Check the labels; learns nothing.

        Args:
            X: not read.
            y: right labels; None checks nothing.

        Raises:
            ValueError: the model does not have a label.
        """
        known = self.classes_
        strange = [] if y is None else [label for label in unique_labels(y).tolist() if label not in known]
        if strange:
            names = ", ".join(map(str, known))
            raise ValueError(
                f"y has {len(strange)} labels that the model does not have, such as {strange[0]!r}; it has {names}: see labels"
            )
        return self

    def predict(self, X: Texts) -> npt.NDArray[Any]:  # noqa: N803  # as above
        """The label of each text.

        Raises:
            TypeError: ``X`` is not a column of texts.
            ValueError: a text has no answer: it is missing, empty or no string. The message has its place from 0.
        """
        names = self._names
        return np.array([names[answer.label] for answer in self._answers(X)], dtype=self.classes_.dtype)

    def predict_proba(self, X: Texts) -> npt.NDArray[np.float64]:  # noqa: N803  # as above
        """The calibrated probabilities, [texts, classes_].

        Raises:
            TypeError, ValueError: as in ``predict``.
        """
        labels = self._names.keys()
        rows = [[answer.scores[label] for label in labels] for answer in self._answers(X)]
        return np.array(rows, dtype=np.float64).reshape(-1, len(labels))

    def decision_function(self, X: Texts) -> npt.NDArray[np.float64]:  # noqa: N803  # as above
        """How the probabilities speak for a label, as scikit-learn's scorers and calibrators want it.

        Of two labels: the log odds of the second of ``classes_``, [texts]; ``predict`` gives it where they are positive. Of more: the
        log probabilities, [texts, classes_]; ``predict`` gives the label of the highest.

        >>> SentimentClassifier().decision_function(["a good film", "awful"]).round(2).tolist()
        [2.0, -4.0]

        Raises:
            TypeError, ValueError: as in ``predict``.
        """
        logs = np.log(np.maximum(self.predict_proba(X), PROBABILITY_MIN))
        return logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs

    @property
    def _names(self) -> dict[str, Any]:
        """The name of each of the model's labels, sorted by name."""
        own = self._local.classifier.manifest.labels
        return {label: label for label in sorted(own)} if self.labels is None else _named(self.labels, own)

    def _answers(self, texts: Texts) -> list[Classification]:
        Column(texts)  # refuses a single string, which Local would answer
        try:
            results = self._local.classify(texts, truncation=self.truncation, progress=False).raise_on_error()
        except CallFailed as error:
            raise ValueError(error.message) from error
        return list(results.answered.values())

    @property
    def _local(self) -> "Local":
        bundles = self.bundles
        if bundles is not None and not isinstance(bundles, str | Path):
            bundles = tuple(bundles)
        # A forked process has no threads of its parent.
        process = os.getpid()
        with _locks.setdefault(process, threading.Lock()):
            return _opened(process, self.model, bundles, self.device, self.threads)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:  # sklearn.utils.Tags
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.one_d_array, tags.input_tags.two_d_array, tags.input_tags.string = True, False, True
        tags.target_tags.required = False
        return tags


def _named(labels: Mapping[Any, str], own: Sequence[str]) -> dict[str, Any]:
    """The name of each of the model's ``own`` labels, sorted by name."""
    if not isinstance(labels, Mapping):
        raise TypeError(
            f"labels must map names to the model's labels, such as {{0: 'negative', 1: 'positive'}}, got {type(labels).__name__}"
        )
    counts = Counter(labels.values())
    unknown = [label for label in counts if label not in own]
    wrong = [f"gives {label} {counts[label]} names" for label in own if counts[label] != 1]
    if len({type(name) for name in labels}) > 1:
        wrong.insert(0, "has names of several kinds")
    if unknown:
        wrong.insert(0, f"names {unknown[0]!r}, which the model does not have")
    if wrong:
        raise ValueError(f"labels {wrong[0]}; the model's labels are {', '.join(own)}, and each needs one name")
    return {labels[name]: name for name in sorted(labels)}


@lru_cache(LOADED_MAX)
def _opened(_process: int, model: str | Path, bundles: "Folders | None", device: str, threads: int) -> "Local":
    from sentiment import Local  # noqa: PLC0415  # a pipeline can be built, copied and searched without a model runtime

    return Local(model, bundles=bundles, device=device, threads=threads)
