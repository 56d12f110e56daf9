"""The offered load: it counts what is asked for once, whatever becomes of it, and falls when nobody asks."""

import math

import pytest

from sentiment.batching.known import Known
from sentiment.batching.offered import WINDOW_S, OfferedLoad
from sentiment.batching.row_queue import TextOutcome
from sentiment.errors import RequestError
from tests.core.batching.test_batcher import Bench
from tests.core.batching.test_effort import CLEAR, PART, UNCLEAR, WHOLE, Parting
from tests.virtual_time import VirtualClock

# What the fake runners take for a batch.
RUN_S = 0.001
# A batch of the best size has eight rows.
ROW_S = RUN_S / 8


@pytest.fixture
async def bench(clock: VirtualClock) -> Bench:
    return Bench(clock, runners=2, run_s=RUN_S)


def asked_s(bench: Bench) -> float:
    """The seconds of a runner that are asked for, without those that are long ago."""
    return bench.batcher.offered.ratio(bench.clock.now) * 2 * WINDOW_S


def refuse(bench: Bench, rows: int = 1, seconds: float = 60.0) -> None:
    received: list[TextOutcome] = []
    with pytest.raises(RequestError):
        bench.send(range(rows), received, seconds)


async def run_all(bench: Bench, *outcomes: BaseException | None) -> None:
    """Let all batches run. The first have these outcomes."""
    left = list(outcomes)
    await bench.turn()
    while running := [runner for runner in bench.runners if runner.started]:
        running[0].finish(left.pop(0) if left else None)
        await bench.turn()


async def test_an_admitted_row_counts_once_also_if_its_batch_is_retried(bench: Bench) -> None:
    for number in range(8):
        bench.submit(number)
    await run_all(bench, RuntimeError("one of them is poison"))

    assert bench.notes.ran > 1
    assert asked_s(bench) == pytest.approx(8 * ROW_S, rel=1e-3)


async def test_a_row_that_expires_or_whose_caller_leaves_counts(bench: Bench) -> None:
    bench.submit(1, seconds=0.2)
    bench.submit(2).cancel()

    await bench.wait(0.3)

    assert asked_s(bench) == pytest.approx(2 * ROW_S * math.exp(-0.3 / WINDOW_S), rel=1e-3)


async def test_a_row_that_comes_after_its_deadline_counts(bench: Bench) -> None:
    refuse(bench, seconds=-1.0)

    assert asked_s(bench) == pytest.approx(ROW_S, rel=1e-3)


async def test_a_row_for_which_the_queue_has_no_room_counts(bench: Bench) -> None:
    for number in range(100):
        bench.submit(number)
    refuse(bench)

    assert asked_s(bench) == pytest.approx(101 * ROW_S, rel=1e-3)


async def test_a_row_for_which_the_queue_leaves_no_time_counts(bench: Bench) -> None:
    for number in range(100):
        bench.submit(number)
    refuse(bench, seconds=RUN_S * 1.1)

    assert asked_s(bench) == pytest.approx(101 * ROW_S, rel=1e-3)


async def test_every_row_of_a_text_that_is_refused_counts(bench: Bench) -> None:
    # Of 100 places bulk rows may have 75.
    for number in range(70):
        bench.submit(number)
    refuse(bench, rows=20)

    assert asked_s(bench) == pytest.approx(90 * ROW_S, rel=1e-3)


async def test_a_slower_machine_is_fuller_with_the_same_rows(bench: Bench) -> None:
    bench.scheduler.cost.speed = 2.0
    bench.submit(1)

    assert asked_s(bench) == pytest.approx(2 * ROW_S, rel=1e-3)


async def test_the_load_is_the_work_offered_over_the_runners_and_falls_at_rest(bench: Bench) -> None:
    load, clock = bench.batcher.offered, bench.clock
    seen = {}
    for factor in (0.5, 1.0, 3.0, 0.0):
        for _ in range(10 * int(WINDOW_S)):
            # The work of two runners in half a second.
            load.ask(factor, clock.now)
            clock.now += 0.5
        seen[factor] = load.ratio(clock.now)

    assert seen == {factor: pytest.approx(factor, rel=0.03, abs=0.03) for factor in seen}


def test_a_burst_shows_two_thirds_of_itself_after_a_window_and_is_gone_after_three() -> None:
    load = OfferedLoad()
    for second in range(int(WINDOW_S)):
        load.ask(3.0, float(second))

    assert load.ratio(WINDOW_S) == pytest.approx(3 * (1 - 1 / math.e), rel=0.05)
    assert load.ratio(4 * WINDOW_S) < 0.1


async def test_rows_that_take_no_run_do_not_count(clock: VirtualClock) -> None:
    bench = Bench(clock, runners=2, run_s=RUN_S, known=Known(2**16))
    received: list[TextOutcome] = []
    # The second follows the first, which has not run yet; the answer to the third is known.
    bench.send([7], received, scope=1)
    bench.send([7], received, scope=1)
    await run_all(bench)
    bench.send([7], received, scope=1)
    await bench.turn()

    assert (len(received), bench.notes.shared, bench.notes.kept) == (3, 1, 1)
    assert asked_s(bench) == pytest.approx(ROW_S, rel=1e-3)


async def test_a_text_read_in_parts_counts_its_whole_as_often_as_that_is_read(clock: VirtualClock) -> None:
    bench = Bench(clock, runners=2, run_s=RUN_S, classifier=Parting())
    # In this table a part takes as long as the whole.
    assert bench.scheduler.work_s(PART, WHOLE) == pytest.approx(2 * bench.scheduler.work_s(WHOLE), rel=1e-3)
    for number in range(300):
        bench.submit(CLEAR if number % 4 else UNCLEAR, length=WHOLE, adaptive=True)
        await run_all(bench)

    assert bench.scheduler.work_s(PART, WHOLE) == pytest.approx(1.25 * bench.scheduler.work_s(WHOLE), rel=0.05)


def test_models_that_compute_at_once_share_the_runners() -> None:
    # Two runners. Each model is offered three quarters of what they can do, and as both always run, every run takes twice as long: so
    # each is predicted to need one and a half times what there is, and four runs go on at a time.
    load = OfferedLoad()
    load.runners = 2
    for tenth in range(int(100 * WINDOW_S)):
        now = tenth / 10
        load.ask(2 * (0.75 * 2 * 2) / 10, now)
        load.ran(4 / 10, 4 / 10, now)

    assert load.ratio(10 * WINDOW_S) == pytest.approx(1.5, rel=0.02)


def test_runs_that_take_longer_than_is_usual_make_the_load_greater() -> None:
    # One run in ten loses its core for a while, which the cost table takes for an outlier.
    load = OfferedLoad()
    for tenth in range(int(100 * WINDOW_S)):
        now = tenth / 10
        load.ask(0.5 / 10, now)
        load.ran(0.5 / 10 * (11 if tenth % 10 == 0 else 1), 0.5 / 10, now)

    assert load.ratio(10 * WINDOW_S) == pytest.approx(1.0, rel=0.1)


def test_the_busiest_event_loop_counts_if_it_is_fuller_than_the_runners() -> None:
    load = OfferedLoad()
    for tenth in range(int(100 * WINDOW_S)):
        now = tenth / 10
        load.ask(0.4 / 10, now)
        load.loop_busy("front-1", 0.09, now)
        load.loop_busy("front-2", 0.02, now)

    assert load.ratio(10 * WINDOW_S) == pytest.approx(0.9, rel=0.02)


def test_a_loop_falls_at_rest_however_seldom_it_reports() -> None:
    load = OfferedLoad()
    load.loop_busy("server", 0.0, 0.0)
    load.loop_busy("server", 60.0, 60.0)
    assert load.ratio(60.0) == pytest.approx(1.0, abs=0.02)

    load.loop_busy("server", 0.0, 60.0 + WINDOW_S)
    assert load.ratio(60.0 + WINDOW_S) == pytest.approx(1 / math.e, abs=0.02)

    load.loop_busy("server", 0.0, 60.0 + 5 * WINDOW_S)
    assert load.ratio(60.0 + 5 * WINDOW_S) < 0.01


def test_two_readings_at_one_instant_are_equal() -> None:
    load = OfferedLoad()
    load.loop_busy("server", 0.0, 0.0)
    load.loop_busy("server", 5.0, 10.0)
    once = load.ratio(10.0)
    load.loop_busy("server", 0.0, 10.0)

    assert load.ratio(10.0) == once > 0
