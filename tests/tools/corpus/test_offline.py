"""Offline scoring gives the same answers as serving, and the failure of one text does not affect others."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sentiment.client import CallFailed, Classification, Client, Result
from sentiment.model.session import Session, Stop
from sentiment.offline import READ, ROWS, Closed, OfflineClassifier
from tests.tools.corpus.files import make_texts


@pytest.fixture
def offline(bundles: Path) -> Iterator[OfflineClassifier]:
    made = OfflineClassifier("tiny", (bundles,), threads=1)
    yield made
    made.close()


def told(result: Result) -> object:
    """All of a result but its times."""
    if isinstance(result, CallFailed):
        return result.code, result.message, result.violations
    return result.label, result.score, dict(result.scores), result.abstain, result.model, result.tokens, result.truncated


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("truncation", ["", "refuse", "head", "head_tail", "windows"])
def test_texts_of_any_length_have_the_answers_of_a_server(truncation: str, threads: int, bundles: Path, client: Client) -> None:
    # More texts than are held at a time; some are too long, are refused, or have no token.
    texts = [*make_texts(2 * ROWS + READ, words=30), " ", "\ud800", "good " * 90, "awful", ""]
    offline = OfflineClassifier("tiny", (bundles,), threads=threads)

    found = list(offline.classify_all(texts, truncation=truncation))

    offline.close()
    assert list(map(told, found)) == list(map(told, client.classify_all(texts, truncation=truncation)))
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
    culprit = offline.classifier.tokenizer.encode(texts[20]).ids
    offline.classifier.session = Failing(offline.classifier.session, culprit, fail)

    found = list(offline.classify_all(texts))

    failed = [number for number, one in enumerate(found) if isinstance(one, CallFailed)]
    assert failed == [number for number, text in enumerate(texts) if text == texts[20]]
    assert {str(found[number].code.name) for number in failed} == {"INTERNAL"}
    for number, (one, other) in enumerate(zip(found, healthy, strict=True)):
        if number not in failed:
            assert told(one) == told(other)


def test_close_waits_for_the_batch_that_runs_and_fails_the_rest(bundles: Path) -> None:
    offline = OfflineClassifier("tiny", (bundles,), threads=2)
    begun, go = threading.Event(), threading.Event()
    real = offline.classifier.session

    class Slow(Failing):
        def run(self, feeds: Any, stop: Stop | None = None) -> Any:
            begun.set()
            assert go.wait(10)
            return real.run(feeds, stop)

    offline.classifier.session = Slow(real, (), None)
    found: list[object] = []

    def classify() -> None:
        try:
            found.extend(offline.classify_all(make_texts(200)))
        except Closed as error:
            found.append(error)

    caller = threading.Thread(target=classify)
    closer = threading.Thread(target=offline.close)
    caller.start()
    begun.wait(10)
    closer.start()
    closer.join(0.2)
    assert closer.is_alive()

    go.set()
    closer.join(10)
    caller.join(10)
    assert not closer.is_alive()
    assert not caller.is_alive()
    assert [type(one) for one in found] == [Closed]
    with pytest.raises(Closed, match="tiny/1 is closed"):
        next(offline.classify_all(["good"]))


def test_an_iterator_that_is_left_early_runs_no_more_batches(bundles: Path) -> None:
    offline = OfflineClassifier("tiny", (bundles,), threads=2)
    results = offline.classify_all(make_texts(3 * ROWS))

    next(results)
    results.close()

    assert isinstance(next(offline.classify_all(["good"])), Classification)
    offline.close()
