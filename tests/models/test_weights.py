"""The fp32 graph reads the fp16 weights out of the .safetensors file."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from safetensors.numpy import load_file

from sentiment.model.session import Session
from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.checkpoint import Checkpoint
from sentiment_models.export.graphs.graph import serialize
from sentiment_models.export.weights import refer, stored_tensors


def test_the_header_says_where_each_tensor_lies(exported: tuple[Path, object]) -> None:
    path = exported[0] / "model.safetensors"
    content = path.read_bytes()
    wanted = load_file(path)

    stored = stored_tensors(path)

    assert stored.keys() == wanted.keys()
    for name, place in stored.items():
        found = np.frombuffer(content[place.offset : place.offset + place.length], np.float16).reshape(place.dims)
        assert (found == wanted[name]).all(), name


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\x10\0\0\0\0\0\0\0not json")

    with pytest.raises(BadCheckpoint, match=r"model\.safetensors: not a safetensors file"):
        stored_tensors(path)


def test_no_fp32_weight_is_left_inside_the_graph(exported: tuple[Path, object]) -> None:
    bundle = exported[0]

    graph = onnx.load(bundle / "fp32.onnx", load_external_data=False)

    inside = [tensor for tensor in graph.graph.initializer if tensor.data_location != TensorProto.EXTERNAL]
    assert sum(len(tensor.raw_data) for tensor in inside) < 256
    assert {tensor.name.removesuffix(".fp16") for tensor in graph.graph.initializer if tensor not in inside} == set(
        load_file(bundle / "model.safetensors")
    )
    onnx.checker.check_model(str(bundle / "fp32.onnx"))


def test_a_graph_that_refers_answers_as_one_with_its_weights_inside(checkpoint: Path, tmp_path: Path) -> None:
    loaded = Checkpoint(checkpoint)
    whole = loaded.to_onnx(loaded.save(tmp_path))
    (tmp_path / "inside.onnx").write_bytes(serialize(whole))
    (tmp_path / "outside.onnx").write_bytes(serialize(refer(whole, tmp_path / "model.safetensors")))
    ids = np.random.default_rng(0).integers(5, 60, (4, 9))
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}

    inside, outside = Session(tmp_path / "inside.onnx").run(feeds), Session(tmp_path / "outside.onnx").run(feeds)

    assert (inside == outside).all()


def test_a_weight_changed_in_the_file_changes_the_graphs_answer(checkpoint: Path, tmp_path: Path) -> None:
    loaded = Checkpoint(checkpoint)
    whole = loaded.to_onnx(loaded.save(tmp_path))
    path = tmp_path / "model.safetensors"
    (tmp_path / "fp32.onnx").write_bytes(serialize(refer(whole, path)))
    feeds = {name: np.full((1, 3), value, np.int64) for name, value in (("input_ids", 7), ("attention_mask", 1), ("token_type_ids", 0))}
    before = Session(tmp_path / "fp32.onnx").run(feeds)

    place = stored_tensors(path)["classifier.bias"]
    content = bytearray(path.read_bytes())
    bias = np.frombuffer(content, np.float16, place.length // 2, place.offset)
    bias += np.float16(1)
    path.write_bytes(content)

    assert Session(tmp_path / "fp32.onnx").run(feeds) == pytest.approx(before + 1, abs=1e-3)
