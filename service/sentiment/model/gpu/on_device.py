"""Loads a bundle on an accelerator: the fastest of its graphs that passes the golden set there."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from sentiment.batch_limits import rounding
from sentiment.errors import BadBundle, BadSettings
from sentiment.model.bundle import GraphSpec
from sentiment.model.classifier import Classifier, golden_failures
from sentiment.model.gpu.device_session import DeviceSession
from sentiment.model.gpu.devices import Device
from sentiment.model.session import is_out_of_memory
from sentiment.observability.logs import logger

# The greatest error of a golden logit in fp16. Near 3, typical of confident answers, adjacent fp16 numbers are 0.002 apart, and each layer
# rounds several times. An error of 0.06 in the difference of two logits changes a probability by at most 0.015.
FP16_TOLERANCE = 0.03

Precision = Literal["fp16", "fp32"]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A graph that could be served. ``file`` is its name in messages, without a path."""

    path: Path
    file: str
    precision: Precision
    layout: str


def load_on_device(
    host: Classifier,
    device: Device,
    precision: str,
    folder: Path,
    memory_bytes: int = 0,
    captures: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Classifier:
    """Load the first graph of a bundle that passes the golden set on a device. Call it in the thread that will run the graph.

    The order is: fp16 packed, fp16 padded, the bundle's own graph in fp16, which is not fused; then fp32 packed, fp32 padded and the
    bundle's own fp32 graph.

    Args:
        host: the bundle with its fp32 graph, on the CPU.
        device: where the graph runs.
        precision: auto, fp16 or fp32.
        folder: where the graphs are built or reused.
        memory_bytes: the device memory limit of the model; 0 for all of the memory.
        captures: capture the runs of small batches. A graph that fails so is tried without.
        check: called before each attempt; an error that it raises ends the load.

    Raises:
        BadBundle: no graph passes there; the message has the reason of each.
        BadSettings: the packages that build graphs are not installed, or the model does not fit in the memory.
    """
    reasons: list[str] = []
    for candidate in _candidates(host, precision, folder, reasons):
        failed = ""
        for capturing in (True, False) if captures and device.accelerator and device.accelerator.graphs else (False,):
            check()
            try:
                # In a function, so that a rejected graph is freed before the next is loaded: both might not fit in memory.
                classifier = _try(host, device, candidate, memory_bytes, capturing, reasons)
            except BadBundle as error:
                if is_out_of_memory(error):
                    # The next candidates are as large or twice as large.
                    raise _does_not_fit(device, candidate, memory_bytes, error) from error
                failed = failed or str(error)
                continue
            if failed:
                logger().warning("runs_not_captured", device=device.name, reason=failed)
            return classifier
        reasons.append(failed)
    raise BadBundle("; ".join(reasons))


def _does_not_fit(device: Device, candidate: _Candidate, memory_bytes: int, error: BadBundle) -> BadSettings:
    files = (candidate.path, candidate.path.with_name(f"{candidate.path.stem}.weights"))
    size = sum(file.stat().st_size for file in files if file.exists())
    limit = f"device_bytes_max = {memory_bytes}" if memory_bytes else "device_bytes_max = 0 (all free memory)"
    return BadSettings(
        f"{limit}: {candidate.file} has {size} bytes and does not fit in the memory of {device.model or device.name} with one text; "
        f"raise the limit, free memory on the device, or set device = cpu ({error})"
    )


def _try(host: Classifier, device: Device, candidate: _Candidate, memory_bytes: int, captures: bool, reasons: Sequence[str]) -> Classifier:
    manifest = host.manifest
    session = DeviceSession(candidate.path, device, manifest.logits, candidate.layout, manifest.max_tokens, memory_bytes, captures)
    spec = GraphSpec(
        file=candidate.file,
        precision=candidate.precision,
        providers=(session.provider,),
        inputs=tuple(session.inputs),
        outputs=(session.output,),
        # The host's may be inexact, if the settings allow that.
        invariance=max(rounding(candidate.precision), host.graph.invariance),
        tolerance=FP16_TOLERANCE if candidate.precision == "fp16" else host.graph.tolerance,
    )
    classifier = Classifier(host.bundle, spec, host.tokenizer, session, reasons)
    for failure in golden_failures(classifier):
        raise BadBundle(f"{candidate.file} on {device.name}: {failure}")
    return classifier


def _candidates(host: Classifier, precision: str, folder: Path, reasons: list[str]) -> Iterator[_Candidate]:
    try:
        from sentiment.model.gpu.graphs import make_graphs, make_unfused  # noqa: PLC0415  # needs onnx, which only the gpu extra has
    except ImportError as error:
        raise BadSettings(f"serving on a GPU needs the gpu extra: pip install 'sentiment-service[gpu]' ({error})") from error

    bundle = host.bundle.path

    def fused(kind: Precision) -> Iterator[_Candidate]:
        graphs = make_graphs(bundle, folder, kind)
        if graphs.packed is None:
            reasons.append(f"{kind} packed: {graphs.reason}")
        else:
            yield _Candidate(graphs.packed, f"{kind}-packed.onnx", kind, "packed")
        yield _Candidate(graphs.padded, f"{kind}-padded.onnx", kind, "padded")

    def unfused() -> Iterator[_Candidate]:
        yield _Candidate(make_unfused(bundle, folder), "fp16-unfused.onnx", "fp16", "padded")

    def own() -> Iterator[_Candidate]:
        yield _Candidate(bundle / host.graph.file, host.graph.file, "fp32", "padded")

    order: Sequence[tuple[Precision, Callable[[], Iterator[_Candidate]]]] = (
        ("fp16", partial(fused, "fp16")),
        ("fp16", unfused),
        ("fp32", partial(fused, "fp32")),
        ("fp32", own),
    )
    for kind, make in order:
        if precision not in ("auto", kind):
            continue
        reason = ""
        try:
            yield from make()
        except BadBundle as error:
            reason = str(error)
        except OSError as error:
            reason = f"{kind}: graphs cannot be written to {folder}: {error}"
        # Both precisions may fail for the same reason.
        if reason and reason not in reasons:
            reasons.append(reason)
