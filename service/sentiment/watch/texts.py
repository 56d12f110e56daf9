"""Reads texts from files and answers them in this process, as the server would.

Not by a server: its answers do not say how many tokens are unknown or fragments, and it would count these texts among those of its callers.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from sentiment.client import CallFailed
from sentiment.client.columns import TextOrPair
from sentiment.errors import BadSettings
from sentiment.files.labels import Labels, WrongLabel
from sentiment.files.texts import BadFile, read_labels, read_texts
from sentiment.serving.offline import ROWS, OfflineClassifier
from sentiment.watch.counts import OF_ANSWERS, OF_TEXTS, Entry, Seen, Told


class TextSource:
    """A bundle that answers texts. ``left_out``: texts without an answer, by the reason."""

    def __init__(self, local: OfflineClassifier, column: str, pair_column: str, labels_column: str, truncation: str) -> None:
        """``column``: of the texts; ``pair_column``: of the second texts, and ``labels_column`` of right labels, empty for none."""
        bundle = local.classifier.bundle
        self.id, self.digest, self.labels, self.manifest = bundle.id, bundle.digest, bundle.manifest.labels, bundle.manifest
        self.signals = (*OF_ANSWERS, *(OF_TEXTS if local.classifier.tokenizer.has_fragments else OF_TEXTS[:1]))
        self.left_out: Counter[str] = Counter()
        self._local, self._truncation = local, truncation
        self._column, self._pair_column, self._labels_column = column, pair_column, labels_column

    def entries(self, path: Path, labelled: bool = True) -> Iterator[Entry]:
        """The answers to a file's texts in order and, if they are ``labelled``, the right label before each.

        Raises:
            BadFile: the file cannot be read, or a label is none of the model's.
        """
        column = self._labels_column if labelled else ""
        if column and path.suffix == ".txt":
            raise BadSettings(f"--labels {column}: {path} has no columns")
        first = read_texts(path, self._column)
        texts: Iterator[TextOrPair] = first
        if self._pair_column:
            if path.suffix == ".txt":
                raise BadSettings(f"--pair {self._pair_column}: {path} has no columns")
            texts = zip(first, read_texts(path, self._pair_column), strict=True)
        told = self._told(path, column) if column else itertools.repeat("")
        number = 0
        while chunk := list(itertools.islice(texts, ROWS)):
            right = list(itertools.islice(told, len(chunk)))
            for seen, label in zip(self._seen(chunk), right, strict=True):
                number += 1
                if seen is not None:
                    if label:
                        yield Told(number, label, label == seen.label, seen.abstained)
                    yield seen

    def _seen(self, texts: Sequence[TextOrPair]) -> Iterator[Seen | None]:
        """The answers; None where there is none."""
        results = list(self._local.classify_all(texts, truncation=self._truncation))
        answered = [text for text, result in zip(texts, results, strict=True) if not isinstance(result, CallFailed)]
        readings = iter(self._local.readings(answered, truncation=self._truncation))
        tokenizer = self._local.classifier.tokenizer
        for result in results:
            if isinstance(result, CallFailed):
                self.left_out[f"texts without an answer ({result.code.name})"] += 1
                yield None
                continue
            reading = next(readings)
            yield Seen(
                label=result.label,
                abstained=result.abstain,
                score=result.score,
                tokens=result.tokens,
                truncated=result.truncated,
                unknown=tokenizer.unknown_tokens(reading),
                fragments=tokenizer.fragments(reading),
            )

    def _told(self, path: Path, column: str) -> Iterator[str]:
        """The right label of each text, a label's name or its number; empty for those without."""
        labels = Labels(self.labels)
        for number, value in enumerate(read_labels(path, column), 1):
            try:
                yield self.labels[labels.place(value, f"text {number}")] if value else ""
            except WrongLabel as error:
                raise BadFile(f"{path}: --labels {column}: the label of text {number} {error}") from error
