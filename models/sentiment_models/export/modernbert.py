"""ModernBERT's export to ONNX. It may read the mean of its tokens, which is summed so that padding changes no bit."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from sentiment_models.export.torch_onnx import write_graph

INPUTS = ("input_ids", "attention_mask")


class _Summed(torch.nn.Module):
    """ModernBertForSequenceClassification. The sum over tokens is the last one of their running sums.

    Running sums add in the order of the tokens, so what padding adds at the end is zeros. A sum, or a product with the mask, adds in an
    order that depends on the length: the last bits of the answers changed with their batch mates.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the logits, [rows, labels]; both arguments are int64 [rows, tokens]."""
        model: Any = self.model  # its parts are made at run time
        states = model.model(input_ids=input_ids, attention_mask=attention_mask)[0]
        if model.config.classifier_pooling == "cls":
            pooled = states[:, 0]
        else:
            mask = attention_mask.to(states.dtype)
            pooled = (states * mask[:, :, None]).cumsum(1)[:, -1] / mask.sum(1, keepdim=True)
        logits: torch.Tensor = model.classifier(model.head(pooled))
        return logits


def write_modernbert(model: PreTrainedModel, opset: int, path: Path) -> None:
    """Write an fp32 ONNX graph."""
    write_graph(_Summed(model), INPUTS, opset, path)
