"""The graphs that a GPU is served with, made on the machine that serves them: fused, in fp16 or fp32, padded and packed.

They hang on the runtime's version, and in fp32 they would double a bundle: so they are no part of it. Needs the ``gpu`` extra's
onnx, and neither torch nor sympy nor a GPU. Import it where a GPU is served, not before.
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

# It warns that shape inference is off; that is meant, see ``_fused``.
logging.getLogger("fusion_skiplayernorm").setLevel(logging.ERROR)

Precision = Literal["fp16", "fp32"]

RECIPE = 1
"""Counts the changes of what is made here, so that graphs which an older release kept are not taken for today's."""

PLAIN = "fp32.onnx"
_PADDED, _PACKED, _FACTS = "padded.onnx", "packed.onnx", "graphs.json"
_GELUS = ("Gelu", "BiasGelu", "FastGelu")


@dataclass(frozen=True, slots=True)
class GpuGraphs:
    """Graphs of one bundle and precision. Both read int32 and give float32 logits [rows, labels].

    ``padded`` reads the bundle's inputs [rows, longest], padded on the right: attention is told each row's length, not its mask.
    ``packed`` reads what ``tensors.pack`` makes; None where ``reason`` says why there is none. ``fused``: nodes by operator.
    """

    padded: Path
    packed: Path | None
    fused: Mapping[str, int]
    reason: str


def make_graphs(bundle: Path, folder: Path, precision: Precision) -> GpuGraphs:
    """Make a bundle's graphs in ``folder``, or find them there: made once for each bundle, runtime version and precision.

    They are written whole or not at all, and several processes may make the same at once. Making them takes 3.3 times the fp32 weights
    in memory (MiniLM-L6: 0.3 GB, 3 to 5 s on a CPU of 2 cores), and what is kept has the weights twice, in the graphs' precision.
    What another release, runtime or bundle made stays there until somebody removes it.

    Args:
        bundle: the bundle's folder, whose files are as its manifest says.
        folder: where they are kept; made if it is not there.
        precision: of weights and activations; in fp16 the last product's result is turned to fp32.

    Raises:
        BadBundle: the graph is not fused as a GPU needs it, and says what was and what was not; or the bundle pads on the left.
        OSError: they cannot be written.
    """
    manifest = (bundle / MANIFEST).read_bytes()
    if json.loads(manifest)["padding_side"] != "right":
        raise BadBundle(f"{bundle}: pads on the left; attention that is told lengths needs its padding on the right")
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
                # Another process was faster, and its graphs are as good.
                if not place.exists():
                    raise
    facts = json.loads((place / _FACTS).read_bytes())
    packed = place / _PACKED
    return GpuGraphs(place / _PADDED, packed if packed.exists() else None, facts["fused"], facts["reason"])


def _make(plain: Path, folder: Path, precision: Precision) -> None:
    folded = _folded(plain, folder)
    layers = sum(node.op_type == "Softmax" for node in folded.graph.node)
    if layers == 0:
        raise BadBundle(f"{plain}: has no attention that could be fused for a GPU")
    model = _fused(folded)
    fused = Counter(node.op_type for node in model.graph.node)
    _check_fused(plain, fused, layers)
    if precision == "fp16":
        outputs = [value.name for value in model.graph.output]
        model = float16.convert_float_to_float16(model, keep_io_types=outputs, disable_shape_infer=True)
    _save(model, folder / _PADDED)
    reason = ""
    try:
        # Saving took the weights out of it.
        model = onnx.load(folder / _PADDED)
        pack_graph(model)
        _save(model, folder / _PACKED)
    except NotPackable as error:
        reason = str(error)
    (folder / _FACTS).write_text(json.dumps({"fused": fused, "reason": reason}), encoding="utf-8")


def _folded(plain: Path, folder: Path) -> ModelProto:
    """The graph with its weights, and with constants computed: casts of fp16 weights, and their transposes.

    What ``optimizer.optimize_model`` does first; but that imports torch.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    file, weights = folder / "folded.onnx", "folded.weights"
    options.optimized_model_filepath = str(file)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", weights)
    try:
        # Tensors that two nodes share would hide from the patterns of the fusions.
        onnxruntime.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"], disabled_optimizers=["ConstantSharing"])
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise BadBundle(f"{plain}: ONNX Runtime cannot load it: {error}") from error
    model = onnx.load(file)
    file.unlink()
    (folder / weights).unlink(missing_ok=True)
    return model


def _fused(model: ModelProto) -> ModelProto:
    options = fusion_options.FusionOptions("bert")
    # It needs sympy, and the fusions of BERT do not need it.
    options.enable_shape_inference = False
    # The lengths of rows in place of their masks: on Hopper attention with a mask runs on the slowest kernel.
    options.attention_mask_format = fusion_options.AttentionMaskFormat.MaskIndexEnd
    made = optimizer.optimize_by_fusion(model, "bert", optimization_options=options)
    made.change_graph_inputs_to_int32()
    made.topological_sort()
    fused: ModelProto = made.model
    return fused


def _check_fused(plain: Path, fused: Mapping[str, int], layers: int) -> None:
    """Every layer must have been fused: a pattern that the optimizer does not know leaves a slow graph without a word.

    There may be more: ELECTRA's classifier has a Gelu, too.
    """
    found = {
        "Attention": fused.get("Attention", 0),
        "SkipLayerNormalization": fused.get("SkipLayerNormalization", 0),
        "Gelu": sum(fused.get(name, 0) for name in _GELUS),
    }
    wanted = {"Attention": layers, "SkipLayerNormalization": 2 * layers, "Gelu": layers}
    if any(found[name] < count for name, count in wanted.items()):
        missing = ", ".join(f"{name} {found[name]} of {count}" for name, count in wanted.items())
        raise BadBundle(f"{plain}: is not fused for a GPU by ONNX Runtime {RUNTIME_VERSION}: {missing}")


def _save(model: ModelProto, file: Path) -> None:
    # Weights lie beside the graph, since a protobuf message has at most 2 GB.
    onnx.save(model, file, save_as_external_data=True, location=f"{file.stem}.weights")
