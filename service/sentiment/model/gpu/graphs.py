"""Builds the graphs that a GPU serves, on the serving machine: fused, in fp16 or fp32, padded and packed; or unfused, in fp16.

They are not part of a bundle, since they depend on the version of ONNX Runtime, and in fp32 they would double the size of a bundle.
Needs onnx from the ``gpu`` extra, and neither torch nor sympy nor a GPU. Import this module only where a GPU is served.
"""

import contextlib
import hashlib
import json
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onnx
import onnxruntime
from onnx import ModelProto
from onnxruntime.transformers import float16, fusion_options, optimizer

from sentiment.errors import BadBundle
from sentiment.model.bundle import MANIFEST
from sentiment.model.gpu.half_graph import keep_exact
from sentiment.model.gpu.packed_graph import NotPackable, pack_graph
from sentiment.model.lowest_priority import LOAD_NICENESS
from sentiment.model.session import RUNTIME_VERSION

# It warns that shape inference is off, which is intended; see ``_fused``.
logging.getLogger("fusion_skiplayernorm").setLevel(logging.ERROR)

Precision = Literal["fp16", "fp32"]

RECIPE = 1
"""The version of the graphs built here. Increase it when they change, so that graphs of an older release are not reused."""

PLAIN = "fp32.onnx"
_PADDED, _PACKED, _UNFUSED, _FACTS = "padded.onnx", "packed.onnx", "unfused.onnx", "graphs.json"
_GELUS = ("Gelu", "BiasGelu", "FastGelu")


@dataclass(frozen=True, slots=True)
class GpuGraphs:
    """The graphs of one bundle and precision. Both read int32 and return float32 logits [rows, labels].

    ``padded`` reads the bundle's inputs [rows, longest], padded on the right: its attention uses the length of each row, not a mask.
    ``packed`` reads the output of ``tensors.pack``; if it is None, ``reason`` says why. ``fused``: the number of nodes by operator.
    """

    padded: Path
    packed: Path | None
    fused: Mapping[str, int]
    reason: str


def make_graphs(bundle: Path, folder: Path, precision: Precision) -> GpuGraphs:
    """Build a bundle's graphs in ``folder``, or reuse them: they are built once per bundle, runtime version and precision.

    Writing is atomic, and several processes may build the same graphs at once. Building needs memory for 3.3 times the fp32 weights
    (MiniLM-L6: 0.3 GB, 3 to 5 s on 2 CPU cores). On disk the weights are stored twice, in the precision of the graphs. Graphs of other
    releases, runtimes or bundles stay in ``folder`` until somebody removes them.

    Args:
        bundle: the bundle's folder, already checked against its manifest.
        folder: where the graphs are stored; created if missing.
        precision: of weights and activations; in fp16 the logits are converted to fp32.

    Raises:
        BadBundle: a layer could not be fused (the message has the counts), or the bundle pads on the left.
        OSError: the graphs cannot be written.
    """
    if json.loads((bundle / MANIFEST).read_bytes())["padding_side"] != "right":
        raise BadBundle(f"{bundle}: padding_side is left; fused attention needs padding on the right")
    place = _kept(bundle, folder, precision, lambda made: _make(bundle / PLAIN, made, precision))
    facts = json.loads((place / _FACTS).read_bytes())
    packed = place / _PACKED
    return GpuGraphs(place / _PADDED, packed if packed.exists() else None, facts["fused"], facts["reason"])


def make_unfused(bundle: Path, folder: Path) -> Path:
    """Build a bundle's own graph in fp16 in ``folder``, or reuse it, as ``make_graphs`` does. Needs no pattern to match.

    It reads the inputs of the bundle's fp32 graph, padded on the bundle's side, and returns float32 logits [rows, labels]. Angles and
    integers are computed in fp32: see ``half_graph``.

    Raises:
        BadBundle: the fp32 graph cannot be loaded or converted.
        OSError: the graph cannot be written.
    """

    def make(made: Path) -> None:
        model = _folded(bundle / PLAIN, made)
        try:
            # No operator is excluded as such: the converter excludes some that do have kernels for fp16.
            model = _halved(model, keep_exact(model), excluded=())
        except Exception as error:  # the graph may be any, and onnx's exceptions share no base class
            raise BadBundle(f"{bundle / PLAIN}: cannot be converted to fp16: {error}") from error
        _save(model, made / _UNFUSED)

    return _kept(bundle, folder, "unfused", make) / _UNFUSED


def _kept(bundle: Path, folder: Path, kind: str, make: Callable[[Path], None]) -> Path:
    """The folder of graphs of one kind. If it is missing, ``make`` fills it, and it appears whole or not at all."""
    digest = hashlib.sha256((bundle / MANIFEST).read_bytes()).hexdigest()
    place = folder / f"gpu-{digest[:32]}-{RUNTIME_VERSION}-{kind}-{RECIPE}"
    if not place.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".gpu-", dir=folder) as part:
            made = Path(part) / "made"
            made.mkdir()
            make(made)
            try:
                made.rename(place)
            except OSError:
                # Another process built the same graphs first.
                if not place.exists():
                    raise
    return place


def _make(plain: Path, folder: Path, precision: Precision) -> None:
    folded = _folded(plain, folder)
    layers = sum(node.op_type == "Softmax" for node in folded.graph.node)
    if layers == 0:
        raise BadBundle(f"{plain}: the graph has no attention layer to fuse for a GPU")
    model = _fused(folded)
    fused = Counter(node.op_type for node in model.graph.node)
    _check_fused(plain, fused, layers)
    if precision == "fp16":
        model = _halved(model)
    _save(model, folder / _PADDED)
    reason = ""
    try:
        # Saving moved the weights out of the model.
        model = onnx.load(folder / _PADDED)
        pack_graph(model)
        _save(model, folder / _PACKED)
    except NotPackable as error:
        reason = str(error)
    (folder / _FACTS).write_text(json.dumps({"fused": fused, "reason": reason}), encoding="utf-8")


def _folded(plain: Path, folder: Path) -> ModelProto:
    """The graph with constants folded, such as what makes fp32 of the stored weights.

    ``optimizer.optimize_model`` does the same first, but it imports torch.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    file, weights = folder / "folded.onnx", "folded.weights"
    options.optimized_model_filepath = str(file)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", weights)
    try:
        # The fusion patterns do not match tensors that two nodes share.
        onnxruntime.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"], disabled_optimizers=["ConstantSharing"])
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise BadBundle(f"{plain}: ONNX Runtime cannot load it: {error}") from error
    model = onnx.load(file)
    file.unlink()
    (folder / weights).unlink(missing_ok=True)
    return model


def _fused(model: ModelProto) -> ModelProto:
    options = fusion_options.FusionOptions("bert")
    # Shape inference needs sympy; the fusions of BERT do not need shape inference.
    options.enable_shape_inference = False
    # Row lengths in place of masks: on Hopper, attention with a mask uses the slowest kernel.
    options.attention_mask_format = fusion_options.AttentionMaskFormat.MaskIndexEnd
    made = optimizer.optimize_by_fusion(model, "bert", optimization_options=options)
    made.change_graph_inputs_to_int32()
    made.topological_sort()
    fused: ModelProto = made.model
    return fused


def _halved(model: ModelProto, exact: Sequence[str] = (), excluded: Sequence[str] | None = None) -> ModelProto:
    """The graph in fp16, except for its logits and the nodes named in ``exact``.

    Args:
        model: an fp32 graph; it is changed.
        exact: as ``half_graph.keep_exact`` returns them.
        excluded: operators that stay in fp32; None for the converter's own list.
    """
    outputs = [value.name for value in model.graph.output]
    halved: ModelProto = float16.convert_float_to_float16(
        model, keep_io_types=outputs, disable_shape_infer=True, op_block_list=excluded, node_block_list=list(exact)
    )
    return halved


def _check_fused(plain: Path, fused: Mapping[str, int], layers: int) -> None:
    """Check that every layer is fused. If the optimizer does not know a pattern, it silently leaves a slow graph.

    There may be more fused nodes than layers: ELECTRA's classifier has a Gelu too.
    """
    found = {
        "Attention": fused.get("Attention", 0),
        "SkipLayerNormalization": fused.get("SkipLayerNormalization", 0),
        "Gelu": sum(fused.get(name, 0) for name in _GELUS),
    }
    wanted = {"Attention": layers, "SkipLayerNormalization": 2 * layers, "Gelu": layers}
    if any(found[name] < count for name, count in wanted.items()):
        missing = ", ".join(f"{name} {found[name]} of {count}" for name, count in wanted.items())
        raise BadBundle(f"{plain}: ONNX Runtime {RUNTIME_VERSION} did not fuse every layer for a GPU: {missing}")


def _save(model: ModelProto, file: Path) -> None:
    # The weights go to a file of their own, since a protobuf message is limited to 2 GB.
    onnx.save(model, file, save_as_external_data=True, location=f"{file.stem}.weights")


def main(bundle: str, folder: str, precision: Precision) -> None:
    """Build graphs at the lowest priority, in a process of its own: ``python -m sentiment.model.gpu.graphs BUNDLE FOLDER PRECISION``.

    The process that started it builds what is missing afterwards, and gets the error.
    """
    os.nice(LOAD_NICENESS)
    with contextlib.suppress(BadBundle, OSError):
        make_graphs(Path(bundle), Path(folder), precision)
        return
    with contextlib.suppress(BadBundle, OSError):
        make_unfused(Path(bundle), Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]  # as many, and a precision
