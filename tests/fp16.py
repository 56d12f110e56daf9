"""fp16 as CUDA computes it, in NumPy: how far a bundle's logits are off there. ``python -m tests.fp16 BUNDLE`` prints it.

It runs the very fp16 graphs that a GPU would serve, one text at a time and without padding. A tensor between two operators is fp16. An
operator reads fp16, multiplies and sums in fp32, and rounds its result. Where kernels of onnxruntime-gpu 1.31 round inside of an operator,
``Kernels`` says so; it follows their sources (contrib_ops/cuda/bert, cu_inc/common.cuh). Standard operators are those of onnx's reference.

Sums are in NumPy's order. The packed graph is not run: it computes the same numbers in another layout.
"""

import argparse
import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import defs, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op

from sentiment.errors import BadBundle
from sentiment.model.classifier import Classifier, golden_error, load_classifier
from sentiment.model.gpu.graphs import make_graphs, make_unfused
from sentiment.model.gpu.on_device import FP16_TOLERANCE
from sentiment.model.gpu.packed_graph import MICROSOFT
from sentiment.model.tensors import pad
from sentiment.model.tokenizer import Row

Array = npt.NDArray[np.float32]
Round = Callable[[Array], Array]

# Standard operators that compute nothing: inputs keep their type, and Cast gets another one.
MOVES = {
    *("Cast", "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather", "GatherElements", "Identity", "OneHot", "Reshape"),
    *("Shape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze", "Where"),
}
_erf = np.vectorize(math.erf, otypes=[np.float32])


def exact(values: Array) -> Array:
    """No rounding beyond fp32's."""
    return values


def to_fp16(values: Array) -> Array:
    """Round to fp16, of 11 significant bits."""
    return values.astype(np.float16).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Kernels:
    """Where kernels round.

    Args:
        stored: rounds tensors between operators, to fp16 or coarser.
        sums: rounds sums of embeddings, and of a residual, its bias and its skip connection, before they are normalized.
        inside: rounds biases when they are added, the steps of Gelu, and the weights of attention.
        scores: rounds attention's scores, which flash attention does not store.
        parts: in how many parts products are summed; each is stored. cuBLAS may do so where there are few rows.
    """

    stored: Round = to_fp16
    sums: Round = to_fp16
    inside: Round = to_fp16
    scores: Round = exact
    parts: int = 1


# Of nodes in fp32.
FP32 = Kernels(stored=exact, sums=exact, inside=exact)
KERNELS = {
    # Operators are exact, and nothing but what they store is rounded.
    "exact": Kernels(sums=exact, inside=exact),
    # fp32 sums, as the option enable_skip_layer_norm_strict_mode had them. ONNX Runtime ignores it since 1.28.
    "strict": Kernels(sums=exact),
    # onnxruntime-gpu 1.31 with flash attention.
    "flash": Kernels(),
    # The same with attention in single steps, and products in parts.
    "worst": Kernels(scores=to_fp16, parts=4),
}


class Emulated:
    """A session over an emulated graph, fp16 or fp32. For ``Classifier``."""

    def __init__(self, graph: Path, kernels: Kernels) -> None:
        model = onnx.load(graph)
        self._types = {value.name: helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type) for value in model.graph.input}
        self.evaluator = ReferenceEvaluator(model, new_ops=list(_operators(model, kernels)))

    def feeds(self, rows: Sequence[Row], pad_id: int, left: bool) -> dict[str, npt.NDArray[np.generic]]:
        return {name: array.astype(self._types[name]) for name, array in pad(rows, list(self._types), pad_id, left).items()}

    def run(self, feeds: Mapping[str, npt.NDArray[np.generic]]) -> Array:
        # MPNet takes the logarithm of the distance 0 and does not use it.
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.evaluator.run(["logits"], dict(feeds))[0]


def fp16_graphs(bundle: Path, folder: Path) -> dict[str, Path]:
    """The padded fp16 graphs that a GPU would be given, by name, in order."""
    graphs = {}
    # If layers cannot be fused, there is only the other one.
    with contextlib.suppress(BadBundle):
        graphs["fp16-padded"] = make_graphs(bundle, folder, "fp16").padded
    return {**graphs, "fp16-unfused": make_unfused(bundle, folder)}


def golden_errors(host: Classifier, graph: Path, kernels: Kernels) -> list[float]:
    """The largest error of the logits of each golden text; infinite if another label has the largest one."""
    emulated = Classifier(host.bundle, host.graph, host.tokenizer, Emulated(graph, kernels))  # type: ignore[arg-type]  # the fake
    found = [(golden.label, *golden_error(emulated, golden)) for golden in host.manifest.golden]
    return [error if label == wanted else math.inf for wanted, label, error in found]


def _operators(model: onnx.ModelProto, kernels: Kernels) -> Iterator[type[OpRun]]:
    """The operators of a graph, as the kernels compute them."""
    versions = {entry.domain: entry.version for entry in model.opset_import}
    for domain, name in sorted({(node.domain, node.op_type) for node in model.graph.node}):
        if name == "GatherElements":
            yield _GatherElements
        elif (domain, name) in OWN:
            yield _operator(domain, name, OpRun, None, _own(OWN[domain, name]), kernels)
        elif not domain and name not in MOVES:
            base = load_op(domain, name, versions[domain])
            yield _operator(domain, name, base, defs.get_schema(name, versions[domain], domain), _standard(base), kernels)


def _operator(domain: str, name: str, base: type[OpRun], schema: Any, compute: Callable[..., Any], kernels: Kernels) -> type[OpRun]:
    """An operator that is given fp16, computes in fp32 and stores fp16. Given fp32, it returns fp32."""

    def run(self: OpRun, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        if not any(_is(each, np.float16) for each in inputs):
            return compute(self, FP32, *inputs, **attributes)
        outputs = compute(self, kernels, *(each.astype(np.float32) if _is(each, np.float16) else each for each in inputs), **attributes)
        return tuple(kernels.stored(each).astype(np.float16) if _is(each, np.float32) else each for each in outputs)

    return type(name, (base,), {"op_domain": domain, "op_schema": schema, "_run": run})


class _GatherElements(OpRun):
    """onnx's own takes at most 64 places along an axis."""

    op_domain = ""

    def _run(self, data: Any, indices: Any, axis: int = 0) -> tuple[Any, ...]:
        return (np.take_along_axis(data, indices, axis),)


_GatherElements.__name__ = "GatherElements"


def _is(values: Any, kind: type[np.generic]) -> bool:
    return isinstance(values, np.ndarray) and values.dtype == kind


def _own(function: Callable[..., Array | tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    def compute(_: OpRun, kernels: Kernels, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        outputs = function(kernels, *inputs, **attributes)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return compute


def _standard(base: type[OpRun]) -> Callable[..., tuple[Any, ...]]:
    return lambda self, _, *inputs, **attributes: base._run(self, *inputs, **attributes)


def _product(kernels: Kernels, left: Array, right: Array) -> Array:
    if kernels.parts == 1:
        return left @ right
    parts = np.array_split(np.arange(left.shape[-1]), kernels.parts)
    return sum((kernels.stored(left[..., part] @ right[..., part, :]) for part in parts), np.float32(0))


def _norm(values: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    """Statistics are fp32 since ONNX Runtime 1.28."""
    mean = values.mean(-1, keepdims=True)
    variance = (values * values).mean(-1, keepdims=True) - mean * mean
    return gamma * (values - mean) / np.sqrt(variance + np.float32(epsilon)) + beta


def _embeddings(
    kernels: Kernels,
    ids: Any,
    types: Any,
    words: Array,
    positions: Array,
    segments: Any,
    gamma: Array,
    beta: Array,
    mask: Any = None,
    epsilon: float = 1e-12,
    **_: Any,
) -> tuple[Any, ...]:
    total = words[ids] if types is None else kernels.sums(words[ids] + segments[types])
    total = kernels.sums(total + positions[: ids.shape[1]])
    lengths = np.zeros(len(ids), np.int32) if mask is None else mask.sum(1).astype(np.int32)
    return _norm(total, gamma, beta, epsilon), lengths


def _skip_norm(
    kernels: Kernels, values: Array, skip: Array, gamma: Array, beta: Array, bias: Array | None = None, epsilon: float = 1e-12
) -> Array:
    total = values if bias is None else kernels.sums(values + bias)
    return _norm(kernels.sums(total + skip), gamma, beta, epsilon)


def _attention(
    kernels: Kernels, values: Array, weight: Array, bias: Array, lengths: Any = None, num_heads: int = 1, scale: float = 0.0, **_: Any
) -> Array:
    rows, tokens, _width = values.shape
    assert lengths is None or (lengths == tokens).all(), "rows with padding are not emulated"
    mapped = kernels.inside(kernels.stored(_product(kernels, values, weight)) + bias)
    queries, keys, contents = np.moveaxis(mapped.reshape(rows, tokens, 3, num_heads, -1), (2, 3), (0, 2))
    scores = kernels.scores(queries @ keys.swapaxes(-1, -2) * np.float32(scale or 1 / math.sqrt(queries.shape[-1])))
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    # Tensor cores multiply fp16 alone.
    mixed = kernels.inside(powers / powers.sum(-1, keepdims=True)) @ contents
    return np.moveaxis(mixed, 1, 2).reshape(rows, tokens, -1)


def _gelu(kernels: Kernels, values: Array) -> Array:
    inside, alpha = kernels.inside, np.float32(math.sqrt(0.5))
    return inside(values * np.float32(0.5)) * inside(1 + inside(_erf(inside(inside(alpha) * values))))


def _bias_gelu(kernels: Kernels, values: Array, bias: Array) -> Array:
    return _gelu(kernels, kernels.inside(values + bias))


OWN: dict[tuple[str, str], Callable[..., Array | tuple[Any, ...]]] = {
    ("", "Erf"): lambda _, values: _erf(values),
    ("", "MatMul"): _product,
    (MICROSOFT, "EmbedLayerNormalization"): _embeddings,
    (MICROSOFT, "SkipLayerNormalization"): _skip_norm,
    (MICROSOFT, "Attention"): _attention,
    (MICROSOFT, "Gelu"): _gelu,
    (MICROSOFT, "BiasGelu"): _bias_gelu,
}


def main() -> int:
    """Print the errors of a bundle's fp16 graphs. Exit code 1: that of the first, by the kernels of today, is beyond the tolerance."""
    parser = argparse.ArgumentParser(prog="python -m tests.fp16", description="How far fp16 is off a bundle's golden logits, emulated.")
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    host = load_classifier(parser.parse_args().bundle, "fp32")
    print(f"{host.bundle.id}: {len(host.manifest.golden)} golden texts, tolerance {FP16_TOLERANCE}")
    found: dict[tuple[str, str], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, graph in fp16_graphs(host.bundle.path, Path(folder)).items():
            for kind, kernels in KERNELS.items():
                error = found[name, kind] = max(golden_errors(host, graph, kernels))
                print(f"{name:12}  {kind:6}  error {error:.4f}  margin {FP16_TOLERANCE - error:+.4f}", flush=True)
    return int(next(error for (_, kind), error in found.items() if kind == "flash") > FP16_TOLERANCE)


if __name__ == "__main__":
    raise SystemExit(main())
