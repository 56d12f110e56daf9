"""The optimizer and the learning-rate schedule of pre-training and fine-tuning."""

from typing import Any, Protocol

import torch
from transformers import PreTrainedModel, get_linear_schedule_with_warmup


class Rates(Protocol):
    """The fields of a recipe that the optimizer needs."""

    @property
    def learning_rate(self) -> float:
        """Peak learning rate."""

    @property
    def warmup_fraction(self) -> float:
        """Share of the steps in which the learning rate rises."""

    @property
    def weight_decay(self) -> float:
        """Weight decay; none for biases and normalisation."""


def freeze_encoder(model: PreTrainedModel) -> None:
    """Make only the classification head trainable. A pooler is part of the head, although transformers puts it into the encoder."""
    model.base_model.requires_grad_(False)
    pooler: torch.nn.Module | None = getattr(model.base_model, "pooler", None)
    if pooler is not None:
        pooler.requires_grad_(True)


def make_optimizer(
    model: torch.nn.Module, rates: Rates, steps: int
) -> tuple[torch.optim.AdamW, Any]:  # Any: transformers leaves its schedule untyped
    """Make AdamW and a schedule whose rate rises linearly, then falls linearly to 0 at ``steps`` steps."""
    norms = {id(p) for module in model.modules() if isinstance(module, torch.nn.LayerNorm) for p in module.parameters()}
    plain = [p for name, p in model.named_parameters() if id(p) in norms or name.endswith("bias")]
    plain_ids = {id(p) for p in plain}
    decayed = [p for p in model.parameters() if id(p) not in plain_ids]
    groups = [{"params": decayed, "weight_decay": rates.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rates.learning_rate, fused=True)
    schedule = get_linear_schedule_with_warmup(optimizer, int(rates.warmup_fraction * steps), steps)  # type: ignore[no-untyped-call]  # untyped there
    return optimizer, schedule
