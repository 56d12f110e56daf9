"""What stays in fp32 in an fp16 graph: what an angle or an integer is computed from, and what has no kernel for fp16."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.transformers import float16

from sentiment.model.gpu.half_graph import keep_exact

# At positions from 256 on, adjacent fp16 numbers are 0.25 apart.
POSITIONS = np.arange(480, 500, dtype=np.int64)
RATE = 0.31


def graph(nodes: Sequence[NodeProto], output: int = TensorProto.FLOAT) -> ModelProto:
    """A graph of ``positions`` [n], with those of the tensors ``rate``, ``one``, ``table`` and ``axis`` that it reads."""
    tensors: dict[str, npt.NDArray[np.generic]] = {
        "rate": np.float32([RATE]),
        "one": np.float32([1]),
        "table": np.linspace(0, 1, 512, dtype=np.float32),
        "axis": np.int64([1]),
    }
    return helper.make_model(
        helper.make_graph(
            nodes,
            "positions",
            [helper.make_tensor_value_info("positions", TensorProto.INT64, ["n"])],
            [helper.make_tensor_value_info("y", output, ["n"])],
            [numpy_helper.from_array(values, name) for name, values in tensors.items() if any(name in node.input for node in nodes)],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    )


def node(kind: str, inputs: str, output: str, **attributes: int) -> NodeProto:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def halved(model: ModelProto) -> tuple[list[str], ModelProto]:
    """The operators that stay in fp32, and the graph in fp16."""
    names = keep_exact(model)
    outputs = [value.name for value in model.graph.output]
    made = float16.convert_float_to_float16(model, keep_io_types=outputs, disable_shape_infer=True, op_block_list=(), node_block_list=names)
    return sorted(name.rpartition("_")[0] for name in names), made


def run(model: ModelProto) -> npt.NDArray[np.generic]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(["y"], {"positions": POSITIONS})[0]


FLOATS = node("Cast", "positions", "floats", to=TensorProto.FLOAT)
ANGLES = [FLOATS, node("Mul", "floats rate", "angles"), node("Sin", "angles", "sines")]


def test_an_angle_is_computed_in_fp32_and_its_sine_is_read_in_fp16() -> None:
    exact, made = halved(graph([*ANGLES, node("Mul", "sines one", "y")]))

    assert exact == ["Cast", "Mul", "Sin"]
    assert {tensor.name: tensor.data_type for tensor in made.graph.initializer}["rate"] == TensorProto.FLOAT
    # In fp16 the angle itself would be off by up to 0.06.
    assert run(made) == pytest.approx(np.sin(POSITIONS * np.float32(RATE)), abs=1e-3)


def test_an_integer_is_computed_in_fp32() -> None:
    nodes = [FLOATS, node("Mul", "floats rate", "scaled"), node("Cast", "scaled", "y", to=TensorProto.INT64)]

    exact, made = halved(graph(nodes, TensorProto.INT64))

    assert exact == ["Cast", "Cast", "Mul"]
    assert run(made).tolist() == (POSITIONS * np.float32(RATE)).astype(np.int64).tolist()


def test_a_tensor_that_both_sides_read_is_fp32_for_one_and_fp16_for_the_other() -> None:
    _, made = halved(graph([*ANGLES, node("Mul", "sines rate", "y")]))

    types = {tensor.name: tensor.data_type for tensor in made.graph.initializer}
    assert (types["rate"], types["rate.exact"]) == (TensorProto.FLOAT16, TensorProto.FLOAT)
    assert run(made) == pytest.approx(RATE * np.sin(POSITIONS * np.float32(RATE)), abs=1e-3)


def test_two_exact_nodes_and_two_others_that_read_the_same_tensor_get_one_cast() -> None:
    nodes = [
        *ANGLES,
        node("Cos", "angles", "cosines"),
        node("Mul", "sines one", "a"),
        node("Mul", "sines cosines", "b"),
        node("Add", "a b", "y"),
    ]

    exact, made = halved(graph(nodes))

    assert exact == ["Cast", "Cos", "Mul", "Sin"]
    outputs = [name for each in made.graph.node for name in each.output]
    assert len(outputs) == len(set(outputs))
    angles = POSITIONS * np.float32(RATE)
    assert run(made) == pytest.approx(np.sin(angles) * (1 + np.cos(angles)), abs=4e-3)


def test_an_operator_without_an_fp16_kernel_stays_in_fp32() -> None:
    nodes = [
        node("Unsqueeze", "positions axis", "column"),
        *(node("Concat", "column column", "wide", axis=1), node("EyeLike", "wide", "eye", dtype=TensorProto.FLOAT)),
        node("ReduceSum", "eye axis", "y", keepdims=0),
    ]

    exact, made = halved(graph(nodes))

    assert exact == ["Concat", "EyeLike", "Unsqueeze"]
    assert run(made).tolist() == [1, 1, *[0] * (len(POSITIONS) - 2)]


def test_without_angles_and_integers_everything_is_fp16() -> None:
    exact, made = halved(graph([node("Gather", "table positions", "rows"), node("Mul", "rows rate", "y")]))

    assert exact == []
    assert {tensor.data_type for tensor in made.graph.initializer} == {TensorProto.FLOAT16}
    assert run(made) == pytest.approx(RATE * POSITIONS / 511, abs=1e-3)
