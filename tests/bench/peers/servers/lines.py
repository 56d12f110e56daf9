"""A library in process: lines of JSON in, lines of JSON out.

``{"texts": [...], "rows": n}`` is answered by ``{"answers": [[label, score], ...], "seconds", "core_s"}``. The texts are sorted by
length and run in batches of ``rows``, as sentence-transformers' ``encode`` does (sbert.net, "Speeding up Inference").
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.bench.peers.servers.engine import Answer, Engine


def serve(make_engine: Callable[[], Engine], batches: int) -> None:
    """Answer until the input ends. ``batches``: how many run at once."""
    # What a library prints must not come between the answers.
    answers_to = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    engine = make_engine()
    print(json.dumps({"ready": True}), file=answers_to, flush=True)
    with ThreadPoolExecutor(batches) as pool:
        for line in sys.stdin:
            command = json.loads(line)
            begun, core = time.perf_counter(), time.process_time()
            answers = _classify(pool, engine, command["texts"], command["rows"])
            spent = {"seconds": time.perf_counter() - begun, "core_s": time.process_time() - core}
            print(json.dumps({"answers": answers, **spent}), file=answers_to, flush=True)


def _classify(pool: ThreadPoolExecutor, engine: Engine, texts: Sequence[str], rows: int) -> list[Answer]:
    """The answers in the order of the texts. The longest texts run first."""
    order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
    batches = [order[start : start + rows] for start in range(0, len(order), rows)]
    answers: dict[int, Answer] = {}
    for places, given in zip(batches, pool.map(engine.classify, [[texts[place] for place in batch] for batch in batches]), strict=True):
        answers.update(zip(places, given, strict=True))
    return [answers[place] for place in range(len(texts))]
