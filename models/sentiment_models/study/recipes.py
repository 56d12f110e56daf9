"""The settings of pre-training and of the experiment from scratch, as ``training.recipe`` has those of training. Knows no torch."""

import re
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from pathlib import Path

from sentiment_models.errors import ModelsError
from sentiment_models.export.provenance import Json, distinct_names
from sentiment_models.training.bases import name_of
from sentiment_models.training.limits import check_limits
from sentiment_models.training.recipe import Course, Recipe, Shape


@dataclass(frozen=True, slots=True)
class Pretraining(Course):
    """The settings of pre-training. Runs with the same settings, files and machine give the same result.

    Raises:
        ModelsError: both a tokenizer and a base are given, or a number is outside its limits.
    """

    sources: tuple[str, ...]
    # The encoder to continue from. Empty: an untrained BERT of the shape below.
    base: str = ""
    # Folder of a tokenizer for an untrained BERT. Empty: one is learned from the sources.
    tokenizer: str = ""
    next_sentence: bool = True
    max_steps: int = 0
    _: KW_ONLY
    learning_rate: float = 1e-4
    batch_tokens: int = 8192
    max_tokens: int = 128
    dev_fraction: float = 0.01

    def __post_init__(self) -> None:
        if self.base and self.tokenizer:
            raise ModelsError(f"tokenizer {self.tokenizer} cannot be used with base {self.base}, which has its own tokenizer")
        check_limits(self)


@dataclass(frozen=True, slots=True)
class Experiment:
    """The runs to compare and their settings.

    ``grid`` holds (heads, layers) of the models from scratch, ``bases`` holds (name, folder) of the models to fine-tune.

    Raises:
        ModelsError: there is no run, two runs have the same name, a name cannot be a folder's, a shape is impossible, or a number is
            outside its limits.
    """

    data: str
    test: str
    bases: tuple[tuple[str, str], ...] = ()
    grid: tuple[tuple[int, int], ...] = ((8, 6), (8, 12), (16, 6), (16, 12))
    reviews: int = 4000
    # 0: all.
    test_reviews: int = 0
    max_tokens: int = 128
    epochs: int = 5
    width: int = 256
    vocabulary: int = 8000
    # With this rate and 16 rows, an 8x6 model has chance accuracy after one epoch and 0.78 after two.
    learning_rate: float = 1e-4
    base_learning_rate: float = 5e-5
    batch_rows: int = 16
    dev_fraction: float = 0.1
    labels: tuple[str, ...] = ("negative", "positive")
    seed: int = 1

    def __post_init__(self) -> None:
        names = [f"{heads}x{layers}" for heads, layers in self.grid] + [name for name, _ in self.bases]
        double = sorted({name for name in names if names.count(name) > 1})
        if double or not names:
            raise ModelsError(f"two runs are called {double[0]}; give them different names" if double else "no run: give --grid or --base")
        for name in names:
            if not re.fullmatch(r"\w[\w.-]*", name):
                raise ModelsError(f"run name must consist of letters, digits, dots and hyphens, got {name!r}")
        for heads, layers in self.grid:
            Shape(layers, heads, self.width)
        check_limits(self)

    def recipes(self, data: Path) -> dict[str, Recipe]:
        """Return the recipe of each run by name. All use the same reviews and the same development set."""
        # A recipe has files of tests, whose texts it leaves out of training; the experiment reads its one itself.
        shared = {field.name for field in fields(self)} & {field.name for field in fields(Recipe)} - {"test"}
        common = Recipe(
            base="",
            sources=(str(data),),
            **{name: getattr(self, name) for name in shared},
            warmup_fraction=0.1,
            batch_tokens=self.batch_rows * self.max_tokens,
            evaluations_per_epoch=1,
            # No early stop: the curve needs a point for every epoch.
            patience=self.epochs + 1,
        )
        runs = {f"{heads}x{layers}": replace(common, heads=heads, layers=layers) for heads, layers in self.grid}
        return runs | {name: replace(common, base=folder, learning_rate=self.base_learning_rate) for name, folder in self.bases}

    def published(self) -> dict[str, Json]:
        """Return the settings for records, without paths of this machine."""
        data, test = distinct_names([Path(self.data), Path(self.test)])
        bases = [f"{name} from {name_of(folder)}" for name, folder in self.bases]
        return {**asdict(self), "data": data, "test": test, "bases": bases}
