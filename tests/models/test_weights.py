"""The fp32 graph reads the fp16 weights out of the .safetensors file."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto
from safetensors.numpy import load_file

from sentiment.model.session import Session
from sentiment_models.export.checkpoint import Checkpoint
from sentiment_models.export.graphs.graph import serialize
from sentiment_models.export.weights import refer


def test_no_fp32_weight_is_left_inside_the_graph(exported: tuple[Path, object]) -> None:
    bundle = exported[0]

    graph = onnx.load(bundle / "fp32.onnx", load_external_data=False)

    inside = [tensor for tensor in graph.graph.initializer if tensor.data_location != TensorProto.EXTERNAL]
    assert sum(len(tensor.raw_data) for tensor in inside) < 256
    assert {tensor.name.removesuffix(".fp16") for tensor in graph.graph.initializer if tensor not in inside} == set(
        load_file(bundle / "model.safetensors")
    )
    onnx.checker.check_model(str(bundle / "fp32.onnx"))


def test_a_graph_with_external_weights_answers_as_one_with_its_weights_inside(checkpoint: Path, tmp_path: Path) -> None:
    loaded = Checkpoint(checkpoint)
    whole = loaded.to_onnx(loaded.save(tmp_path))
    (tmp_path / "inside.onnx").write_bytes(serialize(whole))
    (tmp_path / "outside.onnx").write_bytes(serialize(refer(whole, tmp_path / "model.safetensors")))
    ids = np.random.default_rng(0).integers(5, 60, (4, 9))
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}

    inside, outside = Session(tmp_path / "inside.onnx").run(feeds), Session(tmp_path / "outside.onnx").run(feeds)

    assert (inside == outside).all()
