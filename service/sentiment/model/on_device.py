"""A bundle made ready on a device with a memory of its own: the fastest of its graphs that computes the golden set rightly there."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sentiment.errors import BadBundle, BadSettings
from sentiment.model.bundle import GraphSpec
from sentiment.model.classifier import Classifier, golden_failures
from sentiment.model.device_session import DeviceSession
from sentiment.model.devices import Device
from sentiment.model.session import is_out_of_memory
from sentiment.observability.logs import logger

# How far a golden logit may be off in fp16. Near 3, where a sure answer's logits lie, two numbers of fp16 are 0.002 apart, and each
# layer rounds several times; a difference of two logits that is 0.06 off moves a probability by at most 0.015.
FP16_TOLERANCE = 0.03
# How far a probability may move with a row's batch mates: another shape may be computed by another kernel.
INVARIANCE = {"fp16": 2e-3, "fp32": 1e-4}

Precision = Literal["fp16", "fp32"]


@dataclass(frozen=True, slots=True)
class _Offer:
    """A graph that could be served. ``file`` names it where paths of this machine have no place."""

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
    check: Callable[[], None] = lambda: None,
) -> Classifier:
    """Load a bundle's graphs on a device and prove them on the golden set; in the thread that will run them.

    Tried in this order: fp16 packed, fp16 padded, fp32 packed, fp32 padded, and the bundle's own fp32 graph, which is not fused; each
    with captured runs, and if it fails with them, without.

    Args:
        host: the bundle with its fp32 graph, on the CPU.
        device: where it is to run.
        precision: auto, or fp16 or fp32 alone.
        folder: where graphs are made, or found.
        memory_bytes: the most that the model may take of the device's memory, 0 for all of it.
        check: called before each is tried; what it raises ends all.

    Raises:
        BadBundle: none can be served there; says why of each.
        BadSettings: the packages that make graphs are not installed, or the model does not fit in the memory.
    """
    reasons: list[str] = []
    for offer in _offers(host, precision, folder, reasons):
        failed = ""
        for captures in (True, False) if device.accelerator and device.accelerator.graphs else (False,):
            check()
            try:
                # What was loaded and is refused has gone when the next is loaded: both might not fit.
                classifier = _try(host, device, offer, memory_bytes, captures, reasons)
            except BadBundle as error:
                if is_out_of_memory(error):
                    # What comes next is as large, or twice as large.
                    raise _does_not_fit(device, offer, memory_bytes, error) from error
                failed = failed or str(error)
                continue
            if failed:
                logger().warning("runs_not_captured", device=device.name, reason=failed)
            return classifier
        reasons.append(failed)
    raise BadBundle("; ".join(reasons))


def _does_not_fit(device: Device, offer: _Offer, memory_bytes: int, error: BadBundle) -> BadSettings:
    files = (offer.path, offer.path.with_name(f"{offer.path.stem}.weights"))
    size = sum(file.stat().st_size for file in files if file.exists())
    room = f"device_bytes_max = {memory_bytes}" if memory_bytes else "device_bytes_max = 0, all that is free"
    return BadSettings(
        f"{room}: {offer.file} has {size} bytes and does not fit in the memory of {device.model or device.name} with one text: "
        f"allow it more, free some there, or set device = cpu ({error})"
    )


def _try(host: Classifier, device: Device, offer: _Offer, memory_bytes: int, captures: bool, reasons: Sequence[str]) -> Classifier:
    manifest = host.manifest
    session = DeviceSession(offer.path, device, len(manifest.labels), offer.layout, manifest.max_tokens, memory_bytes, captures)
    spec = GraphSpec(
        file=offer.file,
        precision=offer.precision,
        providers=(session.provider,),
        inputs=tuple(session.inputs),
        outputs=(session.output,),
        invariance=INVARIANCE[offer.precision],
        tolerance=FP16_TOLERANCE if offer.precision == "fp16" else host.graph.tolerance,
    )
    classifier = Classifier(host.bundle, spec, host.tokenizer, session, reasons)
    for failure in golden_failures(classifier):
        raise BadBundle(f"{offer.file} on {device.name}: {failure}")
    return classifier


def _offers(host: Classifier, precision: str, folder: Path, reasons: list[str]) -> Iterator[_Offer]:
    try:
        from sentiment.model.gpu_graphs import make_graphs  # noqa: PLC0415  # needs onnx, which only the gpu extra has
    except ImportError as error:
        raise BadSettings(f"a GPU's graphs cannot be made: {error}; install sentiment-service[gpu]") from error

    precisions: tuple[Precision, ...] = ("fp16", "fp32")
    if host.manifest.padding_side == "left":
        reasons.append("fused attention reads how long rows are, and this bundle pads them on the left")
        precisions = ()
    for kind in precisions:
        if precision not in ("auto", kind):
            continue
        try:
            graphs = make_graphs(host.bundle.path, folder, kind)
        except BadBundle as error:
            reasons.append(str(error))
            continue
        except OSError as error:
            reasons.append(f"{kind}: graphs cannot be written to {folder}: {error}")
            continue
        if graphs.packed is None:
            reasons.append(f"{kind} packed: {graphs.reason}")
        else:
            yield _Offer(graphs.packed, f"{kind}-packed.onnx", kind, "packed")
        yield _Offer(graphs.padded, f"{kind}-padded.onnx", kind, "padded")
    if precision != "fp16":
        yield _Offer(host.bundle.path / host.graph.file, host.graph.file, "fp32", "padded")
