"""Offline scoring gives the same answers as serving, and the failure of one text does not affect others."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sentiment.client import CallFailed, Classification
from sentiment.model.session import Session, Stop
from sentiment.serving.local import LocalClassifier
from sentiment.serving.offline import READ, ROWS, Answer, OfflineClassifier
from tests.corpus.files import make_texts


@pytest.fixture
def offline(bundles: Path) -> OfflineClassifier:
    return OfflineClassifier("tiny", (bundles,))


@pytest.mark.parametrize("truncation", ["", "refuse", "head", "head_tail", "windows"])
def test_texts_of_any_length_have_the_same_answers_as_from_a_server(truncation: str, bundles: Path, offline: OfflineClassifier) -> None:
    # More texts than are held at a time; some are too long, are refused, or have no token.
    texts = [*make_texts(ROWS + READ, words=30), " ", "\ud800", "good " * 90, "awful", ""]

    found = list(offline.classify_all(texts, truncation=truncation))

    with LocalClassifier("tiny", (bundles,)) as local:
        expected = list(local.classify_all(texts, truncation=truncation))
    assert len(found) == len(expected) == len(texts)
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, Classification):
            assert isinstance(one, Answer)
            assert (one.scored.label, one.scored.abstain, one.tokens, one.truncated) == (
                other.label, other.abstain, other.tokens, other.truncated,
            )  # fmt: skip
            assert one.scored.scores == pytest.approx(tuple(other.scores.values()), abs=1e-4)
        else:
            assert isinstance(one, CallFailed)
            assert (one.code, one.message) == (other.code, other.message)
    assert sum(isinstance(one, CallFailed) for one in found) >= 3


def test_refused_texts_are_not_held_in_unbounded_number(offline: OfflineClassifier) -> None:
    taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        for taken in range(1, 10 * ROWS + 1):  # noqa: B007  # how many were taken
            yield ""

    found = offline.classify_all(texts())

    assert isinstance(next(found), CallFailed)
    assert taken <= ROWS + READ
    assert sum(isinstance(one, CallFailed) for one in found) == 10 * ROWS - 1


class Failing:
    """A session that fails on batches with one certain text."""

    def __init__(self, session: Session, culprit: Sequence[int], fail: Any) -> None:
        self._session, self._culprit, self._fail = session, list(culprit), fail

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, feeds: Any, stop: Stop | None = None) -> Any:
        logits = self._session.run(feeds, stop)
        hit = [row[: len(self._culprit)].tolist() == self._culprit for row in feeds["input_ids"]]
        return self._fail(logits, hit) if any(hit) else logits


def raising(logits: Any, hit: list[bool]) -> Any:
    raise RuntimeError("no kernel")


def shortened(logits: Any, hit: list[bool]) -> Any:
    return logits[:0]


def infinite(logits: Any, hit: list[bool]) -> Any:
    return np.where(np.array(hit)[:, None], np.inf, logits)


@pytest.mark.parametrize("fail", [raising, shortened, infinite])
def test_a_text_that_cannot_be_computed_fails_alone(fail: Any, offline: OfflineClassifier) -> None:
    texts = [*make_texts(20, words=5), "awful great film bad", *make_texts(20, words=5, seed=2)]
    healthy = list(offline.classify_all(texts))
    culprit = offline._classifier.tokenizer.encode(texts[20]).ids
    offline._classifier.session = Failing(offline._classifier.session, culprit, fail)

    found = list(offline.classify_all(texts))

    failed = [number for number, one in enumerate(found) if isinstance(one, CallFailed)]
    assert failed == [number for number, text in enumerate(texts) if text == texts[20]]
    assert {str(found[number].code.name) for number in failed} == {"INTERNAL"}
    for number, (one, other) in enumerate(zip(found, healthy, strict=True)):
        if number not in failed:
            assert one.scored.scores == pytest.approx(other.scored.scores, abs=1e-4)
