"""Reads texts from files and answers them in this process, as the server would.

Not by a server: its answers do not say how many tokens are unknown or fragments, and it would count these texts among those of its callers.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from sentiment.client import CallFailed
from sentiment.client.columns import Unusable
from sentiment.errors import BadSettings
from sentiment.files.errors import BadFile
from sentiment.files.reading import Reading, Table
from sentiment.files.rows import TEXT, BadLabel, Row, Unread
from sentiment.serving.offline import ROWS, OfflineClassifier
from sentiment.watch.counts import OF_ANSWERS, OF_TEXTS, Entry, Seen, Told


class TextSource:
    """A bundle that answers texts. ``left_out``: texts without an answer, by the reason."""

    def __init__(self, local: OfflineClassifier, reading: Reading, labels_column: str, truncation: str) -> None:
        """``reading``: how files are read; ``labels_column``: of the right labels, empty for none."""
        bundle = local.classifier.bundle
        self.id, self.digest, self.labels, self.manifest = bundle.id, bundle.digest, bundle.manifest.labels, bundle.manifest
        self.signals = (*OF_ANSWERS, *(OF_TEXTS if local.classifier.tokenizer.has_fragments else OF_TEXTS[:1]))
        self.left_out: Counter[str] = Counter()
        self._local, self._truncation = local, truncation
        self._reading, self._labels_column = reading, labels_column

    def entries(self, path: Path, labelled: bool = True) -> Iterator[Entry]:
        """The answers to a file's texts in order and, if they are ``labelled``, the right label before each.

        Raises:
            BadFile: the file cannot be read, or a label is none of the model's.
        """
        column = self._labels_column if labelled else ""
        with Table(path, self._reading) as table:
            if column and table.columns == (TEXT,) and column != TEXT:
                raise BadSettings(f"--labels {column}: {path} has no other column")
            key = table.key(self._reading.column)
            # In JSON a row without a label may lack the key.
            told = table.key(column, "--labels") if column and table.columns else column
            number = 0
            while chunk := list(itertools.islice(table, ROWS)):
                labels = [self._told(path, row, column, told) for row in chunk]
                for seen, label in zip(self._seen([row.text(key) for row in chunk]), labels, strict=True):
                    number += 1
                    if seen is not None:
                        if label:
                            yield Told(number, label, label == seen.label, seen.abstained)
                        yield seen

    def _seen(self, texts: Sequence[str | Unread]) -> Iterator[Seen | None]:
        """The answers; None where there is none."""
        asked = [Unusable(text.reason) if isinstance(text, Unread) else text for text in texts]
        results = list(self._local.classify_all(asked, truncation=self._truncation))
        answered = [
            text for text, result in zip(texts, results, strict=True) if isinstance(text, str) and not isinstance(result, CallFailed)
        ]
        readings = iter(self._local.readings(answered, truncation=self._truncation))
        tokenizer = self._local.classifier.tokenizer
        for text, result in zip(texts, results, strict=True):
            if isinstance(result, CallFailed):
                why = "rows that cannot be read" if isinstance(text, Unread) else f"texts without an answer ({result.code.name})"
                self.left_out[why] += 1
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

    def _told(self, path: Path, row: Row, column: str, key: str) -> str:
        """The right label of a row, a label's name or its number; empty if it has none."""
        if not key:
            return ""
        try:
            label = label_of(row.label(key), self.labels)
        except BadLabel as error:
            raise BadFile(f"{path}: --labels {column}: {error}") from error
        if label and label not in self.labels:
            # Not quoted: a wrong column may hold texts.
            raise BadFile(f"{path}: --labels {column}: {row.place}: the label must be one of {', '.join(self.labels)} or its number")
        return label


def label_of(value: str, labels: Sequence[str]) -> str:
    """The label that a value names, or else that it is the number of, from 0; the value itself if it is neither."""
    named = value in labels or not re.fullmatch(r"[0-9]{1,3}", value) or int(value) >= len(labels)
    return value if named else labels[int(value)]
