"""The optimizer and the learning-rate schedule of pre-training and fine-tuning."""

from typing import Any

import torch
from transformers import PreTrainedModel, get_linear_schedule_with_warmup

from sentiment_models.training.recipe import Course


def freeze_encoder(model: PreTrainedModel) -> None:
    """Make only the classification head trainable. A pooler is part of the head, although transformers puts it into the encoder."""
    model.base_model.requires_grad_(False)
    pooler: torch.nn.Module | None = getattr(model.base_model, "pooler", None)
    if pooler is not None:
        pooler.requires_grad_(True)


def make_optimizer(
    model: torch.nn.Module, course: Course, steps: int
) -> tuple[torch.optim.AdamW, Any]:  # Any: transformers leaves its schedule untyped
    """Make AdamW and a schedule whose rate rises linearly, then falls linearly to 0 at ``steps`` steps."""
    norms = {id(p) for module in model.modules() if isinstance(module, torch.nn.LayerNorm) for p in module.parameters()}
    plain = norms | {id(p) for name, p in model.named_parameters() if name.endswith("bias")}
    groups = [
        {
            "params": [p for p in model.parameters() if (id(p) in plain) == undecayed],
            "weight_decay": 0.0 if undecayed else course.weight_decay,
        }
        for undecayed in (False, True)
    ]
    optimizer = torch.optim.AdamW(groups, lr=course.learning_rate, fused=True)
    schedule = get_linear_schedule_with_warmup(optimizer, int(course.warmup_fraction * steps), steps)  # type: ignore[no-untyped-call]  # untyped there
    return optimizer, schedule
