"""One copy of the weights: an ONNX graph whose initializers refer to a .safetensors file.

ONNX external data and a tensor in a .safetensors file are both a file, an offset and a length, so ONNX Runtime can read the tensors
directly. Knows nothing of torch or of a runtime.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.graphs.graph import initializers, replace_initializers, replace_nodes

Weights = Mapping[str, NDArray[np.float16]]

# Suffix of an initializer that holds a transposed weight: an export folds the transposition of a Linear layer into its weight.
TRANSPOSED = ".transposed"


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
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCheckpoint(f"{path}: not a safetensors file: {error}") from error
    return found


def check_whole(path: Path) -> None:
    """Check that the size of a .safetensors file matches its header.

    Raises:
        BadCheckpoint: it does not, or the file is not a .safetensors file. Names both sizes.
    """
    expected, found = max((tensor.offset + tensor.length for tensor in stored_tensors(path).values()), default=0), path.stat().st_size
    if expected not in (0, found):
        raise BadCheckpoint(f"{path}: expected {expected} bytes by the header, got {found}; copy the file again")


def check_weights(folder: str) -> None:
    """Check all .safetensors files of a checkpoint's folder with ``check_whole``. A name that is not a folder has none.

    Raises:
        BadCheckpoint: the size of a file does not match its header. Names the file.
    """
    for file in sorted(Path(folder).glob("*.safetensors")):
        check_whole(file)


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


def refer(model: ModelProto, path: Path) -> ModelProto:
    """Return a copy whose fp32 weights are read from the fp16 tensors of ``path`` by offset, then cast and transposed.

    The initializers must be named by ``name_after``. Initializers that are not in the file stay inside the graph. The result must be
    saved in the folder of ``path``. ONNX Runtime folds the Cast and Transpose nodes when it loads the graph.
    """
    stored = stored_tensors(path)
    result = ModelProto()
    result.CopyFrom(model)
    tensors = initializers(result)
    casts: list[NodeProto] = []
    outside: dict[str, TensorProto] = {}
    for name in list(tensors):
        source = name.removesuffix(TRANSPOSED)
        if source not in stored or stored[source].dtype != "F16":
            continue
        half = f"{source}.fp16"
        outside.setdefault(half, _external(half, stored[source], path.name))
        whole = f"{name}.fp32" if name != source else name
        cast = helper.make_node("Cast", [half], [whole], name=f"{name}/Cast", to=TensorProto.FLOAT)
        casts.append(cast)
        if name != source:
            casts.append(helper.make_node("Transpose", [whole], [name], name=f"{name}/Transpose", perm=[1, 0]))
        del tensors[name]
    replace_nodes(result, [*casts, *result.graph.node])
    replace_initializers(result, {**tensors, **outside})
    return result


def _external(name: str, stored: Stored, location: str) -> TensorProto:
    tensor = TensorProto(name=name, dims=stored.dims, data_type=TensorProto.FLOAT16, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", stored.offset), ("length", stored.length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
