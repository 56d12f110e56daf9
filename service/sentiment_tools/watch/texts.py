"""Reads texts from files and answers them in this process, as the server would.

Not by a server: its answers do not say how many tokens are unknown or fragments, and it would count these texts among those of its callers.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from sentiment.client import CallFailed, Classification, Truncation
from sentiment.client.columns import TextOrPair, Unusable
from sentiment.errors import BadSettings
from sentiment.files.errors import BadFile
from sentiment.files.labels import Labels, WrongLabel
from sentiment.files.reading import Reading, Table
from sentiment.files.rows import TEXT, BadLabel, Row, Unread
from sentiment.offline import ROWS, OfflineClassifier
from sentiment_tools.watch.counts import OF_ANSWERS, OF_TEXTS, Entry, Seen, Told
from sentiment_tools.watch.evaluation import Judged


class TextSource:
    """A bundle that answers texts. ``left_out``: texts without an answer, by the reason."""

    def __init__(self, local: OfflineClassifier, reading: Reading, pair_column: str, labels_column: str, truncation: Truncation) -> None:
        """``reading``: how files are read; ``pair_column``: of second texts, and ``labels_column`` of right labels, empty for none."""
        bundle = local.classifier.bundle
        self.id, self.digest, self.labels, self.manifest = bundle.id, bundle.digest, bundle.manifest.labels, bundle.manifest
        self.signals = (*OF_ANSWERS, *(OF_TEXTS if local.classifier.tokenizer.has_fragments else OF_TEXTS[:1]))
        self.left_out: Counter[str] = Counter()
        self._local, self._truncation = local, truncation
        self._reading, self._pair_column, self._labels_column = reading, pair_column, labels_column

    def entries(self, path: Path, labelled: bool = True) -> Iterator[Entry]:
        """The answers to a file's texts in order and, if they are ``labelled``, the right label before each.

        Raises:
            BadFile: the file cannot be read, or the model does not have a label.
        """
        number = 0
        for _, texts, labels in self._chunks(path, self._labels_column if labelled else ""):
            for seen, label in zip(self._seen(texts), labels, strict=True):
                number += 1
                if seen is not None:
                    if label:
                        yield Told(number, label, label == seen.label, seen.abstained)
                    yield seen

    def judged(self, path: Path) -> Iterator[Judged]:
        """The answers to a file's texts that have a right label, in order. Texts without one are not answered.

        Raises:
            BadFile: as in ``entries``.
        """
        for rows, texts, labels in self._chunks(path, self._labels_column):
            asked = [(row, text, label) for row, text, label in zip(rows, texts, labels, strict=True) if label]
            self.left_out["texts without a label"] += len(rows) - len(asked)
            for (row, text, label), answer in zip(asked, self._answers([text for _, text, _ in asked]), strict=True):
                if answer is not None and not isinstance(text, Unread):
                    said = text if isinstance(text, str) else " | ".join(text)
                    yield Judged(label, answer.scores, answer.abstain, said, row.place)

    def _chunks(self, path: Path, column: str) -> Iterator[tuple[list[Row], list[TextOrPair | Unread], list[str]]]:
        """The rows of a file with their texts and right labels, ROWS at a time. ``column``: of the labels; empty for none."""
        with Table(path, self._reading) as table:
            for option, name in (("--labels", column), ("--pair", self._pair_column)):
                if name and table.columns == (TEXT,) and name != TEXT:
                    raise BadSettings(f"{option} {name}: {path} has no other column")
            key = table.key(self._reading.column)
            pair = table.key(self._pair_column, "--pair") if self._pair_column else ""
            # In JSON a row without a label may lack the key.
            told = table.key(column, "--labels") if column and table.columns else column
            labels = Labels(self.labels)
            while chunk := list(itertools.islice(table, ROWS)):
                right = [self._told(path, row, column, told, labels) for row in chunk]
                yield chunk, [_asked(row, key, pair) for row in chunk], right

    def _answers(self, texts: Sequence[TextOrPair | Unread]) -> Iterator[Classification | None]:
        """The answers; None where there is none, which ``left_out`` counts."""
        asked = [Unusable(text.reason) if isinstance(text, Unread) else text for text in texts]
        for text, result in zip(texts, self._local.classify_all(asked, truncation=self._truncation), strict=True):
            if isinstance(result, CallFailed):
                why = "rows that cannot be read" if isinstance(text, Unread) else f"texts without an answer ({result.code.name})"
                self.left_out[why] += 1
                yield None
            else:
                yield result

    def _seen(self, texts: Sequence[TextOrPair | Unread]) -> Iterator[Seen | None]:
        """The answers; None where there is none."""
        results = list(self._answers(texts))
        answered = [text for text, result in zip(texts, results, strict=True) if not isinstance(text, Unread) and result is not None]
        readings = iter(self._local.readings(answered, truncation=self._truncation))
        tokenizer = self._local.classifier.tokenizer
        for result in results:
            if result is None:
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

    def _told(self, path: Path, row: Row, column: str, key: str, labels: Labels) -> str:
        """The right label of a row, a label's name or its number; empty if it has none."""
        try:
            value = row.label(key) if key else ""
            return self.labels[labels.place(value, row.place)] if value else ""
        except BadLabel as error:
            raise BadFile(f"{path}: --labels {column}: {error}") from error
        except WrongLabel as error:
            raise BadFile(f"{path}: --labels {column}: {row.place}: the label {error}") from error


def _asked(row: Row, key: str, pair: str) -> TextOrPair | Unread:
    """The text of a row, or its two texts; what is wrong with it if one cannot be read."""
    text, second = row.text(key), row.text(pair) if pair else ""
    if isinstance(text, Unread) or not pair:
        return text
    return second if isinstance(second, Unread) else (text, second)
