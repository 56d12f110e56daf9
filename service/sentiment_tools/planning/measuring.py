"""Measures a replica for the planner: a bundle's batches, alone and with all runners busy, as this machine would serve them."""

import math
import os
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from sentiment.batching.cost import Shape
from sentiment.batching.layout import Packed
from sentiment.lifecycle.loading import Loaded, load
from sentiment.lifecycle.warm_up import Kept
from sentiment.model.classifier import Classifier
from sentiment.model.runner import Runner, run_batch
from sentiment.model.tokenizer import Row
from sentiment.settings import load_settings
from sentiment_tools.planning.machine import PACE_S, RESTED_S, Machine
from sentiment_tools.traffic.lengths import MIXED, estimate_tokens
from sentiment_tools.traffic.texts import make_texts, with_new_words

MEASURE_S = 15.0
# Four measurements take turns: runs alone, after a pause, with all runners busy, and texts tokenized beside busy runners. A turn lasts
# SLICE_S, or until every shape has run.
SLICE_S = 0.5
TEXTS = 64
# Between two texts, so that the runs evict the vocabulary from the cache as they do in a server.
PAUSE_S = 0.003
# Before a run whose core should be asleep.
REST_S = 0.03


class _Ran(NamedTuple):
    shape: Shape
    at: float
    run_s: float


def measure(bundle: str, seconds: float = MEASURE_S, runners: int | None = None) -> Machine:
    """Load a bundle as ``serve`` does, with the settings from the environment, and run batches.

    Args:
        bundle: its name, "" for the default.
        seconds: how long to measure; each shape runs at least once, however long that takes.
        runners: overrides the setting, if given.

    Raises:
        BadBundle or BadSettings: the bundle cannot be served.
    """
    # Before this process takes a core.
    others_load = _load()
    # The planner knows no wide batches.
    flags = {name: value for name, value in (("model", bundle), ("runners", runners), ("batch_threads_max", 1)) if value}
    loaded = load(load_settings(flags, os.environ)[0])
    try:
        return replace(measure_loaded(loaded, seconds), others_load=others_load)
    finally:
        for runner in loaded.runners:
            runner.close()


def measure_loaded(loaded: Loaded, seconds: float) -> Machine:
    """Measure a warm model. Nothing else may run on its runners."""
    shapes = list(loaded.cost.points())
    alone: list[_Ran] = []
    together: list[_Ran] = []
    rested: list[_Ran] = []
    token_s: list[float] = []
    begun_at = time.monotonic()
    # In turns: on a machine whose speed varies, one measurement after the other would not be comparable.
    while time.monotonic() < begun_at + seconds or not token_s:
        alone += _run_all(loaded, loaded.runners[:1], shapes)[0]
        rested += _run_all(loaded, loaded.runners[:1], [shape for shape in shapes if shape[0] == 1], rest_s=REST_S)[0]
        together += _run_all(loaded, loaded.runners, shapes)[0]
        token_s.append(_run_all(loaded, loaded.runners, shapes, lambda: _token_s(loaded.classifier))[1])
    points, in_company = _typical(alone), _typical(together)
    crowding = math.exp(statistics.fmean(math.log(in_company[shape] / points[shape]) for shape in shapes))
    slower_s = statistics.median(ran.run_s - points[ran.shape] for ran in rested)
    ratios = [(ran.at - begun_at, ran.run_s / in_company[ran.shape]) for ran in together]
    pace = _pace(ratios)
    spread = [math.log(ratio / pace[int(at / PACE_S)]) ** 2 for at, ratio in ratios]
    return Machine(
        points,
        runners=len(loaded.runners),
        noise=math.sqrt(statistics.fmean(spread)),
        pace=pace,
        crowding=max(1.0, crowding) if len(loaded.runners) > 1 else 1.0,
        rested_s=max(0.0, slower_s) / -math.expm1(-REST_S / RESTED_S),
        token_s=max(0.0, statistics.median(token_s)),
        packed=isinstance(loaded.layout, Packed),
        key=Kept.of(Path(), loaded.classifier).key,
    )


def _load() -> float:
    """The load average of the last minute for each core; 0 where the system does not tell."""
    with suppress(AttributeError, OSError):
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    return 0.0


def _typical(runs: Sequence[_Ran]) -> dict[Shape, float]:
    """The median of each shape, which ignores single disturbances."""
    times = defaultdict[Shape, list[float]](list)
    for ran in runs:
        times[ran.shape].append(ran.run_s)
    return {shape: statistics.median(found) for shape, found in times.items()}


def _pace(ratios: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """The median ratio in each PACE_S seconds; the previous one where nothing ran."""
    windows = defaultdict[int, list[float]](list)
    for at, ratio in ratios:
        windows[int(at / PACE_S)].append(ratio)
    pace = [1.0]
    for window in range(max(windows) + 1):
        pace.append(statistics.median(windows[window]) if windows[window] else pace[-1])
    return tuple(pace[1:])


def _run_all(
    loaded: Loaded, runners: Sequence[Runner], shapes: Sequence[Shape], beside: Callable[[], float] = lambda: 0.0, rest_s: float = 0.0
) -> tuple[list[_Ran], float]:
    """Let each runner run all shapes repeatedly, in its own order. Returns the runs, and the result of ``beside``."""
    ends_at = time.monotonic() + SLICE_S

    def run(runner: Runner) -> list[_Ran]:
        return runner.call(lambda: _run_until(runner.classifier or loaded.classifier, shapes, ends_at, rest_s))

    with ThreadPoolExecutor(len(runners)) as pool:
        running = pool.map(run, runners)
        found = beside()
        return [ran for each in running for ran in each], found


def _run_until(classifier: Classifier, shapes: Sequence[Shape], ends_at: float, rest_s: float) -> list[_Ran]:
    runs: list[_Ran] = []
    while True:
        for shape in random.sample(shapes, len(shapes)):
            at = time.monotonic()
            if at >= ends_at and len(runs) >= len(shapes):
                return runs
            time.sleep(rest_s)
            rows, length = shape
            batch = [Row([classifier.tokenizer.pad_id] * length, None, False)] * rows
            runs.append(_Ran(shape, at, run_batch(classifier, batch).total_s))


def _token_s(classifier: Classifier) -> float:
    """Core seconds to tokenize one more token: the slope of time over length."""
    found = []
    rng = random.Random()
    for text in [with_new_words(text, rng) for text in make_texts(MIXED, TEXTS)]:
        begun = time.thread_time()
        classifier.tokenizer.encode(text)
        found.append((estimate_tokens(text), time.thread_time() - begun))
        time.sleep(PAUSE_S)
    tokens, times = zip(*found, strict=True)
    return statistics.linear_regression(tokens, times).slope
