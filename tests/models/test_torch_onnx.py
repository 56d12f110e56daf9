"""What stands ready if optimum goes no further: torch's exporter alone, checked by the proofs of every export."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from sentiment_models.export.families import FAMILIES
from sentiment_models.export.torch_onnx import write_graph
from tests.models.tiny_families import export_tiny


class _Logits(torch.nn.Module):
    def __init__(self, model: PreTrainedModel, inputs: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, *arrays: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(**dict(zip(self.inputs, arrays, strict=True))).logits
        return logits


@pytest.mark.parametrize("name", ["bert", "roberta", "deberta-v2"])
def test_the_graphs_of_torchs_exporter_pass_every_proof(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES[name]

    def write(model: PreTrainedModel, opset: int, path: Path) -> None:
        write_graph(_Logits(model, family.inputs), family.inputs, opset, path)

    monkeypatch.setitem(FAMILIES, name, replace(family, write=write))

    made = export_tiny(tmp_path, name)

    assert made.exported.parity["fp32"].logit_error_max < 1e-4
    assert {"int8.onnx", "fp32.onnx"} <= {path.name for path in made.bundle.iterdir()}
