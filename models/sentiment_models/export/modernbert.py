"""ModernBERT: its config as transformers 5 writes it, and its export to ONNX.

It may read the mean of its tokens, which is summed so that padding changes no bit.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from sentiment_models.errors import BadCheckpoint
from sentiment_models.export.torch_onnx import write_graph

INPUTS = ("input_ids", "attention_mask")
# Kinds of layers, and where transformers 4 has the period of their rotary positions.
FULL, SLIDING = "full_attention", "sliding_attention"
OTHERWISE = "which transformers 4 cannot compute; export the model to ONNX with transformers 5, and use import-onnx"
PERIODS = {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}


def as_version_4(config: PretrainedConfig, where: str) -> None:
    """Say in the words of transformers 4 what only those of transformers 5 say, which version 4 passes over: positions and kinds of layers.

    Raises:
        BadCheckpoint: version 4 has no words for it.
    """
    of_kinds = config.__dict__.pop("rope_parameters", None) or {}
    for kind, name in PERIODS.items():
        found = of_kinds.get(kind, {}) if isinstance(of_kinds, Mapping) else of_kinds
        base = found.get("rope_theta", getattr(config, name)) if isinstance(found, Mapping) else found
        # Without one for sliding attention, version 4 takes that of full attention.
        if not isinstance(base, int | float | None) or found.get("rope_type", "default") != "default":
            raise BadCheckpoint(f"{where}: rope_parameters has {found!r:.80}, {OTHERWISE}")
        setattr(config, name, base)
    layers = config.__dict__.pop("layer_types", None)
    if layers is None:
        return
    every = next((every for every in range(1, len(layers) + 1) if layers == _layers(len(layers), every)), None)
    if every is None:
        raise BadCheckpoint(f"{where}: layer_types is not full attention in each n-th layer from the first, {OTHERWISE}")
    config.global_attn_every_n_layers = every


def _layers(count: int, every: int) -> list[str]:
    return [SLIDING if place % every else FULL for place in range(count)]


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
