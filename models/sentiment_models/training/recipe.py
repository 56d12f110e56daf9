"""How a classifier is trained, as data: what the command line takes and a run's record keeps."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sentiment_models.errors import ModelsError
from sentiment_models.export.provenance import Json
from sentiment_models.training.limits import check_limits


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is trained. Two runs with one recipe, one set of files and one machine do the same."""

    # A folder or a name that transformers knows; empty: an untrained BERT of the layers, heads, width and vocabulary below.
    base: str
    sources: tuple[str, ...]
    # Files of long texts whose last sentences are shown as texts of their own.
    tails: tuple[str, ...] = ()
    # Files of texts without sentiment or of other languages, for which all labels are as likely.
    undecided: tuple[str, ...] = ()
    labels: tuple[str, ...] = ("negative", "positive")
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
        """Refuse what no run could use.

        Raises:
            ModelsError: names the setting, its value and its limits.
        """
        check_limits(self)
        if self.head_only and not self.base:
            raise ModelsError("head_only wants a base: the encoder of an untrained model says nothing to a head")

    def asked(self, base: str, files: Mapping[str, str]) -> dict[str, Json]:
        """All that a run depends on: one that depends on something else is never continued.

        Args:
            base: what tells the base from any other in its place.
            files: SHA-256 of each data file.
        """
        return {**asdict(self), "base": base, **{f"SHA-256 of {name}": digest for name, digest in files.items()}}
