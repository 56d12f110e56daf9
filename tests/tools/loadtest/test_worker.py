"""One client process in virtual time, with a fake driver: what it sends and when, how it counts, and that it ends."""

import asyncio
import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sentiment_tools.loadtest import worker
from sentiment_tools.loadtest.drivers import Answer, LoadFailed
from sentiment_tools.loadtest.messages import message_of
from sentiment_tools.loadtest.mix import BULK, EXPLAIN, INTERACTIVE, LEAVER, SLOW_READER, Call, Mix
from sentiment_tools.loadtest.results import CANCELLED_BY_US, Part
from sentiment_tools.loadtest.worker import REFUSED_PAUSE_S, UNFINISHED, Run
from sentiment_tools.traffic.arrivals import Poisson
from tests.virtual_time import VirtualClock, VirtualTimeLoop

TEXTS = [str(number) for number in range(50)]
OK = Answer("OK", texts_ok=1, tokens=3)
HELD_S = 0.4

CLOCK = VirtualClock()


class Answers:
    """A fake driver that answers by a function and records its calls."""

    def __init__(self, answer: Callable[[Call], Awaitable[Answer]]) -> None:
        self._answer = answer
        self.calls: list[Call] = []
        self.cancelled = 0

    async def connect(self) -> dict[str, str]:
        return {}

    async def call(self, call: Call, timeout_s: float) -> Answer:
        self.calls.append(call)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._answer(call)
        except TimeoutError:
            return Answer("DEADLINE_EXCEEDED", "too late")
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def close(self) -> None:
        pass


async def at_once(_call: Call) -> Answer:
    return OK


async def never(_call: Call) -> Answer:
    await asyncio.Event().wait()
    return OK


def command(**changes: Any) -> dict[str, Any]:
    return {
        "begins_at": 0.1,
        "seconds": HELD_S,
        "warm_up_s": 0.0,
        "objective_s": 0.1,
        "seed": 1,
        "worker": 0,
        "workers": 1,
        "open_max": 1000,
        "law": Poisson(200.0),
        **changes,
    }


def due(rate: float = 200.0, seed: int = 1) -> int:
    """How many calls the law has in the time."""
    return sum(1 for _ in itertools.takewhile(lambda at: at < HELD_S, Poisson(rate).times(seed)))


def hold(driver: Answers, mix: Mix | None = None, **changes: Any) -> Part:
    mix, settings = mix or Mix((0.2, 0.2)), command(**changes)
    CLOCK.now = 0.0

    async def run() -> Part:
        return await Run(driver, mix, settings, CLOCK).hold(mix.calls(TEXTS, settings["seed"]))

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(CLOCK)) as runner:
        return runner.run(run())


def test_every_call_that_is_due_is_sent_and_counted() -> None:
    part = hold(Answers(at_once))

    (group,) = part.groups.values()
    assert group.sent == group.outcomes["OK"] == len(group.latency) == due()
    assert (group.texts_ok, group.tokens) == (due(), 3 * due())
    assert part.held_s == pytest.approx(HELD_S)


def test_an_open_loop_does_not_wait_for_answers() -> None:
    part = hold(Answers(never))

    (group,) = part.groups.values()
    assert group.sent == due()
    assert group.outcomes == {"DEADLINE_EXCEEDED": due()}
    assert part.messages == {"DEADLINE_EXCEEDED": "too late"}


def test_latency_counts_from_when_a_call_was_due() -> None:
    """Coordinated omission: measured from the sending, a stall of the client would show as a single slow call."""
    stalls = iter([0.2])

    async def stall_once(_call: Call) -> Answer:
        # The process stands still, as a paused or starved one does.
        CLOCK.now += next(stalls, 0.0)
        return OK

    part = hold(Answers(stall_once))

    (group,) = part.groups.values()
    assert group.sent == due()
    # About half of all calls were due during the stall, and waited 0 to 0.2 s.
    assert group.latency.percentile(80) > 0.05
    assert part.lag.percentile(80) > 0.05
    assert group.in_time < group.outcomes["OK"]


def test_calls_beyond_the_limit_of_open_calls_count_as_unsent() -> None:
    driver = Answers(never)

    part = hold(driver, Mix((1.0, 1.0)), open_max=5)

    assert len(driver.calls) == 5
    assert part.unsent == due() - 5


def test_a_client_that_is_too_slow_ends_with_the_load_and_counts_unsent_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "OVERDUE_S_MAX", 0.1)
    each_s = 0.02

    async def slow_client(_call: Call) -> Answer:
        CLOCK.now += each_s
        return OK

    part = hold(Answers(slow_client))

    (group,) = part.groups.values()
    assert 0 < group.sent <= 2 + (HELD_S + 0.1) / each_s
    # Estimated by the mean rate.
    assert part.unsent == pytest.approx(due() - group.sent, rel=0.4)


def test_processes_share_the_calls_of_one() -> None:
    mix = Mix((0.2, 0.3), bulk=0.3, cancel=0.2)
    alone, *shared = (Answers(at_once) for _ in range(4))

    hold(alone, mix)
    parts = [hold(driver, mix, worker=number, workers=3) for number, driver in enumerate(shared)]

    assert Counter(alone.calls) == sum((Counter(driver.calls) for driver in shared), Counter())
    assert sum(group.sent for part in parts for group in part.groups.values()) == due()


def test_a_client_that_gives_up_cancels_its_call() -> None:
    driver = Answers(never)

    part = hold(driver, Mix((0.2, 0.2), cancel=1.0))

    assert part.groups[LEAVER].outcomes == {CANCELLED_BY_US: due()}
    assert driver.cancelled == due()


def test_calls_that_may_be_cancelled_are_a_class_of_their_own_even_if_answered() -> None:
    part = hold(Answers(at_once), Mix((0.2, 0.2), cancel=0.5, bulk=0.3))

    assert set(part.groups) == {INTERACTIVE, BULK, LEAVER}
    assert part.groups[LEAVER].outcomes["OK"] > 0
    assert sum(group.sent for group in part.groups.values()) == due()


def test_a_caller_that_cancels_sends_again_at_once() -> None:
    """Only a refused caller pauses: else a closed loop with cancellations would show less than the server's capacity."""
    part = hold(Answers(never), Mix((0.002, 0.002), cancel=1.0), callers=1)

    assert part.groups[LEAVER].sent > HELD_S / REFUSED_PAUSE_S + 2


def test_the_end_waits_for_deadlines_and_not_for_slow_readers() -> None:
    async def slow_readers_never(call: Call) -> Answer:
        return await (never if call.kind == SLOW_READER else at_once)(call)

    driver = Answers(slow_readers_never)

    part = hold(driver, Mix((20.0, 20.0), slow_readers=0.2))

    assert CLOCK.now < 1
    slow = part.groups[SLOW_READER]
    assert slow.sent == slow.outcomes[UNFINISHED] == driver.cancelled > 0


def test_callers_wait_for_their_answers() -> None:
    open_now = most_open = 0

    async def counted(_call: Call) -> Answer:
        nonlocal open_now, most_open
        open_now += 1
        most_open = max(most_open, open_now)
        await asyncio.sleep(0.01)
        open_now -= 1
        return OK

    part = hold(Answers(counted), callers=7, worker=1, workers=2)

    # The other process has four of the seven.
    assert most_open == 3
    (group,) = part.groups.values()
    assert 3 <= group.sent <= 3 * HELD_S / 0.01
    assert len(part.lag) == 0


def test_a_caller_that_is_refused_does_not_spin() -> None:
    async def refuse(_call: Call) -> Answer:
        return Answer("RESOURCE_EXHAUSTED", "full")

    part = hold(Answers(refuse), callers=1)

    assert part.groups[INTERACTIVE].sent <= 6


def test_calls_of_the_warm_up_are_sent_and_not_counted() -> None:
    driver = Answers(at_once)

    part = hold(driver, warm_up_s=0.2, begins_at=0.3)

    assert len(driver.calls) > due()
    assert part.groups[INTERACTIVE].sent == due()


def test_a_bug_in_the_driver_ends_the_load_with_its_name() -> None:
    async def broken(_call: Call) -> Answer:
        raise ZeroDivisionError("of the driver")

    for changes in ({}, {"callers": 3}):
        with pytest.raises(LoadFailed, match="ZeroDivisionError in a call: of the driver"):
            hold(Answers(broken), **changes)


def test_each_second_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    part = hold(Answers(at_once), seconds=1.2)

    lines = [message_of(line.encode())["second"] for line in capsys.readouterr().out.splitlines()]
    assert [line["number"] for line in lines] == [0, 1]
    assert sum(line["sent"] for line in lines) == part.groups[INTERACTIVE].sent


def test_calls_have_the_shares_and_deadlines_of_the_mix_and_a_share_changes_only_its_own_calls() -> None:
    plain, mixed = Mix((0.1, 1.0)), Mix((0.1, 1.0), per_call=1, bulk=0.3, explain=0.1, slow_readers=0.05, cancel=0.5)
    plain_calls = list(itertools.islice(plain.calls(TEXTS, 5), 4000))
    calls = list(itertools.islice(mixed.calls(TEXTS, 5), 4000))

    kinds = Counter(call.kind for call in calls)
    judged = [call for call in calls if call.kind in (BULK, INTERACTIVE)]
    assert {kind: kinds[kind] / 4000 for kind in kinds} == pytest.approx(
        {INTERACTIVE: 0.55, BULK: 0.3, EXPLAIN: 0.1, SLOW_READER: 0.05}, abs=0.03
    )
    assert sum(call.cancel_after_s is not None for call in judged) / len(judged) == pytest.approx(0.5, abs=0.03)
    assert all(call.cancel_after_s is None or call.cancel_after_s <= call.timeout_s for call in judged)
    # Uniform in the logarithm from 0.1 to 1 s.
    assert sorted(call.timeout_s for call in plain_calls)[2000] == pytest.approx(0.316, rel=0.1)
    assert [call.texts for call in calls] == [call.texts for call in plain_calls]
    both = zip(plain_calls, calls, strict=True)
    assert [call.timeout_s for call in judged] == [alone.timeout_s for alone, call in both if call.kind in (BULK, INTERACTIVE)]


def test_texts_repeat_by_zipfs_law_and_a_call_says_how_many_of_its_texts_came_before() -> None:
    alike, zipf = (list(itertools.islice(Mix((1.0, 1.0), per_call=2, zipf=exponent).calls(TEXTS, 5), 3000)) for exponent in (0.0, 1.0))

    sent = Counter(text for call in zipf for text in call.texts)
    whole = sum(1 / place for place in range(1, len(TEXTS) + 1))
    assert [sent[text] / 6000 for text in TEXTS[:3]] == pytest.approx([1 / whole, 1 / 2 / whole, 1 / 3 / whole], rel=0.1)
    assert max(Counter(text for call in alike for text in call.texts).values()) < 1.4 * 6000 / len(TEXTS)
    for calls in (alike, zipf):
        assert sum(call.repeated for call in calls) == 6000 - len(TEXTS)
        assert calls[0].repeated == (calls[0].texts[0] == calls[0].texts[1])


def test_the_texts_that_came_before_are_counted_in_each_process_as_in_one() -> None:
    mix = Mix((0.2, 0.2), per_call=3, explain=0.2, zipf=1.0)

    alone, *shared = (hold(Answers(at_once), mix, worker=worker, workers=workers) for worker, workers in ((0, 1), (0, 2), (1, 2)))

    assert alone.texts_sent == sum(part.texts_sent for part in shared) < 3 * due()
    # Each of the 50 texts comes for a first time.
    assert alone.repeated == sum(part.repeated for part in shared) >= alone.texts_sent - len(TEXTS)


def test_a_worker_whose_fleet_has_ended_ends_without_a_word() -> None:
    script = "from sentiment_tools.loadtest.worker import report; input(); report(ready=True); report(ready=True)"
    worker = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    worker.stdout.close()
    worker.stdout = None

    said = worker.communicate("\n", timeout=120)

    assert (worker.returncode, said) == (1, (None, ""))
