"""The settings of ``attention-tests``, as the command line takes them. Knows no torch: help works without it."""

from dataclasses import dataclass

from sentiment_models.errors import ModelsError
from sentiment_models.training.recipe import Shape

# The pairs of more seeds do not fit into the plot.
SEEDS_MAX = 7


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the tests.

    Raises:
        ModelsError: the number of seeds is not from 2 to 7, a weight of the adversaries is missing or negative, or the shape is invalid.
    """

    train_texts: int = 4000
    heldout_texts: int = 1000
    # Attention over very short texts says little.
    words_min: int = 8
    max_tokens: int = 64
    layers: int = 2
    heads: int = 4
    # Twice the width trains half as fast with the same accuracy: 0.75 on some 950 texts of another split.
    width: int = 64
    vocabulary: int = 8000
    dropout: float = 0.3
    epochs: int = 4
    learning_rate: float = 1e-3
    batch_rows: int = 32
    seeds: int = 3
    adversary_epochs: int = 3
    # 0 shows the effect of further training alone.
    adversary_weights: tuple[float, ...] = (0.0, 0.003, 0.01, 0.1, 1.0)
    bag_epochs: int = 5
    bag_learning_rate: float = 3e-3
    heldout_fraction: float = 0.15
    labels: tuple[str, ...] = ("negative", "positive")
    seed: int = 1

    def __post_init__(self) -> None:
        Shape(self.layers, self.heads, self.width)
        if not 2 <= self.seeds <= SEEDS_MAX:
            raise ModelsError(f"seeds must be from 2 to {SEEDS_MAX}, got {self.seeds}")
        if not self.adversary_weights or not min(self.adversary_weights) >= 0:
            raise ModelsError(f"adversary weights must be at least one number, each at least 0, got {self.adversary_weights}")
