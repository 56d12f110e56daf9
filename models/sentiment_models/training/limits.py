"""What the settings of training runs may be: told before the work, with the setting, its value and its limits."""

import math
from collections.abc import Mapping

from sentiment_models.errors import ModelsError

UNBOUNDED = math.inf
SHARE = (0.0, 1.0)
COUNT = (1, UNBOUNDED)

LIMITS: Mapping[str, tuple[float, float]] = {
    "epochs": COUNT,
    "max_steps": (0, UNBOUNDED),
    # Adam moves a weight by about the rate in a step, whatever its gradient.
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
"""The least and the most of each, both allowed."""


def check_limits(recipe: object) -> None:
    """Refuse a recipe with a number outside its limits; fields that have none are left to others.

    Raises:
        ModelsError: names the setting, its value and what is wanted.
    """
    for name, (least, most) in LIMITS.items():
        value = getattr(recipe, name, least)
        # Not the other way round: NaN is neither less nor more.
        if not least <= value <= most:
            wanted = f"at least {least:g}" if most == UNBOUNDED else f"{least:g} to {most:.10g}"
            raise ModelsError(f"{name} is {value}; wanted {wanted}")
