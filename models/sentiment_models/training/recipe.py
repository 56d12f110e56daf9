"""The settings of training runs, as the command line takes them and a run's record keeps them. Knows no torch: help works without it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sentiment_models.data.labelled import PLAIN, LabelledReading
from sentiment_models.errors import ModelsError
from sentiment_models.export.labels import check_names
from sentiment_models.export.provenance import Json
from sentiment_models.training.limits import check_limits

# Up to this many texts are few: they are shown as often as a classifier needs to learn them, and looked over for what is wrong with them.
FEW = 10_000
# 10 epochs of 500 texts or fewer, 5 of 1,000, 3 from 1,667 on.
SHOWN, EPOCHS_MIN, EPOCHS_MAX = 5000, 3, 10
USUAL_RATE = 5e-5
# Up to this many texts teach a new head on an encoder of up to this many dimensions better by a higher rate; others were not measured.
RAISED_RATE, RAISED_TEXTS, RAISED_WIDTH = 2e-4, 1000, 384


def defaults_for(texts: int, width: int = 0) -> dict[str, float]:
    """The defaults of a run that depend on how many texts it has, and on the width of the encoder below a new head; 0: there is none."""
    if texts > FEW:
        return {"learning_rate": USUAL_RATE, "epochs": 1, "batch_rows": 64, "evaluations_per_epoch": 4}
    rate = RAISED_RATE if texts <= RAISED_TEXTS and 0 < width <= RAISED_WIDTH else USUAL_RATE
    epochs = min(EPOCHS_MAX, max(EPOCHS_MIN, SHOWN // max(1, texts)))
    return {"learning_rate": rate, "epochs": epochs, "batch_rows": 16, "evaluations_per_epoch": 1}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The settings that training and pre-training share: of the optimizer, the batches, the evaluations, and of an untrained encoder."""

    epochs: int = 1
    learning_rate: float = USUAL_RATE
    warmup_fraction: float = 0.06
    weight_decay: float = 0.01
    dropout: float = 0.1
    batch_rows: int = 64
    batch_tokens: int = 4096
    max_tokens: int = 256
    dev_fraction: float = 0.03
    evaluations_per_epoch: int = 4
    layers: int = 6
    heads: int = 8
    width: int = 256
    vocabulary: int = 8000
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Recipe(Course):
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
    # The development set. Empty: a part of the sources. Their texts, and those of ``test``, are never trained on.
    dev: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    labels: tuple[str, ...] = ("negative", "positive")
    # Keep the base's encoder, and learn a fresh head.
    new_head: bool = False
    # How the data files are read.
    reading: LabelledReading = PLAIN
    ema: float = 0.0
    head_only: bool = False
    # Keep the vectors of pieces of words, also of those that no training text has.
    freeze_embeddings: bool = False
    # Weigh each text by how rare its label is, so that all labels count alike.
    class_weights: bool = False
    teacher_weight: float = 0.7
    detokenize: float = 0.0
    recase: float = 0.0
    typos: float = 0.0
    emoji: bool = False
    patience: int = 4

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
