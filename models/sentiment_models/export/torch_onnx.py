"""Writes an ONNX graph by torch's own exporter, without optimum: for XLNet, and for all families if optimum goes no further."""

from collections.abc import Sequence
from pathlib import Path

import torch


def write_graph(module: torch.nn.Module, inputs: Sequence[str], opset: int, path: Path) -> None:
    """Write an fp32 ONNX graph.

    Args:
        module: takes the ``inputs`` in order, each int64 [rows, tokens], and returns the logits, [rows, labels].
        inputs: their names: input_ids, attention_mask and, if there are segments, token_type_ids.
        opset: version of the operators.
        path: the file.
    """
    ids = torch.ones((2, 4), dtype=torch.int64)
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    axes = {0: "batch_size", 1: "sequence_length"}
    with torch.no_grad():
        torch.onnx.export(
            module.eval(),
            tuple(given[name] for name in inputs),
            path,
            input_names=list(inputs),
            output_names=["logits"],
            dynamic_axes={**dict.fromkeys(inputs, axes), "logits": {0: "batch_size"}},
            opset_version=opset,
            dynamo=False,
        )
