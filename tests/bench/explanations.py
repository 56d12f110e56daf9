"""How long an explanation takes on an idle server: until its first picture, its final one, and its end."""

import statistics
import time
from collections.abc import Sequence

import grpc

from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc

OPTIONS = pb.ExplainOptions(estimates=True)


async def measure_explanations(target: str, texts: Sequence[str]) -> dict[str, float]:
    """Medians over the texts, after one to warm up, of the milliseconds from the answer to each."""
    seen: dict[str, list[float]] = {"first": [], "final": [], "end": []}
    async with grpc.aio.insecure_channel(target) as channel:
        for text in (texts[0], *texts):
            at: dict[str, float] = {}
            async for part in pb_grpc.SentimentServiceStub(channel).Explain(pb.ExplainRequest(text=text, options=OPTIONS), timeout=120):
                now = time.perf_counter()
                if part.HasField("attribution"):
                    at.setdefault("first", now)
                at["final" if part.HasField("attribution") else "header" if part.HasField("header") else "end"] = now
            for name, values in seen.items():
                values.append((at[name] - at["header"]) * 1e3)
    return {name: statistics.median(values[1:]) for name, values in seen.items()}
