"""One copy of the weights: ONNX graphs whose initializers refer to a .safetensors file.

ONNX external data and a tensor in a .safetensors file are both a file, an offset and a length, so ONNX Runtime can read the tensors
directly. A weight that the int8 graph multiplies by or looks up is stored as that graph has it: ``X.int8`` [rows, columns] and
``X.scale`` [rows, 1] instead of ``X``. All other weights are stored in fp16. Knows nothing of torch or of a runtime.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.graphs.graph import initializers, replace_initializers, replace_nodes
from sentiment_models.export.graphs.quantize import FP16, INT8, LEVELS, SCALE

Weights = Mapping[str, NDArray[Any]]
"""By name: fp16, int8, or the fp32 scales of int8."""

# Suffix of an initializer that holds a transposed weight: an export folds the transposition of a Linear layer into its weight.
TRANSPOSED = ".transposed"
TYPES = {
    "F16": TensorProto.FLOAT16,
    "F32": TensorProto.FLOAT,
    "BF16": TensorProto.BFLOAT16,
    "I8": TensorProto.INT8,
    "I64": TensorProto.INT64,
}
"""ONNX's types of tensors by safetensors' names."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The place of a tensor in a .safetensors file, in bytes from the file's start."""

    offset: int
    length: int
    dims: tuple[int, ...]
    dtype: str


def stored_tensors(path: Path) -> dict[str, Stored]:
    """Read the header of a .safetensors file.

    Raises:
        BadCheckpoint: the file is not a .safetensors file.
    """
    try:
        with path.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            entries = json.loads(stream.read(min(size, path.stat().st_size)))
        entries.pop("__metadata__", None)
        found: dict[str, Stored] = {}
        for name, entry in entries.items():
            begin, end = entry["data_offsets"]  # from the end of the header
            found[name] = Stored(8 + size + begin, end - begin, tuple(entry["shape"]), entry["dtype"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadCheckpoint(f"{path}: not a safetensors file: {error}") from error
    return found


def check_weights(folder: str) -> None:
    """Check that the size of each .safetensors file of a checkpoint's folder matches its header. A name that is not a folder has none.

    Raises:
        BadCheckpoint: it does not, or a file is not a .safetensors file. Names the file and both sizes.
    """
    for file in sorted(Path(folder).glob("*.safetensors")):
        expected, found = max((tensor.offset + tensor.length for tensor in stored_tensors(file).values()), default=0), file.stat().st_size
        if expected not in (0, found):
            raise BadCheckpoint(f"{file}: expected {expected} bytes by the header, got {found}; copy the file again")


def name_after(model: ModelProto, weights: Weights) -> None:
    """Rename each initializer to the weight that it holds, plus ``.transposed`` if it is transposed, in place.

    An export gives folded weights names such as onnx::MatMul_259. An initializer that holds no weight keeps its name.
    """
    names: dict[tuple[tuple[int, ...], bytes], str] = {}
    for name in sorted(weights):
        array = weights[name].astype(np.float32)
        names.setdefault((array.shape, array.tobytes()), name)
        if array.ndim == 2:
            names.setdefault((array.T.shape, array.T.tobytes()), name + TRANSPOSED)
    renamed: dict[str, str] = {}
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        new = names.get((array.shape, array.tobytes())) if tensor.data_type == TensorProto.FLOAT else None
        if new is not None and new not in renamed.values():
            renamed[tensor.name] = tensor.name = new
    renamed = {old: new for old, new in renamed.items() if old != new}
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            node.input[position] = renamed.get(name, name)


def rounded(weights: Weights, int8: ModelProto) -> Weights:
    """Return what a bundle stores: the weights, with those in int8 that the int8 graph ``int8`` has in int8, as it has them.

    A table, or a weight that is multiplied transposed, has a scale for each of its rows. A weight that the graph has in another layout,
    as after ``einsums_to_matmuls``, or in two, stays in fp16. Equal weights are stored alike: the graph has them once, under one name.
    """
    tensors = initializers(int8)
    first: dict[tuple[tuple[int, ...], bytes], str] = {}
    for name in sorted(weights):
        first.setdefault((weights[name].shape, weights[name].tobytes()), name)
    stored: dict[str, NDArray[Any]] = {}
    for name, array in weights.items():
        named = first[array.shape, array.tobytes()]
        found = [each for each in (named, named + TRANSPOSED) if each + INT8 in tensors]
        parts = [numpy_helper.to_array(tensors[found[0] + part]) for part in (INT8, SCALE)] if len(found) == 1 else []
        if not parts or parts[1].ndim != (2 if found[0] == named else 1):
            stored[name] = array
            continue
        stored[name + INT8] = np.ascontiguousarray(parts[0] if found[0] == named else parts[0].T)
        stored[name + SCALE] = parts[1].reshape(-1, 1)
    return stored


def real_names(stored: Collection[str]) -> list[str]:
    """Return the names in a checkpoint of the weights that are stored under the names ``stored``."""
    scales = {name.removesuffix(INT8) + SCALE for name in stored if name.endswith(INT8)}
    return [name.removesuffix(INT8) for name in stored if name not in scales]


def real_weight(name: str, stored: Collection[str], read: Callable[[str], NDArray[Any]]) -> NDArray[np.float32]:
    """Return a weight in fp32, as the fp32 graph computes it. ``read`` returns what is stored under a name."""
    if name + INT8 in stored:
        return np.asarray(read(name + INT8).astype(np.float32) * read(name + SCALE))
    return read(name).astype(np.float32)


def real(stored: Weights) -> dict[str, NDArray[np.float32]]:
    """Return stored weights in fp32 by their names in a checkpoint."""
    return {name: real_weight(name, stored, stored.__getitem__) for name in real_names(stored)}


def dithered(stored: Weights, seed: int) -> dict[str, NDArray[np.float32]]:
    """Return stored weights in fp32 for training, those in int8 at random within what rounds to them.

    Fine-tuning moves most weights by less than a tenth of a step of int8. From the steps themselves, rounding at the export would undo each
    such move: after 3 steps on 200 tweets, logits changed by 0.22 on average. From a random place it keeps the sum of the moves: 0.03.
    (Non-subtractive dither, Gray and Stockham 1993.) What the scale of a row comes from stays as it is, see ``factor_int8``: its largest
    number, and neighbours with a sum as large. So an export without training changes only steps that fp16 rounds over a border, 0.4 %.
    """
    rng = np.random.default_rng(seed)
    weights = real(stored)
    for name in weights:
        if name + INT8 in stored:
            steps = stored[name + INT8]
            within = rng.random(steps.shape, np.float32) - 0.5
            weights[name] += np.where(_sets_scale(steps), 0, within) * stored[name + SCALE]
    return weights


def _sets_scale(steps: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Which numbers of a matrix its rows may have their scales from; of some rows also others, as large as these."""
    found: NDArray[np.bool_] = np.abs(steps) == np.abs(steps).max(-1, keepdims=True)
    even = steps.shape[-1] // 2 * 2
    sums = steps[:, :even].astype(np.int16).reshape(len(steps), -1, 2).sum(axis=2)
    found[:, :even] |= np.repeat(np.abs(sums) >= LEVELS, 2, axis=1)
    return found


def put_real(model: ModelProto, stored: Weights) -> None:
    """Replace the weights of an fp32 graph that are stored in int8 by what they stand for, in place. See ``refer`` for their names."""
    tensors = initializers(model)
    for name in tensors:
        source = name.removesuffix(TRANSPOSED)
        if source + INT8 in stored:
            array = real_weight(source, stored, stored.__getitem__)
            tensors[name] = numpy_helper.from_array(np.ascontiguousarray(array if name == source else array.T), name)
    replace_initializers(model, tensors)


def refer(model: ModelProto, path: Path) -> ModelProto:
    """Return a copy that reads its weights from the tensors of ``path`` by offset.

    Stored weights are cast, scaled and transposed to what the graph reads. ONNX Runtime folds these nodes when it loads the graph.
    The initializers must be named by ``name_after``, and then maybe by ``quantize``. Those that are not in the file stay inside the
    graph. The result must be saved in the folder of ``path``.
    """
    result = ModelProto()
    result.CopyFrom(model)
    reader = _Reader(stored_tensors(path), path.name)
    tensors = {name: tensor for name, tensor in initializers(result).items() if not reader.read(name)}
    replace_nodes(result, [*reader.nodes, *result.graph.node])
    replace_initializers(result, {**tensors, **reader.tensors})
    return result


@dataclass(slots=True)
class _Reader:
    """``nodes`` make initializers of ``tensors``, which are read from a .safetensors file."""

    stored: Mapping[str, Stored]
    location: str
    nodes: list[NodeProto] = field(default_factory=list)
    tensors: dict[str, TensorProto] = field(default_factory=dict)

    def read(self, name: str) -> bool:
        """Make the initializer ``name``; False if the file does not have it."""
        part = next((each for each in (INT8, SCALE, FP16) if name.endswith(each)), "")
        source = name.removesuffix(part).removesuffix(TRANSPOSED)
        is_half = source in self.stored and self.stored[source].dtype == "F16"
        is_int8 = source + INT8 in self.stored
        if not (is_half if part == FP16 else is_int8 if part else is_half or is_int8):
            return False
        steps: list[tuple[str, list[str], dict[str, Any]]] = []
        if part:
            first = self._outside(source + part, source if part == FP16 else source + part)
        else:
            first = self._outside(source + FP16, source) if is_half else self._outside(source + INT8, source + INT8)
            steps.append(("Cast", [], {"to": TensorProto.FLOAT}))
            if is_int8:
                steps.append(("Mul", [self._outside(source + SCALE, source + SCALE)], {}))
        if name != source + part:
            # The scales of a transposed weight belong to its columns.
            steps.append(("Reshape", [self._flat()], {}) if part == SCALE else ("Transpose", [], {"perm": [1, 0]}))
        for number, (kind, others, attributes) in enumerate(steps):
            output = name if number == len(steps) - 1 else f"{name}/{kind}"
            self.nodes.append(helper.make_node(kind, [first, *others], [output], name=f"{name}/{kind}", **attributes))
            first = output
        return True

    def _flat(self) -> str:
        name = "weights.flat"
        self.tensors[name] = numpy_helper.from_array(np.array([-1], np.int64), name)
        return name

    def _outside(self, name: str, stored: str) -> str:
        place = self.stored[stored]
        tensor = TensorProto(name=name, dims=place.dims, data_type=TYPES[place.dtype], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", self.location), ("offset", place.offset), ("length", place.length)):
            tensor.external_data.add(key=key, value=str(value))
        self.tensors[name] = tensor
        return name
