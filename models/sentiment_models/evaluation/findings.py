"""What an evaluation found, as ``evaluate --json`` writes it and the report, the model card and the manifest read it."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sentiment.model.bundle import Manifest
from sentiment_models.errors import ModelsError
from sentiment_models.evaluation.metrics import Bin
from sentiment_models.export.manifest import TOKENIZER_FILE, WEIGHTS_FILE

# What answers hang on besides a graph: the weights of one that keeps none of its own, and how text becomes tokens.
BESIDE = (WEIGHTS_FILE, TOKENIZER_FILE)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClassFound(_Part):
    """Figures of one label: ``rows`` texts have it, ``answered`` got it."""

    precision: float
    recall: float
    f1: float
    rows: int
    answered: int


class Slice(_Part):
    """Figures of some rows of a file."""

    rows: int = Field(gt=0)
    accuracy: float
    ece: float


class CalibrationFound(_Part):
    """Whether the calibration error is chance: see ``resample.Consistency``."""

    p_value: float
    ece_of_calibrated: tuple[float, float]


class Robustness(_Part):
    """What a perturbation did to ``rows`` texts: how many labels changed, and the accuracy before and after."""

    rows: int = Field(gt=0)
    changed: int
    accuracy_before: float
    accuracy_after: float


class Measurement(_Part):
    """Figures of one labelled file. Shares are from 0 to 1, intervals are of 95 %; ``truncated`` and ``abstained`` count texts.

    ``confusion`` counts by right label, then by answer, both in the order of ``classes``. ``lengths`` are slices by tokens,
    ``domains`` by what the file says of its texts, empty where it says nothing; ``robustness`` is by perturbation.
    """

    accuracy: float
    accuracy_interval: tuple[float, float]
    macro_f1: float
    macro_f1_interval: tuple[float, float]
    ece: float
    calibration: CalibrationFound
    classes: dict[str, ClassFound]
    confusion: tuple[tuple[int, ...], ...]
    reliability: tuple[Bin, ...]
    lengths: dict[str, Slice]
    domains: dict[str, Slice] = {}
    robustness: dict[str, Robustness]
    rows: int = Field(gt=0)
    tokens: int
    truncated: int
    abstained: int
    core_ms_per_text: float
    texts_per_s: float
    sha256: str


class Failure(_Part):
    """A case that failed: one text, or a text before and after a change; ``scores`` are the probabilities of the answers."""

    texts: tuple[str, ...]
    wanted: str
    answers: tuple[str, ...]
    scores: tuple[float, ...]


class BehaviourFound(_Part):
    """How one behavioural test went; ``examples`` are the failures the model is surest of."""

    name: str
    kind: str
    wanted: str
    cases: int = Field(gt=0)
    failures: int
    examples: tuple[Failure, ...]


class Undecided(_Part):
    """Texts without an answer, of one kind: how many were marked ``abstain``."""

    rows: int = Field(gt=0)
    caught: int


class GraphMeasured(_Part):
    """Which graph it was, and how large it and its whole bundle are."""

    file: str
    precision: str
    sha256: str
    bytes: int
    bundle_bytes: int
    # SHA-256 of the bundle's other files that answers hang on.
    beside: dict[str, str]


class Evaluation(_Part):
    """Figures of one graph of one bundle, by data set.

    ``behaviours`` is empty where the labels are not negative and positive, ``undecided`` (by language) where no such file was given.
    """

    bundle: str
    graph: GraphMeasured
    temperature: float
    abstain_below: float
    truncation: str
    threads: int
    seed: int
    datasets: dict[str, Measurement] = Field(min_length=1)
    behaviours: tuple[BehaviourFound, ...] = ()
    undecided: dict[str, Undecided] = {}

    def check_of(self, manifest: Manifest) -> None:
        """Refuse to stand for another bundle, or for this one before it was exported anew.

        Raises:
            ModelsError: says what differs.
        """
        for name, measured in {self.graph.file: self.graph.sha256, **self.graph.beside}.items():
            file = manifest.files.get(name)
            if file is None or file.sha256 != measured:
                known = "none" if file is None else f"one with SHA-256 {file.sha256[:12]}"
                raise ModelsError(f"the evaluation is of a {name} with SHA-256 {measured[:12]}; the bundle has {known}")
        for setting in ("temperature", "abstain_below"):
            ours, theirs = getattr(self, setting), getattr(manifest.calibration, setting)
            if ours != theirs:
                raise ModelsError(f"the evaluation has {setting} {ours}; the bundle has {theirs}")


def read_evaluation(path: Path) -> Evaluation:
    """Read what ``evaluate --json`` wrote.

    Raises:
        ModelsError: it is something else, or of a version that measured less.
    """
    try:
        return Evaluation.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ModelsError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "as a whole"
        raise ModelsError(
            f"{path}: not an evaluation of this version: {where}: {first['msg']}; measure again with evaluate --json"
        ) from error
