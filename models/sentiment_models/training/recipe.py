"""The settings of training runs, as the command line takes them and a run's record keeps them. Knows no torch: help works without it."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sentiment_models.data.labelled import PLAIN, LabelledReading
from sentiment_models.errors import ModelsError
from sentiment_models.export.labels import check_names
from sentiment_models.export.provenance import Json, distinct_names
from sentiment_models.training.bases import name_of
from sentiment_models.training.limits import check_limits


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of an encoder. A head has width / heads dimensions; feed-forward layers are four times as wide.

    Raises:
        ModelsError: a number is below 1, or the width is not a multiple of the heads.
    """

    layers: int
    heads: int
    width: int

    def __post_init__(self) -> None:
        if min(self.layers, self.heads, self.width) < 1:
            raise ModelsError(f"layers, heads and width must be at least 1, got {self.layers}, {self.heads} and {self.width}")
        if self.width % self.heads:
            lower = self.width - self.width % self.heads
            nearest = " or ".join(str(width) for width in (lower, lower + self.heads) if width)
            raise ModelsError(f"width must be a multiple of heads ({self.heads}), got {self.width}; use {nearest}")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings of a run. Runs with the same recipe, files and machine give the same result."""

    # A folder, or hub:NAME. Empty: an untrained BERT with the layers, heads, width and vocabulary below.
    base: str
    sources: tuple[str, ...]
    # Files of long texts whose last sentences are additional training texts.
    tails: tuple[str, ...] = ()
    # Files of long texts whose first and last words are additional training texts, with the answer of the whole.
    ends: tuple[str, ...] = ()
    # Files of texts that are additional training texts with words erased.
    erased: tuple[str, ...] = ()
    # Files of texts without sentiment or in other languages, trained to equal probabilities of all labels.
    undecided: tuple[str, ...] = ()
    labels: tuple[str, ...] = ("negative", "positive")
    # Keep the base's encoder, and learn a fresh head.
    new_head: bool = False
    # How the data files are read.
    reading: LabelledReading = PLAIN
    epochs: int = 1
    learning_rate: float = 5e-5
    warmup_fraction: float = 0.06
    weight_decay: float = 0.01
    dropout: float = 0.1
    ema: float = 0.0
    head_only: bool = False
    batch_rows: int = 64
    batch_tokens: int = 4096
    max_tokens: int = 256
    teacher_weight: float = 0.7
    detokenize: float = 0.0
    recase: float = 0.0
    typos: float = 0.0
    emoji: bool = False
    dev_fraction: float = 0.03
    evaluations_per_epoch: int = 4
    patience: int = 4
    layers: int = 6
    heads: int = 8
    width: int = 256
    vocabulary: int = 8000
    seed: int = 1

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ModelsError: names the setting, its limits and its value.
        """
        check_limits(self)
        check_names(self.labels)
        if self.head_only and not self.base:
            raise ModelsError("head_only needs a base: the encoder of an untrained model gives a head nothing to learn from")
        if self.new_head and not self.base:
            raise ModelsError("new_head needs a base: the head of an untrained model is new")

    def dependencies(self, base: str, files: Mapping[str, str]) -> dict[str, Json]:
        """Return everything that determines the result of a run. A run is continued only if all of it is unchanged.

        Args:
            base: identifier of the base's content, see ``content_of``.
            files: SHA-256 of each data file by name.
        """
        return {**asdict(self), "base": base, **{f"SHA-256 of {name}": digest for name, digest in files.items()}}


@dataclass(frozen=True, slots=True)
class Pretraining:
    """The settings of pre-training. Runs with the same settings, files and machine give the same result.

    Raises:
        ModelsError: both a tokenizer and a base are given, or a number is outside its limits.
    """

    sources: tuple[str, ...]
    # The encoder to continue from. Empty: an untrained BERT of the shape below.
    base: str = ""
    # Folder of a tokenizer for an untrained BERT. Empty: one is learned from the sources.
    tokenizer: str = ""
    layers: int = 6
    heads: int = 8
    width: int = 256
    vocabulary: int = 8000
    next_sentence: bool = True
    epochs: int = 1
    max_steps: int = 0
    learning_rate: float = 1e-4
    warmup_fraction: float = 0.06
    weight_decay: float = 0.01
    dropout: float = 0.1
    batch_rows: int = 64
    batch_tokens: int = 8192
    max_tokens: int = 128
    dev_fraction: float = 0.01
    evaluations_per_epoch: int = 4
    seed: int = 1

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
        common = Recipe(
            base="",
            sources=(str(data),),
            labels=self.labels,
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            warmup_fraction=0.1,
            batch_rows=self.batch_rows,
            batch_tokens=self.batch_rows * self.max_tokens,
            max_tokens=self.max_tokens,
            dev_fraction=self.dev_fraction,
            evaluations_per_epoch=1,
            # No early stop: the curve needs a point for every epoch.
            patience=self.epochs + 1,
            width=self.width,
            vocabulary=self.vocabulary,
            seed=self.seed,
        )
        runs = {f"{heads}x{layers}": replace(common, heads=heads, layers=layers) for heads, layers in self.grid}
        return runs | {name: replace(common, base=folder, learning_rate=self.base_learning_rate) for name, folder in self.bases}

    def published(self) -> dict[str, Json]:
        """Return the settings for records, without paths of this machine."""
        data, test = distinct_names([Path(self.data), Path(self.test)])
        bases = [f"{name} from {name_of(folder)}" for name, folder in self.bases]
        return {**asdict(self), "data": data, "test": test, "bases": bases}
