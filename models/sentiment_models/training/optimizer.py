"""The optimizer and the learning-rate schedule of pre-training and fine-tuning."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, get_linear_schedule_with_warmup

from sentiment_models.training.recipe import Course

# A head that begins with nothing must move more than the encoder may: in 64 steps on 247 tweets, with a rate of 5e-5, the loss on 53 others
# fell from 1.10 to 0.96 with 1, and to 0.72 with 20.
FRESH_TIMES = 20


def freeze_encoder(model: PreTrainedModel) -> None:
    """Make only the classification head trainable. A pooler is part of the head, although transformers puts it into the encoder."""
    model.base_model.requires_grad_(False)
    pooler: torch.nn.Module | None = getattr(model.base_model, "pooler", None)
    if pooler is not None:
        pooler.requires_grad_(True)


def make_optimizer(
    model: torch.nn.Module, course: Course, steps: int, fresh: Sequence[torch.nn.Parameter] = ()
) -> tuple[torch.optim.AdamW, Any]:  # Any: transformers leaves its schedule untyped
    """Make AdamW and a schedule whose rate rises linearly, then falls linearly to 0 at ``steps`` steps.

    ``fresh``: weights of the model that learn FRESH_TIMES as fast as the others.
    """
    norms = {id(p) for module in model.modules() if isinstance(module, torch.nn.LayerNorm) for p in module.parameters()}
    plain = norms | {id(p) for name, p in model.named_parameters() if name.endswith("bias")}
    faster = set(map(id, fresh))
    groups = [
        {
            "params": [p for p in model.parameters() if ((id(p) in plain), (id(p) in faster)) == (undecayed, fast)],
            "weight_decay": 0.0 if undecayed else course.weight_decay,
            "lr": course.learning_rate * (FRESH_TIMES if fast else 1),
        }
        for fast in (False, True)
        for undecayed in (False, True)
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=course.learning_rate, fused=True)
    schedule = get_linear_schedule_with_warmup(optimizer, int(course.warmup_fraction * steps), steps)  # type: ignore[no-untyped-call]  # untyped there
    return optimizer, schedule
