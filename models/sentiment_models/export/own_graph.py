"""Somebody's own ONNX file as the graph of a bundle: what it must be, and the few changes that the service needs.

Needs neither torch nor a runtime.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto, helper
from onnx.external_data_helper import uses_external_data

from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.graphs.graph import initializers, replace_nodes
from sentiment_models.export.graphs.graph_rules import all_nodes, dims_of, graph_faults, kind_of, read_graph, shown_value
from sentiment_models.export.manifest import WEIGHTS_BESIDE

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LOGITS = "logits"
EXPORTS = "optimum-cli export onnx --task text-classification makes such a file, and torch.onnx.export with input_names and dynamic_axes"

_AS_FLOAT = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
# Operators whose products or activations are in 8 bits.
_INT8 = ("Integer", "Quantize", "QLinear", "QAttention", "QGemm", "QOrdered")


@dataclass(frozen=True, slots=True)
class OwnGraph:
    """A graph that the service can feed. ``logits``: of a row; None if the file does not say. ``changes``: what was changed, in words."""

    path: Path
    model: ModelProto
    inputs: tuple[str, ...]
    logits: int | None
    precision: str
    changes: tuple[str, ...]
    outside: bool

    def save(self, file: Path) -> None:
        """Write the graph: the same bytes if nothing was changed; tensors from outside go to WEIGHTS_BESIDE in the same folder."""
        if self.outside:
            onnx.save_model(self.model, file, save_as_external_data=True, location=WEIGHTS_BESIDE)
            # onnx lets the owner alone read it.
            shutil.copymode(file, file.with_name(WEIGHTS_BESIDE))
        else:
            file.write_bytes(self.model.SerializeToString() if self.changes else self.path.read_bytes())


def check_file(path: Path) -> None:
    """Check that there is a file.

    Raises:
        BadCheckpoint: there is none, or it is a folder. Names the ONNX files in that.
    """
    if path.is_dir():
        held = ", ".join(sorted(file.name for file in path.glob("*.onnx"))) or "none"
        raise BadCheckpoint(f"{path}: is a folder; name one of its ONNX files ({held})")
    if not path.is_file():
        raise BadCheckpoint(f"{path}: no such file")


def read_own(path: Path) -> OwnGraph:
    """Read an ONNX file, with its external data, and check its operators, inputs and outputs.

    Raises:
        BadCheckpoint: the service could not feed it or read its answers. Names what is wrong and what to export instead.
    """
    check_file(path)
    model = read_graph(path)
    if model is None or not model.graph.node:
        raise BadCheckpoint(f"{path}: not an ONNX file")
    outside = _load_outside(path, model)
    for fault in graph_faults(model, {}, {}):
        raise BadCheckpoint(f"{path}: {fault}")
    stored = initializers(model)
    inputs = [value for value in model.graph.input if value.name not in stored]
    _check_inputs(path, inputs)
    changes = [*_as_int64(model, inputs), *_one_output(path, model)]
    width = (dims_of(model.graph.output[0]) or [""])[-1]
    return OwnGraph(
        path,
        model,
        tuple(value.name for value in inputs),
        width if isinstance(width, int) else None,
        _precision(model),
        tuple(changes),
        outside,
    )


def _load_outside(path: Path, model: ModelProto) -> bool:
    """Load the tensors that stand in other files, in place. Returns whether there are any."""
    found = [tensor for tensor in initializers(model).values() if uses_external_data(tensor)]
    for tensor in found:
        name = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        if not (path.parent / name).is_file():
            raise BadCheckpoint(f"{path}: tensor {tensor.name} stands in {name!r}, which is not there; keep them together")
    try:
        onnx.load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # onnx raises its own for links and paths that lead elsewhere, and ValueError for a file that is too short
        raise BadCheckpoint(f"{path}: its external data cannot be read: {error}") from error
    return bool(found)


def _check_inputs(path: Path, inputs: Sequence[ValueInfoProto]) -> None:
    names = [value.name for value in inputs]
    if unknown := sorted(set(names) - set(INPUTS)):
        raise BadCheckpoint(f"{path}: has inputs {', '.join(unknown)}; the service feeds {', '.join(INPUTS)} alone: {EXPORTS}")
    if missing := [name for name in INPUTS[:2] if name not in names]:
        raise BadCheckpoint(f"{path}: lacks the input {' and '.join(missing)}, which the service needs: {EXPORTS}")
    for value in inputs:
        dims = dims_of(value)
        if kind_of(value) not in (TensorProto.INT64, TensorProto.INT32):
            raise BadCheckpoint(f"{path}: input {value.name} must be INT64 or INT32, got {shown_value(value)}: {EXPORTS}")
        if dims and (len(dims) != 2 or any(isinstance(dim, int) for dim in dims)):
            raise BadCheckpoint(
                f"{path}: input {value.name} must be [rows, tokens] of any number, got {shown_value(value)}: export it with dynamic axes, "
                f'such as dynamic_axes={{"{value.name}": {{0: "batch", 1: "sequence"}}, ...}} of torch.onnx.export'
            )


def _as_int64(model: ModelProto, inputs: Sequence[ValueInfoProto]) -> Iterator[str]:
    """Make inputs in int32 read int64, which the service feeds, in place."""
    narrow = [value for value in inputs if kind_of(value) == TensorProto.INT32]
    if not narrow:
        return
    names = {value.name: f"{value.name}/int32" for value in narrow}
    for node in all_nodes(model.graph):
        for position, name in enumerate(node.input):
            node.input[position] = names.get(name, name)
    casts = [helper.make_node("Cast", [old], [new], name=new, to=TensorProto.INT32) for old, new in names.items()]
    replace_nodes(model, [*casts, *model.graph.node])
    for value in narrow:
        value.type.tensor_type.elem_type = TensorProto.INT64
    yield f"{', '.join(names)} in int64, which the service feeds, instead of int32"


def _one_output(path: Path, model: ModelProto) -> Iterator[str]:
    """Leave one output, logits in fp32, in place."""
    outputs = list(model.graph.output)
    named = [value for value in outputs if value.name == LOGITS] or outputs
    if len(named) != 1:
        raise BadCheckpoint(
            f"{path}: must have one output, or one named {LOGITS}, got {', '.join(value.name for value in outputs)}: {EXPORTS}"
        )
    (value,) = named
    dims = dims_of(value)
    if dims and (len(dims) != 2 or isinstance(dims[0], int)):
        why = "; this is an encoder without a classification head" if len(dims) == 3 else ""
        raise BadCheckpoint(f"{path}: output {value.name} must be logits [rows, labels], got {shown_value(value)}{why}: {EXPORTS}")
    if dims and dims[1] == 1:
        raise BadCheckpoint(f"{path}: output {value.name} has one number a row, so this is no classifier with a logit for each label")
    if kind_of(value) not in (TensorProto.FLOAT, *_AS_FLOAT):
        raise BadCheckpoint(f"{path}: output {value.name} must be FLOAT, got {shown_value(value)}: {EXPORTS}")
    others = [one.name for one in outputs if one.name != value.name]
    kept = ValueInfoProto.FromString(value.SerializeToString())
    if kind_of(value) != TensorProto.FLOAT:
        kept.name = f"{value.name}/fp32"
        kept.type.tensor_type.elem_type = TensorProto.FLOAT
        model.graph.node.append(helper.make_node("Cast", [value.name], [kept.name], name=kept.name, to=TensorProto.FLOAT))
        yield f"{value.name} in fp32"
    if others:
        yield f"without the outputs {', '.join(others)}"
    del model.graph.output[:]
    model.graph.output.append(kept)


def _precision(model: ModelProto) -> str:
    """What the weights are computed in. It names the file, and the setting ``precision`` chooses by it; a GPU serves fp32 alone.

    It also says how much of a change by batch mates is rounding.
    """
    kinds = {node.op_type for node in all_nodes(model.graph)}
    if any(word in kind for kind in kinds for word in _INT8):
        return "int8"
    if "MatMulNBits" in kinds:
        return "int4"
    half = sum(tensor.data_type == TensorProto.FLOAT16 and len(tensor.dims) > 1 for tensor in model.graph.initializer)
    return "fp16" if half else "fp32"
