"""From settings to a model that is warm: its devices, its graphs on them, the runners that run them, and what batches cost."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sentiment.batching.cost import CostTable
from sentiment.batching.layout import Layout, Packed, Padded
from sentiment.batching.plan import BatchLimits
from sentiment.errors import BadBundle, BadSettings, DeviceLost
from sentiment.model.bundle import bundle_roots, find_bundle
from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.cores import cores_granted
from sentiment.model.device_session import TOKENS_STEP, prove
from sentiment.model.devices import CPU, Device, Found, find_devices
from sentiment.model.execute import Execute, here
from sentiment.model.on_device import load_on_device
from sentiment.model.runner import Runner
from sentiment.serving.lifecycle.warm_up import MEASURE_S, first_runs, warm_up
from sentiment.settings import Settings

# Rows of some 280 tokens cost a core 35 ms each alone and 40 in batches of 4 (make bench): long rows are better run alone there.
ON_CPU = {"rows": 16, "tokens": 512, "scores_bytes": 64 * 2**20}
# 16,384 tokens take an H200 some 6 ms in BERT-base (computed): fewer leave it idle between batches, more make all wait. Fused attention
# keeps no scores.
ON_GPU = {"rows": 256, "tokens": 16_384, "scores_bytes": 2**32}
# Up to so many tokens packed attention in fp32 keeps its scores: that may take more memory than longer rows do without.
SCORES_KEPT_MAX = 255
# Of the runners' threads on the CPU: with fewer cores to go round than busy threads, the event loop is the one that must not wait, or
# calls age unseen before they are admitted.
NICENESS = 10


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is warm, and what its warm-up taught.

    ``explained`` is what explanations run on: the same model on the CPU, since a device belongs to its runner's thread. ``runners`` are
    to be closed by whoever takes them; ``not_cuda`` is why a GPU that could have been taken was not, and ``device_lost`` whether it was
    lost while the model warmed up.
    """

    classifier: Classifier
    explained: Classifier
    limits: BatchLimits
    cost: CostTable
    layout: Layout
    runners: list[Runner]
    devices: tuple[Device, ...] = (CPU,)
    not_cuda: str = ""
    device_lost: bool = False


def load(
    settings: Settings,
    measure_s: float = MEASURE_S,
    check: Callable[[], None] = lambda: None,
    model: str = "",
    execute: Execute = here,
) -> Loaded:
    """Find, check and warm up a bundle; measure its costs for ``measure_s``. Blocks for seconds, on a GPU for a minute.

    Args:
        settings: of the server.
        measure_s: seconds of measuring.
        check: called now and then; what it raises comes out, and nothing is left behind.
        model: which, "" for the default.
        execute: does what is heavy and frees the GIL, on the CPU.

    Raises:
        BadBundle: it cannot be served.
        BadSettings: a device is not there, or a batch of the largest size does not fit in its memory.
        DeviceLost: a device that was asked for computed the golden set and then nothing any more.
    """
    path = find_bundle(model or settings.model, bundle_roots(settings.bundles))
    found = find_devices(settings.device, prove)
    if found.devices == (CPU,):
        return _on_cpu(path, settings, measure_s, found, execute)
    try:
        return _on_devices(_checked(path, "fp32"), settings, measure_s, found, check)
    except (BadBundle, BadSettings, DeviceLost) as error:
        if settings.device != "auto":
            raise
        lost = isinstance(error, DeviceLost)
        reason = "; ".join(filter(None, (found.not_cuda, str(error))))
    # Outside of the handler: the error holds what was loaded there.
    try:
        return replace(_on_cpu(path, settings, measure_s, Found((CPU,), reason), execute), device_lost=lost)
    except BadBundle as error:
        raise BadBundle(f"{error}; nor does a GPU serve it: {reason}") from error


def _checked(path: Path, precision: str | None, execute: Execute = here) -> Classifier:
    # Where the links lead now: all files are of one folder, even if a link is exchanged meanwhile.
    classifier = load_classifier(path.resolve(), precision, execute)
    if classifier.bundle.id != f"{path.parent.name}/{path.name}":
        raise BadBundle(f"{path}: holds {classifier.bundle.id}; a bundle's folder is called as its manifest says")
    return classifier


def _limits(settings: Settings, classifier: Classifier, usual: dict[str, int]) -> BatchLimits:
    return BatchLimits(
        settings.batch_rows_max or usual["rows"],
        settings.batch_tokens_max or usual["tokens"],
        settings.batch_scores_bytes_max or usual["scores_bytes"],
        classifier.bundle.attention_heads,
    )


def _on_cpu(path: Path, settings: Settings, measure_s: float, found: Found, execute: Execute) -> Loaded:
    classifier = _checked(path, None if settings.precision == "auto" else settings.precision, execute)
    limits = _limits(settings, classifier, ON_CPU)
    cost = warm_up(classifier, limits, _cache(settings), measure_s, execute)
    runners = [Runner(f"cpu-{number}", NICENESS) for number in range(settings.runners or cores_granted())]
    return Loaded(classifier, classifier, limits, cost, Padded(), runners, not_cuda=found.not_cuda)


def _on_devices(host: Classifier, settings: Settings, measure_s: float, found: Found, check: Callable[[], None]) -> Loaded:
    if settings.precision == "int8":
        raise BadSettings(f"precision = int8: runs on the CPU only, and the device is {found.devices[0].name}")
    limits = _limits(settings, host, ON_GPU)
    runners = [Runner(device.name) for device in found.devices]
    try:
        # One after the other: while runs of one device are captured, no other may take memory.
        with _graphs_folder(settings) as folder:
            for runner, device in zip(runners, found.devices, strict=True):
                make = partial(load_on_device, host, device, settings.precision, folder, settings.device_bytes_max, check)
                runner.classifier = runner.call(make)
        served = [runner.classifier for runner in runners if runner.classifier is not None]
        kinds = {classifier.graph.file for classifier in served}
        if len(kinds) > 1:
            raise BadBundle(f"{host.bundle.path}: not all devices can serve the same graph: {', '.join(sorted(kinds))}")
        session = served[0].session
        layout = Packed(TOKENS_STEP) if session.layout == "packed" else Padded(session.lengths)
        within = layout.within(limits)
        longest = host.manifest.max_tokens
        mixtures = [layout.mixture(within, length) for length in (longest, min(longest, SCORES_KEPT_MAX))]
        for runner, classifier in zip(runners, served, strict=True):
            runner.call(partial(first_runs, classifier, within, mixtures, check, measure_s))
        # The first one's costs are taken for all: the devices of a process should be alike.
        cost = runners[0].call(partial(warm_up, served[0], within, _cache(settings), measure_s))
        check()
    except BaseException:
        for runner in runners:
            runner.close(wait_s=1.0)
        raise
    return Loaded(served[0], host, limits, cost, layout, runners, found.devices, found.not_cuda)


def _cache(settings: Settings) -> Path | None:
    return Path(settings.cache_dir) if settings.cache_dir else None


@contextlib.contextmanager
def _graphs_folder(settings: Settings) -> Iterator[Path]:
    """Where graphs are made: kept, or there until they are loaded."""
    if settings.cache_dir:
        yield Path(settings.cache_dir)
        return
    with tempfile.TemporaryDirectory(prefix="sentiment-graphs-") as folder:
        yield Path(folder)
