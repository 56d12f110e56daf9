"""The optimizer and the course of its learning rate, the same for pre-training and fine-tuning."""

from typing import Any, Protocol

import torch
from transformers import PreTrainedModel, get_linear_schedule_with_warmup


class Rates(Protocol):
    """What of a recipe is needed."""

    @property
    def learning_rate(self) -> float:
        """The highest rate."""

    @property
    def warmup_fraction(self) -> float:
        """Share of the steps in which it rises."""

    @property
    def weight_decay(self) -> float:
        """Of weights; biases and normalisation have none."""


def freeze_encoder(model: PreTrainedModel) -> None:
    """Let a classifier's head alone learn. A pooler is part of the head, though transformers counts it to the encoder."""
    model.base_model.requires_grad_(False)
    pooler: torch.nn.Module | None = getattr(model.base_model, "pooler", None)
    if pooler is not None:
        pooler.requires_grad_(True)


def make_optimizer(
    model: torch.nn.Module, rates: Rates, steps: int
) -> tuple[torch.optim.AdamW, Any]:  # Any: transformers leaves its schedule untyped
    """Make AdamW and a rate that rises linearly and falls linearly to 0 in ``steps`` steps."""
    norms = {id(p) for module in model.modules() if isinstance(module, torch.nn.LayerNorm) for p in module.parameters()}
    plain = [p for name, p in model.named_parameters() if id(p) in norms or name.endswith("bias")]
    plain_ids = {id(p) for p in plain}
    decayed = [p for p in model.parameters() if id(p) not in plain_ids]
    groups = [{"params": decayed, "weight_decay": rates.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rates.learning_rate, fused=True)
    schedule = get_linear_schedule_with_warmup(optimizer, int(rates.warmup_fraction * steps), steps)  # type: ignore[no-untyped-call]  # untyped there
    return optimizer, schedule
