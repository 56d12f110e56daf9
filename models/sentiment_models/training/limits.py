"""Limits of the numeric settings of training runs, checked before a run starts."""

import math
from collections.abc import Mapping

from sentiment_models.errors import ModelsError

UNBOUNDED = math.inf
SHARE = (0.0, 1.0)
COUNT = (1, UNBOUNDED)

LIMITS: Mapping[str, tuple[float, float]] = {
    "epochs": COUNT,
    "max_steps": (0, UNBOUNDED),
    # Adam changes a weight by about the learning rate in each step, independent of the size of its gradient.
    "learning_rate": (0.0, 1.0),
    "base_learning_rate": (0.0, 1.0),
    "warmup_fraction": SHARE,
    "weight_decay": SHARE,
    "dropout": SHARE,
    "ema": (0.0, 0.999999),
    "batch_rows": COUNT,
    "batch_tokens": COUNT,
    # Special tokens take 2 to 4.
    "max_tokens": (8, UNBOUNDED),
    "teacher_weight": SHARE,
    "detokenize": SHARE,
    "recase": SHARE,
    "typos": SHARE,
    "dev_fraction": SHARE,
    "evaluations_per_epoch": COUNT,
    "patience": COUNT,
    "vocabulary": COUNT,
    "seed": (0, 2**32 - 1),
}
"""Minimum and maximum of each setting, both inclusive."""


def check_limits(recipe: object) -> None:
    """Check the numbers of a recipe. Fields without an entry in ``LIMITS`` are not checked.

    Raises:
        ModelsError: names the setting, its limits and its value.
    """
    for name, (least, most) in LIMITS.items():
        value = getattr(recipe, name, least)
        # Written so that NaN fails.
        if not least <= value <= most:
            limits = f"at least {least:g}" if most == UNBOUNDED else f"from {least:g} to {most:.10g}"
            raise ModelsError(f"{name} must be {limits}, got {value}")
