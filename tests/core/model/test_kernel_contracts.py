"""Every batch that the service lays out is one that ONNX Runtime's CUDA kernels accept, and its graphs hold only nodes that have one.

tests/kernel_contracts.py says what the kernels demand. This needs no GPU; what the kernels compute is seen on a GPU alone.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto

from sentiment.batch_limits import ON_GPU
from sentiment.batching.cost import CostTable
from sentiment.batching.layout import PADDED, Candidates, Packed, Padded
from sentiment.batching.plan import BatchLimits, Prices
from sentiment.lifecycle.loading import SCORES_KEPT_MAX
from sentiment.model.gpu.device_session import LENGTH_STEP, TOKENS_STEP, DeviceSession
from sentiment.model.gpu.graphs import make_graphs
from sentiment.model.tokenizer import Row
from sentiment.settings import Settings
from tests.core.model.test_device_session import CAPTURING, PLAIN
from tests.english import ENGLISH
from tests.kernel_contracts import (
    EFFICIENT_FP32_MIN,
    INT32_MAX,
    Array,
    Tensor,
    attention,
    bias_gelu,
    embedded,
    embeddings,
    graph_refused,
    packed_attention,
    packed_values,
    row_mask,
    skip_layer_norm,
)
from tests.tiny import make_graph

HEADS, POSITIONS, WORDS = 12, 512, 32_534
Graphs = Mapping[tuple[str, str], ModelProto]
Sessions = Callable[[str, bool, BatchLimits], DeviceSession]
PRECISIONS = ("fp16", "fp32")


def most(name: str) -> int:
    """The largest value that a setting may have."""
    return next(each.le for each in Settings.model_fields[name].metadata if hasattr(each, "le"))


BY_DEFAULT = BatchLimits(**ON_GPU, heads=HEADS)
LARGEST = BatchLimits(most("batch_rows_max"), most("batch_tokens_max"), most("batch_scores_bytes_max"), HEADS)
# All rows at once cost little more than one, so that batches are as large as the limits allow.
COST = CostTable({(rows, length): 1 + 1e-9 * rows * length for rows in (1, 4096) for length in (1, POSITIONS)})
# Few lengths, each of up to 200 rows: enough rows to reach every limit.
LENGTHS = st.builds(
    lambda lengths, times: lengths * times, st.lists(st.integers(1, POSITIONS), min_size=1, max_size=8), st.sampled_from([1, 1, 10, 200])
)
LIMITS = st.builds(
    BatchLimits,
    rows=st.integers(1, 64) | st.just(LARGEST.rows),
    tokens=st.integers(1, 4096) | st.sampled_from([16_384, 65_536, LARGEST.tokens]),
    scores_bytes=st.sampled_from([2**20, 2**32, LARGEST.scores_bytes]),
    heads=st.just(HEADS),
)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    """The four graphs of the default bundle by precision and layout, without weights."""
    folder, made = tmp_path_factory.mktemp("graphs"), {}
    for precision in PRECISIONS:
        files = make_graphs(ENGLISH, folder, precision)
        assert files.packed is not None, files.reason
        for layout, file in (("padded", files.padded), ("packed", files.packed)):
            made[precision, layout] = onnx.load(file, load_external_data=False)
    return made


@pytest.fixture(scope="module")
def session_of(graphs: Graphs, tmp_path_factory: pytest.TempPathFactory) -> Sessions:
    """Sessions that lay out batches for a graph of the default bundle. What they would run is tiny."""
    file = tmp_path_factory.mktemp("tiny") / "tiny.onnx"
    onnx.save(make_graph(), file)

    def make(layout: str, captures: bool, limits: BatchLimits) -> DeviceSession:
        session = DeviceSession(file, CAPTURING if captures else PLAIN, logits=2, length_max=POSITIONS)
        session.layout, session.inputs = layout, [entry.name for entry in graphs["fp32", layout].graph.input]
        session.within(planner(session).within(limits).rows_at)
        return session

    return make


def planner(session: DeviceSession) -> Packed | Padded:
    return Packed(TOKENS_STEP) if session.layout == "packed" else Padded()


def batch(session: DeviceSession, lengths: Sequence[int], limits: BatchLimits) -> dict[str, Array]:
    """The first of these rows that the scheduler runs together, as the graph is fed: in int32, which ``run`` converts to."""
    layout = planner(session)
    edges = layout.edges(POSITIONS)
    group = Candidates(len(lengths), edges[bisect_left(edges, max(lengths))], iter(lengths))
    number, _ = layout.portion(group, Prices(COST, layout.within(limits)), math.inf)
    rows = [Row(range(1, 1 + length), None, False) for length in lengths[:number]]
    return {name: np.ascontiguousarray(array, np.int32) for name, array in session.feeds(rows, 0, left=False).items()}


def refusal(graphs: Graphs, layout: str, fed: Mapping[str, Array]) -> str:
    """What the kernels of either precision would refuse in a batch."""
    shapes = {name: Tensor(array.dtype.name, array.shape) for name, array in fed.items()}
    reasons = [graph_refused(graphs[precision, layout], shapes) for precision in PRECISIONS]
    reasons.append(embedded(fed["input_ids"], WORDS))
    if layout == "packed":
        reasons.append(embedded(fed["position_ids"], POSITIONS))
        reasons.append(packed_values(len(fed["input_ids"]), fed["token_offset"], fed["cumulative_lengths"]))
    else:
        reasons.append(row_mask(fed["attention_mask"]))
    return "; ".join(filter(None, reasons))


@settings(max_examples=60)
@given(layout=st.sampled_from(["packed", "padded"]), lengths=LENGTHS, limits=LIMITS, captures=st.booleans())
@example(layout="packed", lengths=[1], limits=BY_DEFAULT, captures=False)
@example(layout="packed", lengths=[POSITIONS, *[2] * 2000], limits=BY_DEFAULT, captures=False)
@example(layout="packed", lengths=[POSITIONS, *[2] * 2000], limits=LARGEST, captures=False)
@example(layout="packed", lengths=[POSITIONS] * 600, limits=LARGEST, captures=True)
@example(layout="padded", lengths=[1], limits=BY_DEFAULT, captures=False)
@example(layout="padded", lengths=[POSITIONS] * 600, limits=LARGEST, captures=False)
@example(layout="padded", lengths=[9] * 2000, limits=LARGEST, captures=True)
def test_no_batch_is_refused(
    graphs: Graphs, session_of: Sessions, layout: str, lengths: list[int], limits: BatchLimits, captures: bool
) -> None:
    fed = batch(session_of(layout, captures, limits), lengths, limits)

    assert refusal(graphs, layout, fed) == ""


@pytest.mark.parametrize("limits", [BY_DEFAULT, LARGEST], ids=["default", "largest"])
def test_no_shape_of_the_warm_up_is_refused(graphs: Graphs, session_of: Sessions, limits: BatchLimits) -> None:
    padded, packed = (session_of(layout, True, limits) for layout in ("padded", "packed"))
    layout = Packed(TOKENS_STEP)
    mixtures = [layout.mixture(layout.within(limits), length) for length in (POSITIONS, SCORES_KEPT_MAX)]
    within = Padded().within(limits)

    for shape in [*((within.rows_at(length), length) for length in range(LENGTH_STEP, POSITIONS + 1, LENGTH_STEP)), *padded.cells]:
        shapes = {name: Tensor("int32", shape) for name in padded.inputs}
        assert [graph_refused(graphs[precision, "padded"], shapes) for precision in PRECISIONS] == ["", ""], shape
    for lengths in [*mixtures, *([length] * rows for rows, length in packed.cells)]:
        assert refusal(graphs, "packed", batch(packed, lengths, limits)) == ""


def test_the_warm_up_runs_the_longest_packed_rows_that_keep_their_scores() -> None:
    assert SCORES_KEPT_MAX == EFFICIENT_FP32_MIN - 1


# BERT-large has 16 heads of 64, and 512 positions.
@given(heads=st.integers(1, 32), longest=st.integers(1, 4096))
@example(heads=16, longest=1024)
@example(heads=32, longest=255)
def test_attention_of_any_model_stays_within_int32_at_the_largest_limits(heads: int, longest: int) -> None:
    limits, width = replace(LARGEST, heads=heads), 64 * heads
    rows = Padded().within(limits).rows_at(longest)

    assert attention((rows, longest, width), (width, 3 * width), (3 * width,), (rows,), heads) == ""

    within = Packed(TOKENS_STEP).within(limits)
    # And the rows that fill up the tokens.
    rows = replace(within, tokens=PADDED * within.tokens).rows_at(longest) + math.ceil(TOKENS_STEP / longest)
    query = (min(within.tokens, rows * longest), heads, 3, 64)
    for kind in ("float16", "float32"):
        assert packed_attention(query, (3 * width,), (rows, longest), (rows + 1,), heads, kind) == ""


QUERY = {"query": (70, 2, 3, 8), "bias": (48,), "token_offset": (10, 7), "cumulative": (11,), "heads": 2, "kind": "float16"}
MANY = {"query": (70, 256, 3, 8), "bias": (6144,), "token_offset": (65_535, 255), "cumulative": (65_536,), "heads": 256, "kind": "float16"}
SOURCE = {"source": (4, 7, 16), "weight": (16, 48), "bias": (48,), "mask": (4,), "heads": 2}
IDS: dict[str, Any] = {"ids": (4, 7), "types": (4, 7), "words": (99, 16), "positions": (7, 16), "type_table": (2, 16), "gamma": (16,)}
IDS |= {"beta": (16,), "mask": (4, 7)}
SKIP = {"source": (70, 16), "skip": (70, 16), "gamma": (16,), "beta": (16,), "bias": (16,)}


@pytest.mark.parametrize(
    ("check", "accepted", "change", "reason"),
    [
        (packed_attention, QUERY, {"query": (70, 48)}, "query is"),
        (packed_attention, QUERY, {"query": (70, 3, 2, 8)}, "query is"),
        (packed_attention, QUERY, {"bias": (16,)}, "bias is"),
        (packed_attention, QUERY, {"token_offset": (70,)}, "token_offset is"),
        (packed_attention, QUERY, {"cumulative": (10,)}, "cumulative_lengths is"),
        (packed_attention, QUERY, {"query": (71, 2, 3, 8)}, "71 tokens are more than 10 rows of 7 hold"),
        (packed_attention, QUERY, {"token_offset": (65_536, 7), "cumulative": (65_537,)}, "rows: 65536"),
        (packed_attention, QUERY, {"query": (2**28, 2, 3, 8), "token_offset": (2**15, 2**13), "cumulative": (2**15 + 1,)}, "moves"),
        (packed_attention, MANY, {"kind": "float32"}, "padded moves"),
        (attention, SOURCE, {"source": (28, 16)}, "input is"),
        (attention, SOURCE, {"weight": (16, 47)}, "weight is"),
        (attention, SOURCE, {"weight": (48, 16)}, "weight is"),
        (attention, SOURCE, {"bias": (16,)}, "bias is"),
        (attention, SOURCE, {"mask": (4, 7)}, "the mask is"),
        (attention, SOURCE, {"mask": None}, "the mask is"),
        (attention, SOURCE, {"mask": (8,)}, "the mask is"),
        (attention, SOURCE, {"source": (6144, 7, 16), "mask": (6144,)}, "bytes of offsets"),
        (attention, SOURCE, {"source": (6000, 8000, 16), "mask": (6000,)}, "products"),
        (attention, SOURCE, {"source": (1025, 1024, 16), "mask": (1025,)}, "last score"),
        (attention, SOURCE, {"weight": (16, 3075), "bias": (3075,), "heads": 1025}, "heads: 1025"),
        (embeddings, IDS, {"ids": (28,)}, "input_ids is"),
        (embeddings, IDS, {"types": (7, 4)}, "token_type_ids is"),
        (embeddings, IDS, {"mask": (4,)}, "the mask"),
        (embeddings, IDS, {"position_ids": (2, 7)}, "position_ids is"),
        (embeddings, IDS, {"positions": (7, 15)}, "the tables of embeddings are"),
        (embeddings, IDS, {"gamma": (15,)}, "gamma is"),
        (embeddings, IDS, {"positions": (6, 16)}, "rows of 7 tokens need as many positions; there are 6"),
        (embeddings, IDS, {"ids": (65_536, 7), "types": None, "mask": None}, "rows: 65536"),
        (embeddings, IDS, {"ids": (60_000, 7000), "types": None, "mask": None, "positions": (7000, 16)}, "output"),
        (skip_layer_norm, SKIP, {"source": (16,)}, "input is"),
        (skip_layer_norm, SKIP, {"skip": (1, 16)}, "skip is"),
        (skip_layer_norm, SKIP, {"beta": (70,)}, "gamma is"),
        (skip_layer_norm, SKIP, {"source": (2**27, 16), "skip": (2**27, 16)}, f"output: {2**31}, at most {INT32_MAX}"),
        (bias_gelu, {"source": (70, 16), "bias": (16,)}, {"bias": (70,)}, "bias is"),
    ],
)
def test_shapes_that_a_kernel_refuses_are_refused(check: Any, accepted: dict[str, Any], change: dict[str, Any], reason: str) -> None:
    assert check(**accepted) == ""

    assert reason in check(**{**accepted, **change})


@pytest.mark.parametrize(
    ("tokens", "cumulative", "change", "reason"),
    [
        (7, [0, 1, 3, 7], {}, ""),
        (6, [0, 1, 3, 7], {}, "cumulative_lengths goes from 0 to 7, not from 0 to 6"),
        (7, [1, 1, 3, 7], {}, "cumulative_lengths goes from 1"),
        (7, [0, 4, 3, 7], {}, "cumulative_lengths falls by 1"),
        (7, [0, 1, 2, 7], {}, "a row has 5 tokens; token_offset has 4 columns"),
        (7, [0, 1, 3, 7], {0: 4, 1: 0}, "are not the places of the tokens"),
        (7, [0, 2, 3, 7], {}, "are not the places of the tokens"),
        (7, [0, 1, 3, 7], {11: 0}, "does not have each place once"),
        (7, [0, 1, 3, 7], {11: 12}, "does not have each place once"),
    ],
)
def test_offsets_that_a_kernel_would_follow_out_of_bounds_are_refused(
    tokens: int, cumulative: list[int], change: dict[int, int], reason: str
) -> None:
    # The example of the operator's documentation.
    offsets = np.array([0, 4, 5, 8, 9, 10, 11, 1, 2, 3, 6, 7], np.int32)
    offsets[list(change)] = list(change.values())
    lengths = np.array(cumulative, np.int32)

    found = packed_values(tokens, offsets.reshape(3, 4), lengths)

    assert reason in found
    assert bool(found) == bool(reason)
    assert "not int32" in packed_values(tokens, offsets.reshape(3, 4).astype(np.int64), lengths)


def test_ids_outside_their_table_and_masks_with_holes_are_refused() -> None:
    assert embedded(np.array([0, 98], np.int32), 99) == ""
    assert "from 0 to 99 for a table of 99" in embedded(np.array([0, 99], np.int32), 99)
    assert "from -1" in embedded(np.array([-1, 5], np.int32), 99)
    assert "int64" in embedded(np.array([5]), 99)

    assert row_mask(np.array([[1, 1, 0], [1, 1, 1]], np.int32)) == ""
    assert "ones, then zeros" in row_mask(np.array([[1, 0, 1]], np.int32))
    assert "ones, then zeros" in row_mask(np.array([[0, 1, 1]], np.int32))
    assert "int64" in row_mask(np.array([[1]]))


def _node(model: ModelProto, operator: str) -> Any:
    return next(node for node in model.graph.node if node.op_type == operator)


def _weight(model: ModelProto, name: str) -> TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def _unknown_operator(model: ModelProto) -> None:
    _node(model, "Tanh").op_type = "Sigmoid"


def _newer_opset(model: ModelProto) -> None:
    next(entry for entry in model.opset_import if entry.domain in ("", "ai.onnx")).version = 21


def _fp32_among_fp16(model: ModelProto) -> None:
    _weight(model, _node(model, "SkipLayerNormalization").input[2]).data_type = TensorProto.FLOAT


def _fp64(model: ModelProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            tensor.data_type = TensorProto.DOUBLE


def _other_type_of_ids(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64


def _other_type_of_logits(model: ModelProto) -> None:
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16


def _other_width(model: ModelProto) -> None:
    _weight(model, _node(model, "BiasGelu").input[1]).dims[0] += 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_unknown_operator, "Sigmoid is not in the table of CUDA kernels"),
        (_newer_opset, "of opset 21 is not in the table of CUDA kernels"),
        (_fp32_among_fp16, "SkipLayerNormalization has float16 and float32 for T"),
        (_fp64, "EmbedLayerNormalization has no CUDA kernel for T = float64"),
        (_other_type_of_ids, "the graph reads int64"),
        (_other_type_of_logits, "logits is float32, not float16"),
        (_other_width, "BiasGelu: bias is"),
    ],
)
def test_a_graph_with_a_node_that_has_no_kernel_is_refused(graphs: Graphs, session_of: Sessions, change: Any, reason: str) -> None:
    session = session_of("packed", False, BY_DEFAULT)
    shapes = {name: Tensor("int32", array.shape) for name, array in batch(session, [5, 9], BY_DEFAULT).items()}
    model = ModelProto()
    model.CopyFrom(graphs["fp16", "packed"])

    assert graph_refused(model, shapes) == ""
    change(model)

    assert reason in graph_refused(model, shapes)
