"""Run many texts through a graph with the service's own tokenizer, padding and session, on all available cores.

It uses the service's modules, so that measurements here hold for the service.
"""

from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.cores import cores_granted
from sentiment.model.long_texts import READ_ON
from sentiment.model.parts import read_parts
from sentiment.model.scores import Scored, unnamed
from sentiment.model.session import Session
from sentiment.model.tensors import Feeds, pad
from sentiment.model.tokenizer import Row, Tokenizer, Windows
from sentiment.observability.drift import values_of
from sentiment_models.data.labelled import TextOrPair, cut_sorted
from sentiment_models.evaluation.metrics import Labels, Logits, Probabilities
from sentiment_models.export.labels import read_config
from sentiment_models.export.manifest import CONFIG_FILE

# Larger batches are no faster on a CPU, and 4 rows of 512 tokens already take 200 MB of attention scores.
BATCH_ROWS_MAX = 16
BATCH_TOKENS_MAX = 2048
# Texts are tokenized and sorted by length in pools of this size, which bounds memory and leaves many batches of each length.
POOL_TEXTS = 2048


def load_served(bundle: Path, precision: str | None = None) -> Classifier:
    """Load a bundle to measure it. ``precision``: of the graph; None: the one that would be served on this machine.

    Raises:
        BadCheckpoint: the bundle's config is of a model that is not a classifier with one label a text.
        sentiment.errors.BadBundle: the bundle cannot be served on this machine.
    """
    classifier = load_classifier(bundle, precision)
    # Bundles of before the export refused other tasks, or made by hand.
    if (bundle / CONFIG_FILE).is_file():
        read_config(bundle)
    return classifier


@dataclass(frozen=True, slots=True)
class Graph:
    """A session and its tokenizer. All methods are thread-safe."""

    tokenizer: Tokenizer
    session: Session
    pads_left: bool = False

    def feeds(self, rows: Sequence[Row], length: int = 0) -> Feeds:
        """Pad rows to the longest of them, or to ``length`` tokens if that is more."""
        feeds = pad(rows, self.session.inputs, self.tokenizer.pad_id, self.pads_left)
        extra = max(0, length - max(row.tokens for row in rows))
        widths = ((0, 0), (extra, 0) if self.pads_left else (0, extra))
        fill = {"input_ids": self.tokenizer.pad_id}
        return {name: np.pad(array, widths, constant_values=fill.get(name, 0)) for name, array in feeds.items()}

    def logits(self, rows: Sequence[Row], length: int = 0) -> Logits:
        """Run rows as one batch in the calling thread; return logits in their order."""
        return self.session.run(self.feeds(rows, length))


@dataclass(frozen=True, slots=True)
class Served:
    """The answers of the service, in the order of the texts.

    Attributes:
        stated: calibrated probabilities, [texts, labels].
        abstain: whether the answer abstains, [texts].
        mixed: whether the text is said to praise and blame, [texts].
        lengths: tokens read, special tokens included, [texts]; 0 for a target that its text does not name.
        long: whether the text is longer than the model reads at once, [texts].
        truncated: whether a part of the text was not read, [texts].
        signals: what the server compares with a reference, see ``values_of``, by text.
        rows: what was read, of texts in windows the first, by text.
    """

    stated: Probabilities
    abstain: NDArray[np.bool_]
    mixed: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    long: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    signals: Sequence[tuple[Hashable, ...]]
    rows: Sequence[Row]

    @property
    def answers(self) -> Labels:
        """Index of the likeliest label of each text, [texts]."""
        found: Labels = self.stated.argmax(axis=1)
        return found


def encode_all(tokenizer: Tokenizer, texts: Sequence[TextOrPair]) -> list[Row]:
    """Tokenize texts and pairs of texts."""
    singles = [text for text in texts if isinstance(text, str)]
    if len(singles) == len(texts):
        return tokenizer.encode_many(singles)
    return [tokenizer.encode(text) if isinstance(text, str) else tokenizer.encode(*text) for text in texts]


def answer(graph: Graph, texts: Sequence[TextOrPair], title: str = "texts", threads: int = 0) -> Logits:
    """Return the raw logits of every text, in their order. Texts are batched by length, with a progress bar.

    Args:
        graph: the graph.
        texts: at least one; each is truncated to the graph's limit.
        title: title of the progress bar.
        threads: number of threads that share the session; 0: the available cores.
    """
    logits: list[Logits] = []
    with Pool(graph, threads, len(texts), title) as pool:
        for start in range(0, len(texts), POOL_TEXTS):
            logits += pool.run(encode_all(graph.tokenizer, texts[start : start + POOL_TEXTS]))
    return np.stack(logits)


def graph_of(classifier: Classifier) -> Graph:
    """Return the graph that a classifier runs."""
    return Graph(classifier.tokenizer, classifier.session, classifier.manifest.padding_side == "left")


def serve(classifier: Classifier, texts: Sequence[TextOrPair], title: str, threads: int = 0, truncation: str | None = None) -> Served:
    """Answer every text as the service would, with a progress bar.

    Args:
        classifier: the classifier.
        texts: at least one. A second text is the other one of a pair, or a target where the bundle answers targets.
        title: title of the progress bar.
        threads: number of threads that share the session; 0: the available cores.
        truncation: how to read texts that do not fit; None: the bundle's default. ``refuse`` is read as ``head``.
    """
    truncation = truncation or classifier.manifest.default_truncation
    graph = graph_of(classifier)
    scored: list[Scored] = []
    readings: list[Row | Windows | None] = []
    heads: list[Row] = []
    with Pool(graph, threads, len(texts), title) as pool:
        for start in range(0, len(texts), POOL_TEXTS):
            some = texts[start : start + POOL_TEXTS]
            firsts = encode_all(graph.tokenizer, some)
            read = [_reading(classifier, text, row, truncation) for text, row in zip(some, firsts, strict=True)]
            rows = [row for reading in read if reading for row in reading.rows]
            pool.expect(len(rows) - len(some))
            found = iter(pool.run(rows))
            scored += [_scored(classifier, reading, found) for reading in read]
            readings += read
            heads += firsts
    read_rows = [reading or head for reading, head in zip(readings, heads, strict=True)]
    return Served(
        rows=[reading.rows[0] for reading in read_rows],
        stated=np.array([one.scores for one in scored], np.float64),
        abstain=np.array([one.abstain for one in scored], np.bool_),
        mixed=np.array([one.mixed for one in scored], np.bool_),
        lengths=np.array([reading.tokens if reading else 0 for reading in readings], np.int64),
        long=np.array([row.truncated for row in heads], np.bool_),
        truncated=np.array([bool(reading and reading.truncated) for reading in readings], np.bool_),
        signals=[_signals(classifier.tokenizer, one, reading) for one, reading in zip(scored, read_rows, strict=True)],
    )


def read_all(classifier: Classifier, texts: Sequence[str]) -> list[Row | Windows]:
    """What the service reads of single texts by default."""
    truncation = classifier.manifest.default_truncation
    rows = encode_all(classifier.tokenizer, texts)
    return [
        classifier.read_on(text, truncation) if row.truncated and truncation in READ_ON else row
        for text, row in zip(texts, rows, strict=True)
    ]


def _reading(classifier: Classifier, text: TextOrPair, row: Row, truncation: str) -> Row | Windows | None:
    """What is read of a text, or of a text for a target; None if it does not name the target. ``row``: its head."""
    targets = classifier.manifest.targets
    if isinstance(text, str):
        return classifier.read_on(text, truncation) if row.truncated and truncation in READ_ON else row
    if targets is None:
        # Pairs that do not fit are truncated, the longer text first, as the service does by default.
        return row
    whole, target = text
    return read_parts(classifier.tokenizer, whole, classifier.tokenizer.encode(whole), 0, (target,), targets.tokens).targets[0].row


def _scored(classifier: Classifier, reading: Row | Windows | None, logits: Iterator[Logits]) -> Scored:
    """The answer to what is read. ``logits``: of the rows that come next."""
    if reading is None:
        assert classifier.manifest.neutral is not None, "a model for targets has this label"
        return unnamed(classifier.manifest.labels, classifier.manifest.neutral)
    return classifier.answer(reading, [next(logits).tolist() for _ in reading.rows])[0]


def _signals(tokenizer: Tokenizer, scored: Scored, reading: Row | Windows) -> tuple[Hashable, ...]:
    unknown, fragments = tokenizer.unknown_tokens(reading), tokenizer.fragments(reading)
    return values_of(scored.label, scored.abstain, scored.score, reading.tokens, unknown, fragments)


class Pool:
    """Threads that run rows of a graph, and a progress bar of rows."""

    def __init__(self, graph: Graph, threads: int, total: int, title: str) -> None:
        """Start the threads; 0: one per available core. ``total``: the rows that are expected."""
        self._graph = graph
        self._threads = ThreadPoolExecutor(threads or cores_granted())
        self._total = total
        self._bar = tqdm(total=total, desc=title, unit="row", mininterval=1)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._bar.close()

    def expect(self, more: int) -> None:
        """Add rows to the total of the progress bar, for texts of several rows."""
        self._total += more
        self._bar.total = self._total

    def run(self, rows: Sequence[Row]) -> list[Logits]:
        """Return the raw logits of each row, in order."""
        logits: dict[int, Logits] = {}
        groups = list(by_length(rows))
        batches = self._threads.map(self._graph.logits, ([rows[index] for index in group] for group in groups))
        for group, found in zip(groups, batches, strict=True):
            logits.update(zip(group, found, strict=True))
            self._bar.update(len(group))
        return [logits[index] for index in range(len(rows))]


def by_length(rows: Sequence[Row]) -> Iterator[list[int]]:
    """Group indices of rows of similar length, the longest first. Short batches at the end keep all threads busy until the end."""
    lengths = [row.tokens for row in rows]
    return cut_sorted(sorted(range(len(rows)), key=lengths.__getitem__, reverse=True), lengths, BATCH_ROWS_MAX, BATCH_TOKENS_MAX)
