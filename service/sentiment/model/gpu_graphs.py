"""Builds the graphs that a GPU serves, on the serving machine: fused, in fp16 or fp32, padded and packed.

They are not part of a bundle, since they depend on the version of ONNX Runtime, and in fp32 they would double the size of a bundle.
Needs onnx from the ``gpu`` extra, and neither torch nor sympy nor a GPU. Import this module only where a GPU is served.
"""

import hashlib
import json
import logging
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onnx
import onnxruntime
from onnx import ModelProto
from onnxruntime.transformers import float16, fusion_options, optimizer

from sentiment.errors import BadBundle
from sentiment.model.bundle import MANIFEST
from sentiment.model.packed_graph import NotPackable, pack_graph
from sentiment.model.session import RUNTIME_VERSION

# It warns that shape inference is off, which is intended; see ``_fused``.
logging.getLogger("fusion_skiplayernorm").setLevel(logging.ERROR)

Precision = Literal["fp16", "fp32"]

RECIPE = 1
"""The version of the graphs built here. Increase it when they change, so that graphs of an older release are not reused."""

PLAIN = "fp32.onnx"
_PADDED, _PACKED, _FACTS = "padded.onnx", "packed.onnx", "graphs.json"
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
    manifest = (bundle / MANIFEST).read_bytes()
    if json.loads(manifest)["padding_side"] != "right":
        raise BadBundle(f"{bundle}: padding_side is left; fused attention needs padding on the right")
    digest = hashlib.sha256(manifest).hexdigest()
    place = folder / f"gpu-{digest[:32]}-{RUNTIME_VERSION}-{precision}-{RECIPE}"
    if not place.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".gpu-", dir=folder) as part:
            made = Path(part) / "made"
            made.mkdir()
            _make(bundle / PLAIN, made, precision)
            try:
                made.rename(place)
            except OSError:
                # Another process built the same graphs first.
                if not place.exists():
                    raise
    facts = json.loads((place / _FACTS).read_bytes())
    packed = place / _PACKED
    return GpuGraphs(place / _PADDED, packed if packed.exists() else None, facts["fused"], facts["reason"])


def _make(plain: Path, folder: Path, precision: Precision) -> None:
    folded = _folded(plain, folder)
    layers = sum(node.op_type == "Softmax" for node in folded.graph.node)
    if layers == 0:
        raise BadBundle(f"{plain}: the graph has no attention layer to fuse for a GPU")
    model = _fused(folded)
    fused = Counter(node.op_type for node in model.graph.node)
    _check_fused(plain, fused, layers)
    if precision == "fp16":
        outputs = [value.name for value in model.graph.output]
        model = float16.convert_float_to_float16(model, keep_io_types=outputs, disable_shape_infer=True)
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
    """The graph with constants folded: casts of fp16 weights, and their transposes.

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
