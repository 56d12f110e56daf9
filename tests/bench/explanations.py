"""The effect of explanations on Classify calls: the same open-loop load with and without concurrent explanations, in turns.

``python -m tests.bench.explanations``: on an otherwise idle machine, 9 minutes on 2 cores.
"""

import argparse
import asyncio
import math
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import tokenizers

from sentiment.model.bundle import bundle_roots, find_bundle
from sentiment.model.cores import cores_granted
from sentiment.traffic.lengths import LONG, SHORT
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.bench.processes import cpu_s, start_server
from tests.bench.slo import measure_capacity
from tests.bench.texts import make_texts

# Of Classify's capacity, and of all cores.
LOAD = 0.5
SHARE = 0.1
# Tokens of the explained texts, and in how many pairs of phases.
PAIRS_OF_PHASES = {128: 6, 512: 3}
# A phase lasts so long at the most: then an explanation of a long text is under way all the time, and is left unfinished.
PHASE_S_MAX = 20.0


class Timed:
    """Classifies and explains at given rates. Records the latency of each Classify from its scheduled time."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.aio.insecure_channel(target, [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)])
        self._stub: Any = pb_grpc.SentimentServiceStub(self._channel)

    async def phase(self, texts: Sequence[str], rate: float, seconds: float, seed: int, explained: str, explain_rate: float) -> list[float]:
        """Seconds of each Classify of an open-loop phase; ``explain_rate``: explanations a second beside it, 0 for none."""
        rng = random.Random(seed)
        begun = time.perf_counter() + 0.05
        at, calls = 0.0, []
        while at < seconds:
            calls.append(asyncio.create_task(self._classify(rng.choice(texts), begun + at)))
            at += rng.expovariate(rate)
        count = math.ceil(seconds * explain_rate)
        beside = [asyncio.create_task(self._explain_at(explained, begun + number / explain_rate)) for number in range(count)]
        taken = await asyncio.gather(*calls)
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        return taken

    async def _classify(self, text: str, at: float) -> float:
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        await self._stub.Classify(pb.ClassifyRequest(text=text), timeout=30)
        return time.perf_counter() - at

    async def _explain_at(self, text: str, at: float) -> None:
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        await self.explain(text)

    async def explain(self, text: str) -> pb.ExplanationSummary:
        """One explanation as it is given by default: an attribution with its evidence."""
        parts = [part async for part in self._stub.Explain(pb.ExplainRequest(text=text), timeout=60)]
        return pb.ExplanationSummary.FromString(parts[-1].summary.SerializeToString())

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


async def measure(model: str, seconds: float, lengths: Sequence[int]) -> dict[str, float]:
    """Load one server in turns; returns p50 and p99 with and without explanations, in ms, and their ratio, by token count."""
    tokenizer = tokenizers.Tokenizer.from_file(str(find_bundle(model, bundle_roots(())) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    texts = make_texts(SHORT, 300, tokenizer)
    longest = make_texts((LONG[-1],) * len(LONG), 1, tokenizer)[0]
    process, target, _ = start_server(model)
    try:
        capacity = await measure_capacity(target, texts, seconds)
        timed = Timed(target)
        found = {"capacity": capacity}
        for tokens in lengths:
            # Two for the special tokens.
            explained = longest[: tokenizer.encode(longest).offsets[tokens - 2][1]]
            await timed.explain(explained)
            begun = cpu_s(process.pid)
            for _ in range(2):
                await timed.explain(explained)
            core_s = (cpu_s(process.pid) - begun) / 2
            rate = SHARE * cores_granted() / core_s
            print(f"{tokens} tokens: {core_s:.2f} core-s an explanation, {rate:.3f} a second take {SHARE:.0%} of the cores", flush=True)
            length_s = min(PHASE_S_MAX, max(seconds, 1.001 / rate))
            seen: dict[str, list[list[float]]] = {"without": [], "with": []}
            for number in range(PAIRS_OF_PHASES[tokens]):
                for name in ("without", "with") if number % 2 else ("with", "without"):
                    beside = rate if name == "with" else 0.0
                    seen[name].append(await timed.phase(texts, LOAD * capacity, length_s, number, explained, beside))
            found[f"explain_core_s_{tokens}"] = core_s
            for name, phases in seen.items():
                for percent in (50, 99):
                    found[f"p{percent}_ms_{name}_{tokens}"] = 1e3 * statistics.median(float(np.percentile(p, percent)) for p in phases)
            found[f"p99_ratio_{tokens}"] = found[f"p99_ms_with_{tokens}"] / found[f"p99_ms_without_{tokens}"]
            paired = [float(np.percentile(a, 99) / np.percentile(b, 99)) for a, b in zip(seen["with"], seen["without"], strict=True)]
            found[f"p99_ratio_of_pairs_{tokens}"] = statistics.median(paired)
        await timed.close()
        return found
    finally:
        process.terminate()
        process.wait(60)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="english")
    parser.add_argument("--seconds", type=float, default=10.0, help="least seconds of a phase")
    parser.add_argument("--tokens", type=int, action="append", choices=PAIRS_OF_PHASES, help="of the explained texts (default: all)")
    options = parser.parse_args()
    for name, value in asyncio.run(measure(options.model, options.seconds, options.tokens or tuple(PAIRS_OF_PHASES))).items():
        print(f"{name:30} {value:10.3f}")


if __name__ == "__main__":
    main()
