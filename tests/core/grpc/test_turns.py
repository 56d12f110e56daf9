"""What is done for texts in parts in a turn of the event loop is limited by answers and rows, not by texts."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from sentiment.call.call import Call
from sentiment.call.servicer import RESERVE_S_MAX, RESERVE_SHARE, TURN, SentimentService, answers_in, answers_max, in_turns, reserve_s
from sentiment.errors import Expired
from sentiment.model.classifier import Parts, load_classifier
from sentiment.model.tokenizer import Row
from sentiment.observability.metrics import Metrics
from sentiment.pipeline.answer import Answer, Outcome
from sentiment.pipeline.queries import Query, TextLimits
from sentiment.pipeline.served import CHUNK, Served
from tests.tiny import LABELS


class Turns:
    """Counts the turns of the event loop while it is entered, and what is added in each."""

    def __init__(self) -> None:
        self.work: list[int] = []

    async def __aenter__(self) -> Self:
        self._counting = asyncio.create_task(self._count())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._counting.cancel()

    async def _count(self) -> None:
        while True:
            self.work.append(0)
            await asyncio.sleep(0)

    def add(self, work: int) -> None:
        self.work[-1] += work


def in_parts(sentences: int, targets: int) -> Answer:
    nothing: Any = None
    parts = Parts((nothing,) * sentences, sentences, (nothing,) * targets)
    return Answer(nothing, 2, False, False, 0.0, 0.0, 0.0, 0.0, 1, parts)


async def test_a_turn_of_the_event_loop_converts_a_limited_number_of_answers_those_to_parts_included() -> None:
    nothing: Any = None
    service = SentimentService(nothing, nothing, nothing)
    outcomes: list[Outcome] = [in_parts(64, 16), *[Expired("late")] * 200, in_parts(2, 0)] * 5

    async def batch() -> None:
        async for _, outcome in in_turns(outcomes, service._turns, answers_in):
            turns.add(answers_in(outcome))

    async def one(outcome: Outcome) -> None:
        await service.turn_for(outcome)
        turns.add(answers_in(outcome))

    async with Turns() as turns:
        await asyncio.gather(batch(), batch(), *(one(in_parts(64, 16)) for _ in range(20)))

    assert sum(turns.work) == 10 * (81 + 200 + 3) + 20 * 81
    # What begins last may exceed the limit.
    assert max(turns.work) <= TURN + 80


async def test_a_turn_of_the_event_loop_queues_a_limited_number_of_rows(bundles: Path) -> None:
    def submit(rows: Sequence[Row], *_: object) -> Any:
        turns.add(len(rows))
        return SimpleNamespace(rows=len(rows), deadline_at=now + 60, cancel=lambda: False)

    queue: Any = SimpleNamespace(submit=submit)
    metrics = Metrics(("OK",)).model("tiny/1", ["hand"], LABELS)
    served = Served(load_classifier(bundles / "tiny" / "1"), queue, metrics, TextLimits(2**20, 64, 16), 10_000)
    now, queries = time.monotonic(), [Query("good. " * 64, sentences=True) for _ in range(10)]

    async with Turns() as turns:
        many = asyncio.create_task(served.classify_many(queries, now, now + 60))
        await asyncio.gather(*(served.begin(replace(query), now, now + 60, lambda _: None) for query in queries))
        while sum(turns.work) < 20 * 65:
            await asyncio.sleep(0)
        many.cancel()

    assert max(turns.work) <= CHUNK + 64


@pytest.mark.parametrize(
    ("items", "answers"),
    [
        ([Query("good film " * 9)] * 1024, 1024),
        ([Query("good film " * 99, sentences=True, targets=("film", "end"))] * 128, 128 * 67),
        ([Query("a.b.", sentences=True)] * 10, 40),
    ],
)
def test_the_time_that_is_kept_for_answers_grows_with_those_to_parts(items: list[Query], answers: int) -> None:
    call = Call("ClassifyBatch", 0.0, 60.0, lambda: ())

    assert sum(answers_max(query, 64) for query in items) == answers
    assert reserve_s(call, answers) == pytest.approx(RESERVE_S_MAX * max(1, answers / 1024))
    assert reserve_s(call, 10**6) == pytest.approx(RESERVE_SHARE * 60)
