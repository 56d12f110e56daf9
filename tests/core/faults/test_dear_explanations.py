"""Expensive explanations"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from sentiment.call.status import PUSHBACK
from sentiment.explain.turns import HEAVY_MAX
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import NO_RETRIES
from tests.core.faults.english import ENGLISH
from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import ANSWERED, Fates
from tests.core.faults.seen import nothing_waits
from tests.core.servers import PATIENCE_S, Server, until

# 3 KB, of which the model reads 470 tokens.
DEAR_TEXT = " ".join(f"w{number} good bad film" for number in range(150))
DEAR = pb.ExplainRequest(
    text=DEAR_TEXT,
    options=pb.ExplainOptions(
        methods=["shapley", "integrated_gradients", "occlusion", "two_step_shapley", "gradient_x_input"],
        attribution=pb.AttributionOptions(steps=256, by_embedding=True),
        counterfactuals=True,
        heads=True,
        geometry=True,
        without=[pb.WordSet(words=[word]) for word in range(64)],
    ),
)
LONG = pb.ExplainRequest(text="the plot was not really good but the actors were fine and I liked it " * 40)
SENTENCE = "The film is not really that good, but the cast is fine and I liked the story about two friends"
# Graphs of explanations run when nothing else wants a core: beside a busy loop on each core a short one takes 10 s or more.
SHORT_S = 60.0


class Asking:
    """Asks for explanations over a connection of its own, one after the other. ``refusals``: seconds of each, all with a hint to retry."""

    def __init__(self, server: Server) -> None:
        self.fates = Fates()
        self.refusals: list[float] = []
        self.complete = 0
        self._channel = grpc.insecure_channel(server.target, [*NO_RETRIES, ("grpc.use_local_subchannel_pool", 1)])
        self._stub: Any = pb_grpc.SentimentServiceStub(self._channel)
        self._going: set[Any] = set()

    def ask(self, request: pb.ExplainRequest, timeout_s: float) -> None:
        begun, fate = time.monotonic(), ANSWERED
        call = self._stub.Explain(request, timeout=timeout_s)
        self._going.add(call)
        try:
            *_, last = call
            self.complete += last.summary.complete
        except grpc.RpcError as error:
            failed: Any = error  # is the call too
            fate = failed.code().name
            if failed.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                trailers = dict(failed.trailing_metadata())
                assert PUSHBACK in trailers
                assert b"RetryInfo" in trailers["grpc-status-details-bin"]
                self.refusals.append(time.monotonic() - begun)
        self._going.discard(call)
        self.fates.calls.append((begun, time.monotonic(), fate))

    def short(self, count: int, timeout_s: float = SHORT_S) -> Fates:
        """Ask for ``count`` explanations, by turns of 7 words and of 20."""
        before = len(self.fates.calls)
        for number in range(count):
            self.ask(pb.ExplainRequest(text=" ".join(SENTENCE.split()[: 7 if number % 2 else None])), timeout_s)
        return Fates(self.fates.calls[before:])

    def close(self) -> None:
        for call in [*self._going]:
            call.cancel()
        self._channel.close()


@contextmanager
def dear_callers(server: Server, request: pb.ExplainRequest, at_once: int, timeout_s: float) -> Iterator[Asking]:
    """One connection that asks for ``at_once`` explanations at a time, and for another when one has ended."""
    going, asking = True, Asking(server)

    def ask() -> None:
        while going:
            asking.ask(request, timeout_s)
            # A caller that is refused at once must not take all of the CPU.
            time.sleep(0.2)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    until(lambda: server.total("explanations") > 0, "one of them is under way")
    yield asking
    going = False
    asking.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    until(lambda: nothing_waits(server), "nothing is left of them")


def beside(server: Server, evidence: Evidence, request: pb.ExplainRequest, timeout_s: float) -> None:
    short = Asking(server)
    # The first loads the explain graph.
    short.short(2)
    alone, complete = short.short(10), short.complete
    with dear_callers(server, request, 16, timeout_s) as dear:
        meanwhile = short.short(10)
        refused = [*dear.refusals]
    evidence.judge(meanwhile)
    # Times and completeness are recorded, not asserted: they depend on what other programs leave of the cores.
    evidence.measured |= {
        "short ones complete": f"{short.complete - complete} of 10",
        "slowest short one alone, s": round(alone.seconds(1), 2),
        "slowest short one beside them, s": round(meanwhile.seconds(1), 2),
        "dear ones refused, all with a retry hint": len(refused),
        "median time until a refusal, ms": round(sorted(refused)[len(refused) // 2] * 1e3, 1) if refused else "-",
    }
    short.close()


def test_short_explanations_beside_the_dearest_of_another_caller(english: Server, evidence: Evidence) -> None:
    """All short explanations are answered.

    One caller asks for 16 explanations at a time, each of 3 KB of text with every method in 256 steps and every other part, and gives
    them 60 s. Ten explanations of 7 and 20 words in a row, of another caller who gives them 30 s, are all answered.
    """
    beside(english, evidence, DEAR, 60.0)


def test_short_explanations_beside_a_flood_of_long_ones(english: Server, evidence: Evidence) -> None:
    """All short explanations are answered.

    The same beside 16 explanations at a time of texts of 512 tokens, as the default method explains them, with 30 s.
    """
    beside(english, evidence, LONG, 30.0)


def test_more_callers_of_dear_explanations_than_places(serve: Callable[..., Server], evidence: Evidence) -> None:
    """Those without a place are refused at once.

    Eight callers ask for one of the dearest explanations each, and two may wait besides those that are begun. The others are refused
    at once, with the time after which to retry, and two short ones of another caller are answered meanwhile.
    """
    server = serve(*ENGLISH, "--explain-calls-max", "2")
    callers, short = [Asking(server) for _ in range(8)], Asking(server)
    threads = [threading.Thread(target=caller.ask, args=(DEAR, 60.0), daemon=True) for caller in callers]
    for thread in threads:
        thread.start()
    until(lambda: sum(len(caller.refusals) for caller in callers) >= 8 - 2 - HEAVY_MAX, "those without a place are refused")
    assert server.total("explanations") > 0
    evidence.judge(short.short(2, 60.0))
    refused = [seconds for caller in callers for seconds in caller.refusals]
    evidence.measured |= {"dear ones refused, all with a retry hint": len(refused), "slowest refusal, ms": round(max(refused) * 1e3, 1)}
    for asking in (*callers, short):
        asking.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    until(lambda: nothing_waits(server), "nothing is left of them")


def test_short_explanations_after_dear_ones(english: Server, evidence: Evidence) -> None:
    """No short explanation is refused.

    Three of the dearest explanations run until their deadlines of 3 s, one after the other. Then five callers ask for a short one at
    the same time, within 12 s: what those took, three seconds for each of these, changes nothing for them, and none is refused. Where
    other programs take the cores, all have longer.
    """
    dear, callers = Asking(english), [Asking(english) for _ in range(5)]
    # The first loads the explain graph.
    callers[0].short(1)
    within_s = max(12.0, 10 * callers[0].short(1).seconds(1))
    for _ in range(3):
        dear.ask(DEAR, within_s / 4)
    threads = [threading.Thread(target=caller.short, args=(1, within_s), daemon=True) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    # Other programs may take all of the time.
    evidence.judge(*(caller.fates for caller in callers), may=("DEADLINE_EXCEEDED",))
    evidence.measured["slowest of the five, s"] = round(max(caller.fates.seconds(1) for caller in callers), 2)
    for asking in (dear, *callers):
        asking.close()
    until(lambda: nothing_waits(english), "nothing is left of them")
