"""Loads and warms up a model: finds devices, loads the graphs, starts the runners and measures batch costs."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sentiment.batch_limits import ON_CPU, ON_GPU, DefaultLimits
from sentiment.batching.cost import CostTable
from sentiment.batching.layout import Layout, Packed, Padded
from sentiment.batching.plan import BatchLimits
from sentiment.errors import BadBundle, BadSettings, DeviceLost
from sentiment.lifecycle.warm_up import MEASURE_S, first_runs, warm_up
from sentiment.model.batch_mates import Inexact
from sentiment.model.bundle import bundle_roots, find_bundle
from sentiment.model.classifier import Classifier, load_classifier, use_threads
from sentiment.model.cores import cores_granted
from sentiment.model.execute import Execute, here, result_of
from sentiment.model.gpu.device_session import TOKENS_STEP, prove
from sentiment.model.gpu.devices import CPU, Device, Found, find_devices
from sentiment.model.gpu.on_device import load_on_device
from sentiment.model.lowest_priority import CHECK_INTERVAL_S
from sentiment.model.runner import Runner
from sentiment.observability.logs import logger
from sentiment.settings import Settings

# Up to this many tokens, packed attention in fp32 keeps its scores, which may take more memory than longer rows without them.
SCORES_KEPT_MAX = 255
# Threads of a batch that runs while other runners are idle. More were not measured.
THREADS_MAX = 2
# Of the threads on a CPU that run batches while the event loop is busy. See docs/internals/performance.md, "The runners' niceness".
NICENESS = 5


@dataclass(frozen=True, slots=True)
class Loaded:
    """A warm model and its measured costs.

    ``explained`` is the same model on the CPU, for explanations, because a device belongs to its runner's thread. The owner must close
    ``runners``. ``not_cuda`` is why an available GPU is not used, and ``device_lost`` whether it was lost during warm-up.
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
        measure_s: seconds to measure.
        check: called from time to time. An exception from it ends the load, propagates, and everything is closed.
        model: ``name`` or ``name/version``; "" for the default.
        execute: runs the heavy work that frees the GIL, on the CPU. If it is not ``here``, graphs for a GPU are made in another process.

    Raises:
        BadBundle: the bundle cannot be served.
        BadSettings: a device does not exist, or the largest batch does not fit in its memory.
        DeviceLost: a requested device was lost after it computed the golden set.
    """
    path = find_bundle(model or settings.model, bundle_roots(settings.bundles))
    found = find_devices(settings.device, prove)
    if found.devices == (CPU,):
        return _on_cpu(path, settings, measure_s, found, execute)
    try:
        return _on_devices(_batched(checked(path, "fp32", execute, settings.inexact_models)), settings, measure_s, found, check, execute)
    except (BadBundle, BadSettings, DeviceLost) as error:
        if settings.device != "auto":
            raise
        lost = isinstance(error, DeviceLost)
        reason = "; ".join(filter(None, (found.not_cuda, str(error))))
    # Outside the handler, because the error keeps the loaded objects alive.
    try:
        return replace(_on_cpu(path, settings, measure_s, Found((CPU,), reason), execute), device_lost=lost)
    except BadBundle as error:
        raise BadBundle(f"{error}; and no GPU can serve it: {reason}") from error


def checked(path: Path, precision: str | None = None, execute: Execute = here, inexact: Inexact = "alone") -> Classifier:
    """Load and check a bundle that was found by its name. Arguments and errors as in ``load_classifier``.

    Raises:
        BadBundle: also if its manifest has another name or version than its folder.
    """
    # Resolve links first, so that all files come from one folder even if a link changes meanwhile.
    classifier = load_classifier(path.resolve(), precision, execute, inexact)
    if classifier.bundle.id != f"{path.parent.name}/{path.name}":
        raise BadBundle(f"{path}: holds {classifier.bundle.id}; rename the folder to the name and version of its manifest")
    return classifier


def _batched(classifier: Classifier) -> Classifier:
    """A classifier for a device, which runs no rows by themselves.

    Raises:
        BadBundle: its answers depend on batch mates.
    """
    if classifier.session.rows_alone:
        raise BadBundle(
            f"{classifier.bundle.path / classifier.graph.file}: answers depend on batch mates, and only the CPU runs rows by themselves: "
            "set device = cpu or inexact_models = batch"
        )
    _tell_inexact(classifier)
    return classifier


def _tell_inexact(classifier: Classifier) -> None:
    """Log that a model's answers depend on batch mates, or that its rows run by themselves because they would."""
    alone = classifier.session.rows_alone
    if alone or not classifier.graph.exact:
        stated = next(graph.invariance for graph in classifier.manifest.graphs.classify if graph.file == classifier.graph.file)
        logger().warning("inexact_model", model=classifier.bundle.id, invariance=stated, rows="alone" if alone else "batch")


def _limits(settings: Settings, classifier: Classifier, usual: DefaultLimits) -> BatchLimits:
    return BatchLimits(
        settings.batch_rows_max or usual["rows"],
        settings.batch_tokens_max or usual["tokens"],
        settings.batch_scores_bytes_max or usual["scores_bytes"],
        classifier.bundle.attention_heads,
    )


def _on_cpu(path: Path, settings: Settings, measure_s: float, found: Found, execute: Execute) -> Loaded:
    classifier = checked(path, None if settings.precision == "auto" else settings.precision, execute, settings.inexact_models)
    _tell_inexact(classifier)
    limits = _limits(settings, classifier, ON_CPU)
    count = settings.runners or cores_granted()
    width = min(count, settings.batch_threads_max or THREADS_MAX)
    if not_wide := result_of(execute, partial(use_threads, classifier, width)):
        logger().warning("not_wide", model=classifier.bundle.id, reason=not_wide)
    cost = warm_up(classifier, limits, _cache(settings), measure_s, execute)
    runners = [Runner(f"cpu-{number}", low_priority=Runner(f"cpu-{number}-nice", NICENESS)) for number in range(count)]
    return Loaded(classifier, classifier, limits, cost, Padded(), runners, not_cuda=found.not_cuda)


def _on_devices(
    host: Classifier, settings: Settings, measure_s: float, found: Found, check: Callable[[], None], execute: Execute
) -> Loaded:
    if settings.precision == "int8":
        raise BadSettings(f"precision = int8: runs only on the CPU, but the device is {found.devices[0].name}")
    limits = _limits(settings, host, ON_GPU)
    runners = [Runner(device.name) for device in found.devices]
    try:
        # One device after the other: while CUDA graphs are captured, no other device may allocate memory.
        with _graphs_folder(settings) as folder:
            if execute is not here:
                _make_graphs_apart(host, settings, folder, check)
            for runner, device in zip(runners, found.devices, strict=True):
                make = partial(
                    load_on_device, host, device, settings.precision, folder, settings.device_bytes_max, settings.device_captures, check
                )
                runner.classifier = runner.call(make)
        served = [runner.classifier for runner in runners if runner.classifier is not None]
        kinds = {classifier.graph.file for classifier in served}
        if len(kinds) > 1:
            raise BadBundle(f"{host.bundle.path}: no graph passes on all devices: {', '.join(sorted(kinds))}; set device or precision")
        session = served[0].session
        layout = Packed(TOKENS_STEP) if session.layout == "packed" else Padded()
        within = layout.within(limits)
        longest = host.manifest.max_tokens
        mixtures = [layout.mixture(within, length) for length in (longest, min(longest, SCORES_KEPT_MAX))]
        for runner, classifier in zip(runners, served, strict=True):
            runner.call(partial(first_runs, classifier, within, mixtures, check))
        # The costs of the first device are used for all: they are of one type.
        cost = runners[0].call(partial(warm_up, served[0], within, _cache(settings), measure_s))
        check()
    except BaseException:
        for runner in runners:
            runner.close()
        raise
    return Loaded(served[0], host, limits, cost, layout, runners, found.devices, found.not_cuda)


def _make_graphs_apart(host: Classifier, settings: Settings, folder: Path, check: Callable[[], None]) -> None:
    """Make the first graphs in a process of the lowest priority: here, the work would hold the GIL for seconds.

    The load then finds them. If they cannot be made, it fails as that process did, and has the reason.
    """
    precision = "fp32" if settings.precision == "fp32" else "fp16"
    command = [sys.executable, "-P", "-m", "sentiment.model.gpu.graphs", str(host.bundle.path), str(folder), precision]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:  # noqa: S603  # our own module
        try:
            while process.poll() is None:
                check()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(CHECK_INTERVAL_S)
        finally:
            process.kill()


def _cache(settings: Settings) -> Path | None:
    return Path(settings.cache_dir) if settings.cache_dir else None


@contextlib.contextmanager
def _graphs_folder(settings: Settings) -> Iterator[Path]:
    """The folder for generated graphs: the cache, or a temporary one that exists until they are loaded."""
    if settings.cache_dir:
        yield Path(settings.cache_dir)
        return
    with tempfile.TemporaryDirectory(prefix="sentiment-graphs-") as folder:
        yield Path(folder)
