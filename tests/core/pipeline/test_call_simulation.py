"""Every call has exactly one outcome, in thousands of calls of seeded days in virtual time. ``SIM_SEEDS=10000 pytest`` runs more days.

The gRPC handlers, the calls, the pipeline, the batcher and the scheduler are the real ones. The transport and the runners are not: callers
leave, set deadlines, send late or never, and read slowly; batches are slow, fail, and lose their runner; observers raise; the server
drains.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import grpc
import pytest
import structlog

from sentiment.batching.batcher import Batcher
from sentiment.batching.known import Known
from sentiment.batching.plan import BatchLimits
from sentiment.batching.scheduler import Scheduler
from sentiment.batching.telemetry import BatchTelemetry
from sentiment.batching.text import Waiting
from sentiment.call.call import Call
from sentiment.call.calls import CODE_NAMES, CallLimits, Calls
from sentiment.call.convert import EFFORTS
from sentiment.call.open_inference import InferenceService
from sentiment.call.request_bytes import RequestBytes
from sentiment.call.servicer import SentimentService, ServiceLimits
from sentiment.doors.grpc.handlers import Handlers
from sentiment.doors.grpc.health import Health
from sentiment.doors.grpc.receiving import Receiving
from sentiment.doors.grpc.stream import Streams
from sentiment.errors import DeviceLost
from sentiment.lifecycle.registry import Models
from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.effort import ADAPTIVE, FULL
from sentiment.model.lease import InUse
from sentiment.model.runner import Outcome, Ran, Report
from sentiment.model.tokenizer import Row
from sentiment.observability.metrics import Metrics, ModelMetrics
from sentiment.observability.observing import Observing
from sentiment.pipeline.queries import Query, QueryReader, TextLimits
from sentiment.pipeline.served import Served
from sentiment.v1 import sentiment_pb2 as pb
from tests.core.batching.test_cost import fixed
from tests.core.grpc.test_oip import asked
from tests.core.grpc.test_receiving import Measured
from tests.tiny import SPECIAL, THREE, WEIGHTS, make_bundle, read_manifest, write_manifest
from tests.virtual_time import VirtualClock, VirtualTimeLoop

SEEDS = int(os.environ.get("SIM_SEEDS", "150"))
# Enough days to find each of the breakages below.
SEEDS_TO_FIND = 60
CALLS_MAX = 60
# A call ends so long after its deadline at most. Virtual time passes only where something waits, so no computing is in it.
LATE_S = 0.01
# A run that hangs is asked to stop after this time, and given up after twice as long.
STALL_S = 0.3
# A reader that is slow takes so long for an answer.
READ_S = 0.05
# Within which a message must arrive, what late ones take, and the transport's limit of one: a caller may hold two late ones.
RECEIVE_S, LATE_MESSAGE_S, MESSAGE_MAX = 0.5, 0.2, 2**16
# Longer than any day, in virtual time.
DAY_S = 60.0
DEADLINES_S = (0.001, 0.05, 0.3, 2.0)
# The words of texts, and one with which no batch succeeds.
POISON, *WORDS = sorted(WEIGHTS, key=lambda word: word != "awful")
POISON_ID = len(SPECIAL) + list(WEIGHTS).index(POISON)
# Of these, a text has three windows.
WINDOWS_WORDS_MAX = 60
INTERNAL = grpc.StatusCode.INTERNAL.value[0]
METHODS = ("Classify", "ClassifyBatch", "ClassifyStream", "ModelInfer")


def logits_of(row: Row) -> list[float]:
    """Logits that tell a row from others."""
    number = sum(place * token for place, token in enumerate(row.ids, 1))
    return [number % 11 / 4, number % 7 / 4, number % 5 / 4, -2.0]


def poisonous(rows: Sequence[Row]) -> bool:
    """Whether a batch with these rows fails."""
    return any(POISON_ID in row.ids for row in rows)


class Aborted(Exception):
    """What the transport raises once a call is aborted."""


@dataclass
class World:
    """The random parameters of one day."""

    rng: random.Random
    runners: int
    queue_rows_max: int
    calls: int
    calls_max: int
    rate: float
    run_s: float
    leave_share: float
    fail_share: float
    hang_share: float
    lost_share: float
    raise_share: float
    late_share: float
    never_share: float
    parts_share: float
    windows_share: float
    poison_share: float
    effort: str
    cache_bytes: int
    drains: bool

    @property
    def sound(self) -> bool:
        """Whether no batch fails but those with a poisonous text."""
        return not (self.fail_share or self.hang_share or self.lost_share)

    @classmethod
    def draw(cls, seed: int) -> "World":
        rng = random.Random(seed)
        return cls(
            rng=rng,
            runners=rng.randint(1, 3),
            queue_rows_max=rng.choice([4, 64]),
            calls=rng.randint(1, CALLS_MAX),
            calls_max=rng.choice([3, 1000]),
            rate=rng.choice([10.0, 200.0, 2000.0]),
            run_s=rng.choice([1e-3, 1e-2, 0.1]),
            leave_share=rng.choice([0.0, 0.2, 0.6]),
            fail_share=rng.choice([0.0, 0.0, 0.2]),
            hang_share=rng.choice([0.0, 0.0, 0.02]),
            lost_share=rng.choice([0.0, 0.0, 0.02]),
            raise_share=rng.choice([0.0, 0.3, 1.0]),
            late_share=rng.choice([0.0, 0.0, 0.2]),
            never_share=rng.choice([0.0, 0.0, 0.1]),
            parts_share=rng.choice([0.0, 0.2]),
            windows_share=rng.choice([0.0, 0.2]),
            poison_share=rng.choice([0.0, 0.05]),
            effort=rng.choice([FULL, ADAPTIVE]),
            # None, of equal texts under way alone, of few answers, and of all.
            cache_bytes=rng.choice([0, 1, 2000, 2**20]),
            drains=rng.random() < 0.3,
        )


@dataclass
class Runner:
    """Runs batches in virtual time, with faults."""

    world: World
    name: str
    ahead: bool = False

    def start(
        self, classifier: object, rows: Sequence[Row], report: Report, ahead: bool = False, wide: bool = False, low_priority: bool = False
    ) -> Callable[[], None]:
        world, loop = self.world, asyncio.get_running_loop()
        chance = world.rng.random
        outcome: Outcome = Ran(list(map(logits_of, rows)), 0.0, world.run_s)
        if chance() < world.hang_share:
            return lambda: None
        if chance() < world.lost_share:
            outcome = DeviceLost("the device is gone")
        elif chance() < world.fail_share or poisonous(rows):
            outcome = RuntimeError("the kernel failed")
        loop.call_later(world.run_s * world.rng.uniform(0.5, 4), report, outcome)
        return lambda: None


@dataclass
class Caller:
    """One call, its transport, and the outcomes that reached it, which must be one."""

    method: str
    deadline_s: float
    texts: int
    reads_s: float
    messages: AsyncIterator[bytes] | None = None
    # Gets each message of a stream.
    tell: Callable[[bytes], None] = lambda _: None
    outcomes: list[str] = field(default_factory=list)

    def time_remaining(self) -> float:
        return self.deadline_s

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> Any:
        assert self.messages is not None
        return await anext(self.messages, grpc.aio.EOF)

    async def write(self, message: bytes) -> None:
        self.tell(message)
        await asyncio.sleep(self.reads_s)

    async def abort(self, code: grpc.StatusCode, _message: str, _trailers: object = ()) -> NoReturn:
        self.outcomes.append(code.name)
        raise Aborted


class BrokenPromise(AssertionError):
    """A promise is broken; the message has the seed."""


class Day:
    """One day of a server. ``run`` checks its promises."""

    def __init__(self, seed: int, classifier: Classifier, clock: VirtualClock) -> None:
        self.seed, self.clock = seed, clock
        self.world = world = World.draw(seed)
        self.metrics = metrics = Metrics(CODE_NAMES)
        counted = metrics.model("tiny/1", [], THREE, classifier.manifest.signals)
        scheduler: Scheduler[Waiting] = Scheduler(
            fixed(world.run_s, 1e-9), BatchLimits(8, 1024, 2**26, 2), world.runners, world.queue_rows_max, 32
        )
        runners = [Runner(world, f"runner-{number}") for number in range(world.runners)]
        known = Known(world.cache_bytes) if world.cache_bytes else None
        self.batcher = Batcher(classifier, scheduler, runners, BatchTelemetry(counted, clock=clock), clock=clock, known=known)
        limits = TextLimits(2**10, 64, 16)
        self.classifier, self.reader = classifier, QueryReader(classifier, limits)
        self.served = Served(classifier, self.batcher, counted, limits, 4, clock=clock)
        self.break_observers(counted)
        models = Models("tiny")
        models.follow([self.served], [self.served])
        self.requests = RequestBytes(4 * MESSAGE_MAX)
        receiving = Receiving(self.requests, MESSAGE_MAX, RECEIVE_S)
        # Nothing is known of them, and virtual time has no threads to look.
        receiving._connections = Measured()
        self.calls = Calls(metrics, CallLimits(2**16, 1.0, 60.0, world.calls_max, 0.05, 0.002), clock=clock)
        service = SentimentService(models, self.calls, ServiceLimits(2**10, 16, 4, 2, 64, 16, world.effort, world.cache_bytes))
        self.streams = Streams(service, self.calls, receiving)
        methods = (*service.unary_methods, *InferenceService(models, self.calls, Health(()), service.limits).methods)
        self.handlers = {method.name: Handlers(self.calls, receiving).unary(method) for method in methods} | {
            "ClassifyStream": self.streams.handler()
        }
        self.callers: list[Caller] = []
        self.draining = False
        self.seen: Counter[str] = Counter()

    def break_observers(self, counted: ModelMetrics) -> None:
        """Let everything that observes raise sometimes, but for the counters that are checked."""
        world = self.world

        def sometimes(observe: Callable[..., Any], *arguments: Any) -> Any:
            if world.rng.random() < world.raise_share:
                raise KeyError("an observer's fault")
            return observe(*arguments)

        def breaks(owner: Any, name: Any) -> None:
            if isinstance(owner, dict):
                owner[name] = partial(sometimes, owner[name])
            else:
                setattr(owner, name, partial(sometimes, getattr(owner, name)))

        self.served.samples = [partial(sometimes, lambda *_: None)] * 2
        for name in ("predicted", "text_tokens", "unknown_tokens", "batch_rows", "runner_busy"):
            breaks(counted, name)
        for series in (counted.refused, counted.dropped, counted.wasted):
            for name in series:
                breaks(series, name)
        for method in METHODS:
            for name in ("seconds", "slow"):
                breaks(counted.of[method], name)
        for stage in ("queue", "plan", "pad", "run", "score"):
            breaks(counted.stage, stage)
        breaks(counted.drift, "add")

    async def run(self) -> Counter[str]:
        world, rng = self.world, self.world.rng
        watching = asyncio.create_task(self.watch())
        calls, drain_after = [], rng.randrange(world.calls) if world.drains else world.calls
        for number in range(world.calls):
            await asyncio.sleep(rng.expovariate(world.rate))
            if number == drain_after:
                calls.append(asyncio.create_task(self.drain()))
            if self.draining:
                # Later calls get GOAWAY from the transport.
                break
            caller = Caller(rng.choice(METHODS), rng.choice(DEADLINES_S), rng.randint(1, 9), rng.choice([0.0, READ_S]))
            self.callers.append(caller)
            calls.append(asyncio.create_task(self.call(caller)))
        async with asyncio.timeout(DAY_S):
            await asyncio.gather(*calls)
        watching.cancel()
        await asyncio.wait({watching})
        return self.settle()

    async def watch(self) -> None:
        """As the server's watchdog does."""
        while True:
            await asyncio.sleep(STALL_S / 2)
            self.batcher.end_stalled(STALL_S)

    async def drain(self) -> None:
        self.draining = True
        await self.streams.end(1.0)

    async def call(self, caller: Caller) -> None:
        """Make a call as the transport does, and note its outcome."""
        rng, deadline_at = self.world.rng, self.clock.now + caller.deadline_s
        handling = asyncio.create_task(self.handle(caller))
        leaves = rng.random() < self.world.leave_share
        if leaves or caller.method == "ClassifyStream":
            # The transport ends a stream at its deadline. Other calls end by themselves, as they must over HTTP.
            await asyncio.wait({handling}, timeout=caller.deadline_s * (rng.random() if leaves else 1.0))
            handling.cancel()
            deadline_at = self.clock.now
        await asyncio.wait({handling})
        if handling.cancelled():
            caller.outcomes.append("CANCELLED")
        elif (error := handling.exception()) is not None and not isinstance(error, Aborted):
            caller.outcomes.append(repr(error))
        self.check(self.clock.now <= deadline_at + LATE_S, f"{caller} ended {self.clock.now - deadline_at:.3f} s after its deadline")

    def text(self, sentences: bool, windows: bool) -> str:
        """A text of its own: some of several sentences, some of several windows, some poisonous."""
        rng = self.world.rng
        words_max = WINDOWS_WORDS_MAX if windows else 4
        found = [rng.choices(WORDS, k=rng.randint(1, words_max)) for _ in range(rng.randint(1, 3) if sentences else 1)]
        if rng.random() < self.world.poison_share:
            rng.choice(found).append(POISON)
        return ". ".join(map(" ".join, found))

    async def handle(self, caller: Caller) -> None:
        handler, world = self.handlers[caller.method], self.world
        in_parts = caller.method != "ModelInfer"
        # Some texts have several rows, at most 16: one for each window, sentence and target.
        sentences, windows = (in_parts and world.rng.random() < share for share in (world.parts_share, world.windows_share))
        targets = ["film", "bad", "service"] if in_parts and world.rng.random() < world.parts_share else []
        texts = [self.text(sentences, windows) for _ in range(1 if caller.method == "Classify" else caller.texts)]
        effort = world.rng.choice(list(EFFORTS)) if in_parts else pb.EFFORT_UNSPECIFIED
        truncation = pb.TRUNCATION_WINDOWS if windows else pb.TRUNCATION_UNSPECIFIED
        no_cache = in_parts and world.rng.random() < 0.2
        options: dict[str, Any] = {"sentences": sentences, "truncation": truncation, "effort": effort, "no_cache": no_cache}
        adaptive = (EFFORTS[effort] or world.effort) == ADAPTIVE
        how: dict[str, Any] = {"sentences": sentences, "targets": targets, "adaptive": adaptive}
        asked_for = [Query(text, None, "windows" if windows else None, **how) for text in texts]
        if caller.method == "ClassifyStream":
            caller.tell = lambda data: self.check_result(pb.ClassifyStreamResponse.FromString(data), asked_for)
            caller.messages = self.items([pb.Item(text=text, targets=targets) for text in texts], pb.StreamOptions(**options))
            await handler.stream_stream(None, caller)
        else:
            message = {
                "Classify": lambda: pb.ClassifyRequest(text=texts[0], targets=targets, **options),
                "ClassifyBatch": lambda: pb.ClassifyBatchRequest(items=[pb.Item(text=text, targets=targets) for text in texts], **options),
                "ModelInfer": lambda: asked(*texts),
            }[caller.method]()
            caller.messages = self.message(message.SerializeToString())
            try:
                data = await handler.stream_unary(None, caller)
            except Aborted:
                if caller.outcomes == ["INTERNAL"]:
                    self.check_failed(asked_for)
                raise
            if caller.method == "Classify":
                self.check_answer(pb.ClassifyResponse.FromString(data), asked_for[0])
            elif caller.method == "ClassifyBatch":
                for result, query in zip(pb.ClassifyBatchResponse.FromString(data).results, asked_for, strict=True):
                    self.check_result(result, [query])
        caller.outcomes.append("OK")

    def check_result(self, result: pb.ClassifyStreamResponse | pb.ClassifyResult, asked_for: Sequence[Query]) -> None:
        """Check what a text of a batch or of a stream got."""
        query = asked_for[int(result.id)] if isinstance(result, pb.ClassifyStreamResponse) else asked_for[0]
        if result.HasField("response"):
            self.check_answer(result.response, query)
        elif result.error.code == INTERNAL:
            self.check_failed([query])

    def check_answer(self, response: pb.ClassifyResponse, query: Query) -> None:
        """Check that an answer is made of all rows of its text, in order, and of no others; or of its part, if that suffices."""
        (reading,) = self.reader.read([query])
        in_parts = query.adaptive and query.truncation is None and isinstance(reading, Row)
        part = self.classifier.part_of(reading) if in_parts else None
        self.check(part is None or not poisonous([part]), "a text is answered whose part fails")
        early = part is not None and self.classifier.suffices(logits_of(part))
        self.check(response.early is early, f"{query.text!r} is answered {'early' if response.early else 'in full'}")
        reading = part if early and part is not None else reading
        whole, parts = self.classifier.answer(reading, list(map(logits_of, reading.rows)))
        self.seen["early"] += early
        rest = (*parts.sentences, *parts.targets) if parts is not None else ()
        expected = [whole.scores, *(scored.scores for _, scored in rest)]
        answers = [response.prediction, *(one.prediction for one in (*response.sentences, *response.targets))]
        found = [tuple(score.score for score in answer.scores) for answer in answers]
        self.check(found == [pytest.approx(scores, abs=1e-5) for scores in expected], f"{query.text!r} is answered {found}, not {expected}")
        self.check(not poisonous(reading.rows), "a text is answered whose batches all fail")

    def check_failed(self, asked_for: Sequence[Query]) -> None:
        """Check that these texts, whose call failed, did not fail for those in their batches."""
        rows = [row for reading in self.reader.read(asked_for) for row in reading.rows]
        self.check(not self.world.sound or poisonous(rows), f"{[query.text for query in asked_for]} failed with other texts")

    async def message(self, data: bytes) -> AsyncIterator[bytes]:
        await self.comes()
        yield data

    async def comes(self) -> None:
        """Wait until a message comes: at once, late or never."""
        chance = self.world.rng.random()
        if chance < self.world.never_share:
            await asyncio.Event().wait()
        await asyncio.sleep(LATE_MESSAGE_S if chance < self.world.never_share + self.world.late_share else 0.0)

    async def items(self, items: Sequence[pb.Item], options: pb.StreamOptions) -> AsyncIterator[bytes]:
        for number, item in enumerate(items):
            await self.comes()
            await asyncio.sleep(self.world.rng.choice([0.0, 0.01]))
            yield pb.ClassifyStreamRequest(id=str(number), item=item, options=options).SerializeToString()

    def settle(self) -> Counter[str]:
        """Check that every call has one outcome and one count, and that nothing is left."""
        for caller in self.callers:
            self.check(len(caller.outcomes) == 1, f"{caller} has the outcomes {caller.outcomes}")
        # Whether its client or its deadline ended a call is the server's guess, where the two come together.
        ended = {"CANCELLED": "ended", "DEADLINE_EXCEEDED": "ended"}
        found = Counter((caller.method, ended.get(code, code)) for caller in self.callers for code in caller.outcomes)
        counted: Counter[tuple[str, str]] = Counter()
        for sample in (sample for family in self.metrics.registry.collect() for sample in family.samples):
            if sample.name == "sentiment_requests_total" and sample.value:
                counted[sample.labels["method"], ended.get(code := sample.labels["code"], code)] += int(sample.value)
        self.check(found == counted, f"the calls ended as {found}, and counted are {counted}")
        self.check(not self.served.users, "the model is in use for ever")
        self.check(self.calls.open == self.calls.open_of.total() == 0, f"{self.calls.open_of} calls are open for ever")
        self.check(self.requests.used == 0, f"{self.requests.used} bytes are held for ever")
        self.check(not self.streams.open, "a stream is open for ever")
        self.check(not self.batcher.scheduler.rows_waiting, "rows wait for ever")
        return Counter(caller.outcomes[0] for caller in self.callers) + self.seen

    def check(self, holds: bool, promise: str) -> None:
        if not holds:
            raise BrokenPromise(f"seed {self.seed}: {promise}")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    bundle = make_bundle(tmp_path_factory.mktemp("three"), three=True)
    write_manifest(bundle, read_manifest(bundle) | {"effort": {"head": 2, "tail": 2, "tokens_min": 5, "log_odds": 0.5}})
    return load_classifier(bundle)


@pytest.fixture
def simulate(classifier: Classifier) -> Callable[[int], Counter[str]]:
    clock = VirtualClock()

    def run(seed: int) -> Counter[str]:
        async def day() -> Counter[str]:
            return await Day(seed, classifier, clock).run()

        with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(clock)) as runner, structlog.testing.capture_logs():
            return runner.run(day())

    return run


def test_every_call_has_one_outcome_and_one_count(simulate: Callable[[int], Counter[str]]) -> None:
    outcomes: Counter[str] = Counter()

    for seed in range(SEEDS):
        outcomes += simulate(seed)

    # The days are varied: each outcome occurs.
    assert {"OK", "early", "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL", "UNAVAILABLE"} == set(outcomes), outcomes
    assert outcomes["OK"] > outcomes.total() / 10, outcomes


def _run_unguarded(_self: Observing, _observer: str, observe: Callable[..., Any], *arguments: Any) -> Any:
    return observe(*arguments)


def _observe_first(self: Served, logits: Any, reading: Any, scored: Any = Served._scored) -> Any:
    for sample in self.samples:
        sample()
    return scored(self, logits, reading)


def _count_twice(self: Calls, *arguments: Any, count: Any = Calls._observe) -> None:
    count(self, *arguments)
    count(self, *arguments)


def _swap_answers(self: Batcher, run: Any, batch: Any, ran: Ran, now: float, answer: Any = Batcher._answer) -> None:
    answer(self, run, batch, replace(ran, logits=ran.logits[::-1]), now)


def _fail_together(self: Scheduler[Waiting], batch: Any, _out_of_memory: bool = False, lose: Any = Scheduler.give_up) -> Any:
    lost = lose(self, batch)
    self.forecast.runners += 1
    return lost


BREAKAGES: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "observers before the caller": (Served, "_scored", _observe_first),
    "observers that fail what they observe": (Observing, "run", _run_unguarded),
    "observers that fail a call": (Observing, "later", _run_unguarded),
    "a text gets the answer of another": (Batcher, "_answer", _swap_answers),
    "a text fails with those in its batch": (Scheduler, "fail", _fail_together),
    "deadlines pass unnoticed": (Batcher, "_wake", lambda self: None),
    "no caller gets an answer": (Batcher, "_tell", lambda self, text, outcome: None),
    "calls are counted twice": (Calls, "_observe", _count_twice),
    "calls that were cancelled stay open": (Call, "left_code", lambda self: 1 / 0),
    "a model is in use for ever": (InUse, "__exit__", lambda self, *_: None),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_promise_is_found(breakage: str, simulate: Callable[[int], Counter[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, replacement = BREAKAGES[breakage]
    monkeypatch.setattr(owner, name, replacement)

    with pytest.raises((BrokenPromise, AssertionError, TimeoutError)):
        for seed in range(SEEDS_TO_FIND):
            simulate(seed)
