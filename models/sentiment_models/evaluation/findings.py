"""The results of an evaluation, as ``evaluate --json`` writes them. The report, the model card and the manifest read them."""

from pydantic import Field

from sentiment.model.bundle import Manifest
from sentiment_models.errors import ModelsError
from sentiment_models.evaluation.metrics import Bin
from sentiment_models.export.manifest import TOKENIZER_FILE, WEIGHTS_FILE
from sentiment_models.stored import Stored, refuse_other

# Files besides the graph that determine the answers: external weights, and the tokenizer.
BESIDE = (WEIGHTS_FILE, TOKENIZER_FILE)


class ClassFound(Stored):
    """Figures of one label. ``rows``: texts whose correct label it is; ``answered``: texts that got it as the answer."""

    precision: float
    recall: float
    f1: float
    rows: int
    answered: int


class Slice(Stored):
    """Figures of a part of a file, with Wilson's 95 % interval of the accuracy."""

    rows: int = Field(gt=0)
    accuracy: float
    accuracy_interval: tuple[float, float]
    ece: float


class PairsFound(Stored):
    """Pairs of texts that differ in what turns the label. ``right``: pairs of which both texts are answered correctly."""

    pairs: int = Field(gt=0)
    right: int
    interval: tuple[float, float]


class CalibrationFound(Stored):
    """The calibration error compared with the errors that perfectly calibrated models get by chance.

    ``p_value``: the share of calibrated models with the same predicted probabilities whose error is at least as large. Below
    0.05 the model is distinguishable from a calibrated one. ``ece_of_calibrated``: the range of 95 % of those errors.
    """

    p_value: float
    ece_of_calibrated: tuple[float, float]


class Expected(Stored):
    """The expected accuracy of ``rows`` answers, the mean of their winning probabilities, beside the true one.

    ``by_chance``: where the accuracy lies with 95 % if the probabilities are true. ``error``: expected minus true accuracy.
    """

    rows: int = Field(gt=0)
    accuracy: float
    expected_accuracy: float
    by_chance: tuple[float, float]
    error: float


class Errors(Stored):
    """Expected minus true accuracy by data set, without abstentions; ``worst``: the set with the largest absolute error."""

    by_set: dict[str, float] = Field(min_length=2)
    mean_absolute: float
    worst: str


class LeaveOneOut(Stored):
    """Errors of the expected accuracy of each data set under three calibrations: see ``expected.leave_one_out``.

    ``as_served``: the bundle's temperature. ``refitted``: the one that fits the other sets, which ``temperatures`` has by the set left
    out. ``refitted_by_length``: one for each class of length.
    """

    temperatures: dict[str, float]
    as_served: Errors
    refitted: Errors
    refitted_by_length: Errors


class AllLabels(Stored):
    """Answers among all labels of the model to texts of a set that lacks some: an answer that the set lacks is wrong."""

    accuracy: float
    accuracy_interval: tuple[float, float]
    ece: float


class Baseline(Stored):
    """Figures of other answers to the same texts, among the same labels."""

    accuracy: float
    macro_f1: float


class MixedFound(Stored):
    """Texts that are said to praise and blame: ``found`` of ``texts`` that do, and ``alarms`` of ``one_sign``, positive or negative ones.

    Intervals are Wilson's, of the shares.
    """

    texts: int = Field(gt=0)
    found: int
    found_interval: tuple[float, float]
    one_sign: int
    alarms: int
    alarms_interval: tuple[float, float]


class Pool(Stored):
    """The answers to all data sets whose names have the same part before the slash, together."""

    sets: int = Field(gt=0)
    rows: int = Field(gt=0)
    accuracy: float
    ece: float


class Robustness(Stored):
    """The effect of a perturbation on ``rows`` texts: the number of changed labels, and the accuracy before and after."""

    rows: int = Field(gt=0)
    changed: int
    accuracy_before: float
    accuracy_after: float


class Measurement(Stored):
    """Figures of one labelled file. Shares are from 0 to 1, intervals are 95 %; ``truncated`` and ``abstained`` count texts.

    Answers count among the labels that the file has, but in ``all_labels`` (None if it has all), ``expected``, ``classes`` and
    ``confusion``, which are of the answers as the service gives them. ``baselines``: by name. ``mixed``: None without mixed texts, which
    count for nothing else. ``expected`` is of all answers, ``expected_without_abstentions`` of those that do not abstain (None without
    any). ``confusion`` counts texts by correct label, then by answer, both in the order of ``classes``. ``lengths`` are slices by tokens.
    ``domains`` are slices by the file's domain column, empty without one. Of generated texts, ``phenomena`` are slices by phenomenon,
    ``held_out`` by what was kept from training, ``registers`` by register such as tweet, and ``pairs`` are by phenomenon. ``robustness``
    is by perturbation, empty for texts with targets. ``also_trained_on``: the record of the bundle's training names this very file, so
    the figures flatter.
    """

    accuracy: float
    accuracy_interval: tuple[float, float]
    macro_f1: float
    macro_f1_interval: tuple[float, float]
    macro_recall: float
    ece: float
    all_labels: AllLabels | None = None
    baselines: dict[str, Baseline] = Field({})
    mixed: MixedFound | None = None
    calibration: CalibrationFound
    expected: Expected
    expected_without_abstentions: Expected | None
    classes: dict[str, ClassFound]
    confusion: tuple[tuple[int, ...], ...]
    reliability: tuple[Bin, ...]
    lengths: dict[str, Slice]
    domains: dict[str, Slice] = Field({})
    phenomena: dict[str, Slice] = Field({})
    held_out: dict[str, Slice] = Field({})
    registers: dict[str, Slice] = Field({})
    pairs: dict[str, PairsFound] = Field({})
    robustness: dict[str, Robustness]
    rows: int = Field(gt=0)
    tokens: int
    truncated: int
    abstained: int
    core_ms_per_text: float
    texts_per_s: float
    sha256: str
    also_trained_on: bool = False


class Failure(Stored):
    """A failed case: one text, or a text before and after a change. ``scores`` are the probabilities of the answers."""

    texts: tuple[str, ...]
    wanted: str
    answers: tuple[str, ...]
    scores: tuple[float, ...]


class BehaviourFound(Stored):
    """The result of one behavioural test. ``examples`` are the failures with the highest probability or the largest change."""

    name: str
    kind: str
    wanted: str
    cases: int = Field(gt=0)
    failures: int
    examples: tuple[Failure, ...]


class Undecided(Stored):
    """Texts of one kind that have no correct label.

    ``caught`` counts those marked ``abstain``, and ``neutral`` those that are not and have this label.
    """

    rows: int = Field(gt=0)
    caught: int
    neutral: int = 0


class GraphMeasured(Stored):
    """The measured graph, its size and the size of its bundle."""

    file: str
    precision: str
    sha256: str
    bytes: int
    bundle_bytes: int
    # SHA-256 by name of the other files in BESIDE that the bundle has.
    beside: dict[str, str]


class Evaluation(Stored):
    """Figures of one graph of one bundle, by data set.

    ``leave_one_out`` is None unless two sets have answers that do not abstain. ``behaviours`` is empty unless the labels include negative
    and positive. ``pools`` are by the part of the names before the slash. ``undecided`` (by kind) is empty without such a file.
    """

    bundle: str
    graph: GraphMeasured
    temperature: float
    abstain_below: float
    truncation: str
    threads: int
    seed: int
    datasets: dict[str, Measurement] = Field(min_length=1)
    pools: dict[str, Pool] = Field({})
    leave_one_out: LeaveOneOut | None = None
    behaviours: tuple[BehaviourFound, ...] = ()
    undecided: dict[str, Undecided] = Field({})

    def check_of(self, manifest: Manifest) -> None:
        """Check that the evaluation belongs to this export of this bundle.

        Raises:
            ModelsError: the graph, the weights, the tokenizer or the calibration differs.
        """
        for name, measured in {self.graph.file: self.graph.sha256, **self.graph.beside}.items():
            refuse_other(manifest, name, measured, "the evaluation measured")
        for setting in ("temperature", "abstain_below"):
            ours, theirs = getattr(self, setting), getattr(manifest.calibration, setting)
            if ours != theirs:
                raise ModelsError(f"the evaluation has {setting} {ours}; the bundle has {theirs}")
