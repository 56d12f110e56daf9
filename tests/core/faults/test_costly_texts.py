"""Expensive texts"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen

from tests.core.faults.evidence import Evidence
from tests.core.faults.fates import Callers, Fates
from tests.core.servers import PATIENCE_S, Server

CALLERS = 8
SECONDS = 2.0
# Three words each.
TEXTS = ("a good film", "a dull story", "what a mess", "I loved it")
# Runs in a process of its own, so that the cost of sending megabytes does not slow down the measured caller. It sends texts of a few
# tokens, which cost the model next to nothing, until its standard input ends; then it prints how many were answered and refused.
COSTLY = f"""
import itertools, sys, threading
from sentiment.client import CallFailed, Client

size = 2**20
texts = itertools.cycle([
    "a" * size, "\\uac00" * (size // 3), "\\u00e9" * (size // 2), "1" * (size - 6) + " good", "a\\0" * (size // 2),
    "a" + "\\u0301" * (size // 2 - 1), " " * (size - 1) + "a", "\\0" * (size - 1) + "a",
])
answered, refused, going, lock = 0, 0, True, threading.Lock()

def ask():
    global answered, refused
    with Client(sys.argv[1], options=[("grpc.use_local_subchannel_pool", 1)]) as client:
        while going:
            with lock:
                text = next(texts)
            try:
                client.classify(text, timeout_s=30, model=sys.argv[2])
                answered += 1
            except CallFailed as error:
                refused += 1

threads = [threading.Thread(target=ask) for _ in range({CALLERS})]
for thread in threads:
    thread.start()
print("begun", flush=True)
sys.stdin.read()
going = False
for thread in threads:
    thread.join()
print(answered, refused, flush=True)
"""


@contextmanager
def costly_callers(target: str, model: str = "") -> Iterator[list[int]]:
    """Callers that send expensive texts. In the end, the list holds how many were answered and refused."""
    counts: list[int] = []
    with Popen([sys.executable, "-c", COSTLY, target, model], stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        killer = threading.Timer(PATIENCE_S, process.kill)
        killer.start()
        try:
            assert process.stdout.readline() == "begun\n"
            yield counts
            output, _ = process.communicate("", PATIENCE_S)
            counts += map(int, output.split())
        finally:
            killer.cancel()
            process.kill()


def test_megabytes_of_one_word_beside_others(english: Server, evidence: Evidence) -> None:
    """Short texts of another caller wait little longer.

    Eight callers send texts of a megabyte in a closed loop: one word, accents, blanks or zeros. Another caller, whose texts have three
    words, waits little longer than beside eight callers whose megabytes are refused unread (they name an unknown model). All share two
    cores.
    """
    with english.client() as client:
        texts = [(text, client.classify(text).scores["positive"]) for text in TEXTS]
    found: dict[str, Fates] = {}

    def watch(name: str) -> None:
        begun = time.monotonic()
        time.sleep(SECONDS)
        found[name] = caller.fates.between(begun, time.monotonic())

    with Callers(english.target, callers=1, texts=texts, pause_s=0.005) as caller:
        caller.wait(20)
        with costly_callers(english.target, "nobody") as unread:
            watch("where they are refused")
        with costly_callers(english.target) as read:
            watch("beside them")

    evidence.judge(caller.fates, may=["DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"])
    evidence.measured["texts of a megabyte answered"] = read[0]
    for name, fates in found.items():
        evidence.measured[f"p50 and p99 {name}, ms"] = f"{fates.seconds(0.5) * 1e3:.1f}, {fates.seconds(0.99) * 1e3:.1f}"
    assert read[0] >= CALLERS
    assert read[1] == unread[0] == 0
    # A tokenizer that gets the whole texts makes it 40 times as long.
    assert found["beside them"].seconds(0.5) < 10 * found["where they are refused"].seconds(0.5)
