"""The default bundle for the faults that want real work: texts as they come, with their scores."""

import asyncio
from collections.abc import Sequence

from sentiment.client import Client
from sentiment.loadtest.drivers import Target
from sentiment.loadtest.fleet import measure
from sentiment.loadtest.mix import Mix
from sentiment.model.bundle import CHECKOUT_BUNDLES
from sentiment.traffic.texts import read_pool

# Flags of a server; a later one wins.
ENGLISH = ("--bundles", str(CHECKOUT_BUNDLES), "--model", "english")
PATIENT = (60.0, 60.0)


def texts_with_scores(target: str, count: int) -> list[tuple[str, float]]:
    """So many texts of sentences' and reviews' lengths, each with its score for positive as it is when it comes alone."""
    with Client(target) as client:
        return [(text, client.classify(text, timeout_s=60).scores["positive"]) for text in read_pool("mixed")[:count]]


def capacity(target: str, texts: Sequence[str], seconds: float) -> float:
    """Texts a second that are answered while 64 callers wait all the time."""
    return asyncio.run(measure(Target(target), Mix(PATIENT), texts, 64, seconds, 0.5)).answered_per_s
