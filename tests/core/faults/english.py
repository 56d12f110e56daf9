"""The default bundle, for faults that need real work: realistic texts with their scores."""

import asyncio
from collections.abc import Sequence

from sentiment.client import Client
from sentiment.model.bundle import CHECKOUT_BUNDLES
from sentiment_tools.loadtest.drivers import Target
from sentiment_tools.loadtest.fleet import measure
from sentiment_tools.loadtest.mix import Mix
from sentiment_tools.traffic.texts import read_pool

# Flags of a server. They override earlier ones.
ENGLISH = ("--bundles", str(CHECKOUT_BUNDLES), "--model", "english")
PATIENT = (60.0, 60.0)


def texts_with_scores(target: str, count: int) -> list[tuple[str, float]]:
    """``count`` texts as long as sentences and reviews, each with the score for positive that it gets when sent alone."""
    with Client(target) as client:
        return [(text, client.classify(text, timeout_s=60).scores["positive"]) for text in read_pool("mixed")[:count]]


def capacity(target: str, texts: Sequence[str], seconds: float) -> float:
    """Texts per second that 64 callers get answered in a closed loop."""
    return asyncio.run(measure(Target(target), Mix(PATIENT), texts, 64, seconds, 0.5)).answered_per_s
