"""BERT of any size with random weights, as a bundle: no torch, no transformers, no download. Its speed is that of a trained one.

The graph is, operator by operator, what ``sentiment-models export`` makes of such a checkpoint (a test compares their answers), so
that what fuses the one fuses the other.
"""

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from sentiment.model.session import Session
from sentiment.model.tensors import pad
from sentiment.model.tokenizer import Tokenizer
from sentiment_models.export.graphs.graph import serialize
from sentiment_models.export.manifest import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE, graph_file
from sentiment_models.export.weights import TRANSPOSED, refer
from tests.tiny import write_manifest

Weights = Mapping[str, npt.NDArray[np.float16]]
# The types of numbers in a .safetensors file.
STORED = {"F16": np.float16, "F32": np.float32, "I8": np.int8}

LABELS = ("negative", "positive")
GOLDEN = (
    *("a moving film", "two hours that I will never get back", "the second half drowns in noise", "her best performance"),
    *("dull", "I laughed all the way through it", "no", "the script forgets what it is about"),
)
GOLDEN_KEPT = 3


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes that determine the amount of computation."""

    layers: int
    width: int
    heads: int
    inner: int
    # Large enough for the tokenizer of the default bundle, which is reused. Unused embeddings cost no time.
    vocabulary: int = 32_768
    positions: int = 512
    types: int = 2

    def flop(self, tokens: int) -> float:
        """Operations for one text of ``tokens`` tokens: matrix products and attention."""
        linear = 2 * self.layers * (4 * self.width**2 + 2 * self.width * self.inner)
        return float(tokens * linear + 4 * self.layers * self.width * tokens**2)

    def products(self, tokens: int) -> dict[str, tuple[int, int, int]]:
        """The matrix products of a layer for ``tokens`` tokens, by name: the rows, the inner size and the columns of each."""
        width, inner = self.width, self.inner
        sizes = {"qkv": (width, 3 * width), "attention_output": (width, width), "up": (width, inner), "down": (inner, width)}
        return {name: (tokens, *each) for name, each in sizes.items()}


SIZES = {
    "bert-base": Size(12, 768, 12, 3072),
    "minilm-l6": Size(6, 384, 12, 1536),
    # For a trial on a CPU.
    "tiny-base": Size(2, 64, 2, 128),
    "tiny-l6": Size(1, 64, 2, 128),
}


def make_weights(size: Size, seed: int = 0) -> dict[str, npt.NDArray[np.float16]]:
    """Random weights under the names that transformers gives them.

    A trained model's texts differ; so that these do too, attention is sharper and the head wider than those of a fresh model.
    """
    random = np.random.default_rng(seed)

    def normal(*shape: int, deviation: float = 0.02) -> npt.NDArray[np.float16]:
        return (random.standard_normal(shape, np.float32) * deviation).astype(np.float16)

    weights: dict[str, npt.NDArray[np.float16]] = {}

    def linear(name: str, outputs: int, inputs: int, gain: float = 1.0) -> None:
        weights[f"{name}.weight"] = normal(outputs, inputs, deviation=gain / math.sqrt(inputs))
        weights[f"{name}.bias"] = normal(outputs)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = (1 + normal(size.width, deviation=0.1)).astype(np.float16)
        weights[f"{name}.bias"] = normal(size.width, deviation=0.1)

    for kind, count in (("word", size.vocabulary), ("position", size.positions), ("token_type", size.types)):
        weights[f"bert.embeddings.{kind}_embeddings.weight"] = normal(count, size.width, deviation=0.05 if kind == "word" else 0.02)
    norm("bert.embeddings.LayerNorm")
    for layer in range(size.layers):
        name = f"bert.encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            linear(f"{name}.attention.self.{part}", size.width, size.width, gain=1.5)
        linear(f"{name}.attention.output.dense", size.width, size.width)
        norm(f"{name}.attention.output.LayerNorm")
        linear(f"{name}.intermediate.dense", size.inner, size.width)
        linear(f"{name}.output.dense", size.width, size.inner)
        norm(f"{name}.output.LayerNorm")
    linear("bert.pooler.dense", size.width, size.width)
    linear("classifier", len(LABELS), size.width, gain=2.0)
    return weights


class _Graph:
    """Collects nodes in order. The name of a node is that of its output."""

    def __init__(self, weights: Weights) -> None:
        self.nodes: list[NodeProto] = []
        self.tensors: dict[str, TensorProto] = {}
        self._weights = weights
        self._constants = 0

    def node(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:  # Any: as the operator has them
        self.nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def constant(self, value: npt.ArrayLike, kind: npt.DTypeLike) -> str:
        self._constants += 1
        tensor = numpy_helper.from_array(np.asarray(value, kind))
        return self.node("Constant", [], f"constant_{self._constants}", value=tensor)

    def weight(self, name: str, transposed: bool = False) -> str:
        array = self._weights[name].astype(np.float32)
        name += TRANSPOSED if transposed else ""
        self.tensors[name] = numpy_helper.from_array(np.ascontiguousarray(array.T if transposed else array), name)
        return name

    def linear(self, source: str, name: str) -> str:
        product = self.node("MatMul", [source, self.weight(f"{name}.weight", transposed=True)], f"{name}/product")
        return self.node("Add", [self.weight(f"{name}.bias"), product], f"{name}/sum")

    def norm(self, source: str, name: str) -> str:
        inputs = [source, self.weight(f"{name}.weight"), self.weight(f"{name}.bias")]
        return self.node("LayerNormalization", inputs, f"{name}/norm", axis=-1, epsilon=1e-12)

    def length_of(self, source: str, axis: int, output: str) -> str:
        """One axis of a shape, as an int64 [1]."""
        shape = self.node("Shape", [source], f"{output}/shape")
        length = self.node("Gather", [shape, self.constant(axis, np.int64)], f"{output}/length", axis=0)
        return self.node("Unsqueeze", [length, self.constant([0], np.int64)], output)


def make_graph(size: Size, weights: Weights) -> ModelProto:
    """The fp32 graph with its weights inside: input_ids, attention_mask, token_type_ids [batch, sequence] to logits [batch, 2]."""
    graph = _Graph(weights)
    hidden = _embeddings(graph, size)
    mask = graph.node("Unsqueeze", ["attention_mask", graph.constant([1], np.int64)], "mask/rows")
    mask = graph.node("Unsqueeze", [mask, graph.constant([2], np.int64)], "mask/heads")
    mask = graph.node("Cast", [mask], "mask/float", to=TensorProto.FLOAT)
    mask = graph.node("Sub", [graph.constant(1.0, np.float32), mask], "mask/padding")
    mask = graph.node("Mul", [mask, graph.constant(np.finfo(np.float32).min, np.float32)], "mask/scores")
    for layer in range(size.layers):
        hidden = _layer(graph, size, hidden, mask, f"bert.encoder.layer.{layer}")
    first = graph.node("Gather", [hidden, graph.constant(0, np.int64)], "first", axis=1)
    pooled = graph.node("Tanh", [_gemm(graph, first, "bert.pooler.dense", "pooled")], "pooled/tanh")
    _gemm(graph, pooled, "classifier", "logits")
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(LABELS)])
    made = helper.make_graph(graph.nodes, "bert", inputs, [output], list(graph.tensors.values()))
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _gemm(graph: _Graph, source: str, name: str, output: str) -> str:
    inputs = [source, graph.weight(f"{name}.weight"), graph.weight(f"{name}.bias")]
    return graph.node("Gemm", inputs, output, alpha=1.0, beta=1.0, transB=1)


def _embeddings(graph: _Graph, size: Size) -> str:
    name = "bert.embeddings"
    length = graph.length_of("input_ids", 1, f"{name}/length")
    counted = graph.constant(np.arange(size.positions)[None], np.int64)
    bounds = [graph.constant([0], np.int64), length, graph.constant([1], np.int64), graph.constant([1], np.int64)]
    positions = graph.node("Slice", [counted, *bounds], f"{name}/positions")
    looked_up = [
        graph.node("Gather", [graph.weight(f"{name}.{kind}_embeddings.weight"), ids], f"{name}/{kind}")
        for kind, ids in (("word", "input_ids"), ("token_type", "token_type_ids"), ("position", positions))
    ]
    typed = graph.node("Add", looked_up[:2], f"{name}/typed")
    return graph.norm(graph.node("Add", [typed, looked_up[2]], f"{name}/sum"), f"{name}.LayerNorm")


def _layer(graph: _Graph, size: Size, hidden: str, mask: str, name: str) -> str:
    attention = f"{name}.attention"
    rows = graph.length_of(hidden, 0, f"{attention}/rows")
    head = size.width // size.heads

    def heads(part: str, order: list[int]) -> str:
        summed = graph.linear(hidden, f"{attention}.self.{part}")
        sizes = [graph.constant([number], np.int64) for number in (-1, size.heads, head)]
        shape = graph.node("Concat", [rows, *sizes], f"{attention}/{part}/sizes", axis=0)
        split = graph.node("Reshape", [summed, shape], f"{attention}/{part}/split")
        return graph.node("Transpose", [split], f"{attention}/{part}", perm=order)

    query, key, value = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]), heads("value", [0, 2, 1, 3])
    scores = graph.node("MatMul", [query, key], f"{attention}/products")
    scores = graph.node("Div", [scores, graph.constant(math.sqrt(head), np.float32)], f"{attention}/scaled")
    scores = graph.node("Add", [scores, mask], f"{attention}/masked")
    looks = graph.node("Softmax", [scores], f"{attention}/looks", axis=-1)
    mixed = graph.node("MatMul", [looks, value], f"{attention}/mixed")
    mixed = graph.node("Transpose", [mixed], f"{attention}/by_token", perm=[0, 2, 1, 3])
    sizes = [graph.length_of(mixed, axis, f"{attention}/joined_{axis}") for axis in (0, 1)]
    shape = graph.node("Concat", [*sizes, graph.constant([size.width], np.int64)], f"{attention}/joined_sizes", axis=0)
    joined = graph.node("Reshape", [mixed, shape], f"{attention}/joined")
    summed = graph.node("Add", [graph.linear(joined, f"{attention}.output.dense"), hidden], f"{attention}/sum")
    attended = graph.norm(summed, f"{attention}.output.LayerNorm")

    wide = graph.linear(attended, f"{name}.intermediate.dense")
    inner = graph.node("Div", [wide, graph.constant(math.sqrt(2), np.float32)], f"{name}/gelu/scaled")
    inner = graph.node("Erf", [inner], f"{name}/gelu/erf")
    inner = graph.node("Add", [inner, graph.constant(1.0, np.float32)], f"{name}/gelu/sum")
    inner = graph.node("Mul", [wide, inner], f"{name}/gelu/product")
    inner = graph.node("Mul", [inner, graph.constant(0.5, np.float32)], f"{name}/gelu")
    summed = graph.node("Add", [graph.linear(inner, f"{name}.output.dense"), attended], f"{name}/sum")
    return graph.norm(summed, f"{name}.output.LayerNorm")


def save_weights(weights: Weights, file: Path) -> None:
    """Write a .safetensors file: the length of the header, a header in JSON, and the arrays."""
    entries, begin = {}, 0
    for name, array in weights.items():
        entries[name] = {"dtype": "F16", "shape": list(array.shape), "data_offsets": [begin, begin + array.nbytes]}
        begin += array.nbytes
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with file.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little"))
        stream.write(header)
        stream.writelines(array.tobytes() for array in weights.values())


def load_weights(file: Path) -> dict[str, npt.NDArray[Any]]:  # Any: STORED
    """Read a .safetensors file."""
    content = file.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:begin])
    entries.pop("__metadata__", None)
    found = {}
    for name, entry in entries.items():
        start, end = entry["data_offsets"]
        found[name] = np.frombuffer(content[begin + start : begin + end], STORED[entry["dtype"]]).reshape(entry["shape"])
    return found


def make_bundle(root: Path, name: str, size: Size, tokenizer_of: Path) -> Path:
    """Write a bundle ``root/name/1`` with random weights and another bundle's tokenizer; returns its folder."""
    path = root / name / "1"
    path.mkdir(parents=True)
    weights = make_weights(size)
    save_weights(weights, path / WEIGHTS_FILE)
    (path / graph_file("fp32")).write_bytes(serialize(refer(make_graph(size, weights), path / WEIGHTS_FILE)))
    shutil.copy(tokenizer_of / TOKENIZER_FILE, path / TOKENIZER_FILE)
    (path / CONFIG_FILE).write_text(json.dumps({"num_attention_heads": size.heads, "num_hidden_layers": size.layers}))
    session = Session(path / graph_file("fp32"))
    graph = {
        "file": graph_file("fp32"),
        "precision": "fp32",
        "providers": ["CPUExecutionProvider"],
        "inputs": session.inputs,
        "outputs": [session.output],
        "invariance": 1e-4,
        "tolerance": 1e-3,
    }
    manifest: dict[str, object] = {
        "format": 1,
        "name": name,
        "version": 1,
        "labels": list(LABELS),
        "architecture": "bert",
        "max_tokens": size.positions,
        "pairs": False,
        "default_truncation": "head",
        "inputs": session.inputs,
        "graphs": {"classify": [graph]},
        "calibration": {"temperature": 1.0, "abstain_below": 0.5},
        "padding_side": "right",
        "windows": None,
        "golden": sorted(_golden(session, path, size), key=_margin)[-GOLDEN_KEPT:],
        "accuracy": {},
        "provenance": {},
    }
    write_manifest(path, manifest)
    return path


def made(bundle: Path) -> Path:
    """The folder of a bundle.

    Raises:
        RuntimeError: there was no time to make it.
    """
    if not bundle.exists():
        raise RuntimeError(f"there was no time to make the bundle {bundle.parent.name}")
    return bundle


def _golden(session: Session, path: Path, size: Size) -> Iterator[dict[str, Any]]:  # Any: JSON
    tokenizer = Tokenizer(path / TOKENIZER_FILE, size.positions)
    for text in GOLDEN:
        logits = session.run(pad([tokenizer.encode(text)], session.inputs, tokenizer.pad_id, left=False))[0].tolist()
        yield {"text": text, "label": LABELS[int(np.argmax(logits))], "logits": logits}


def _margin(golden: dict[str, Any]) -> float:  # Any: JSON
    """The margin of an answer; with a small one, rounding could change the label."""
    negative, positive = golden["logits"]
    return float(abs(positive - negative))
