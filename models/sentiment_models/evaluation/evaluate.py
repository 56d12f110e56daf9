"""Measure a bundle's served graph on labelled files with the service's own tokenizer, padding, session and calibration."""

import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentiment.model.bundle import load_bundle
from sentiment.model.classifier import Classifier
from sentiment.model.cores import cores_granted
from sentiment.model.scores import NEUTRAL
from sentiment.observability.agreement import wilson
from sentiment_models.data.labelled import NOT_MADE, PLAIN, Example, LabelledReading, TextOrPair, read_examples
from sentiment_models.errors import BadData, ModelsError
from sentiment_models.evaluation.baselines import COMMONEST, VADER, commonest, vader_answers
from sentiment_models.evaluation.expected import Answers, expected, leave_one_out
from sentiment_models.evaluation.findings import (
    BESIDE,
    AllLabels,
    Baseline,
    ClassFound,
    Evaluation,
    GraphMeasured,
    Measurement,
    MixedFound,
    PairsFound,
    Pool,
    Robustness,
    Slice,
)
from sentiment_models.evaluation.judging import Judged, judge, present
from sentiment_models.evaluation.metrics import (
    Labels,
    calibration_error,
    class_scores,
    confusion,
    figures_of,
    macro_f1,
    macro_recall,
    reliability_bins,
)
from sentiment_models.evaluation.probes import PERTURBATIONS, behave, catch, perturb, read_kinds
from sentiment_models.evaluation.resample import SEED, accuracy_and_f1_intervals, calibration_test
from sentiment_models.export.inference import Served, load_served, serve
from sentiment_models.export.labels import MIXED, outputs_of
from sentiment_models.export.manifest import MANIFEST_FILE, WEIGHTS_FILE, read_object, sha256, write_manifest
from sentiment_models.export.provenance import Json, files_trained_on
from sentiment_models.training.bases import training_of

# Upper ends of the length slices in tokens. 512 is the limit of most encoder families.
LENGTHS = (16, 64, 256, 512)
OVER_THE_LIMIT = "over the limit"
# All phenomena together.
ALL = "all"
# A column with more values is not a domain but something else, such as product names.
DOMAINS_MAX = 50


@dataclass(frozen=True, slots=True)
class Dataset:
    """A labelled file, the name its figures get, and how it is read."""

    name: str
    path: Path
    reading: LabelledReading = PLAIN

    @classmethod
    def parse(cls, spec: str, reading: LabelledReading = PLAIN) -> "Dataset":
        """Parse ``FILE`` or ``NAME=FILE`` of the command line. The default name is folder and file, such as sst2/dev."""
        name, equals, path = spec.partition("=")
        if equals and not Path(spec).exists():
            return cls(name, Path(path), reading)
        whole = Path(spec).resolve()
        return cls(f"{whole.parent.name}/{whole.name.split('.')[0]}", Path(spec), reading)


@dataclass(frozen=True, slots=True)
class Way:
    """How files are measured: the arguments of ``evaluate`` that they share, with the bundle before loaded."""

    threads: int
    truncation: str | None
    seed: int
    before: Classifier | None
    vader: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """A file's texts and correct labels, a classifier's answers, what counts of them, and the time they took.

    ``names``: what labels and answers are indices of. ``counts``: which of them count, [names].
    """

    names: Sequence[str]
    counts: NDArray[np.bool_]
    texts: list[TextOrPair]
    labels: Labels
    served: Served
    judged: Judged
    core_s: float
    seconds: float


def evaluate(
    bundle: Path,
    datasets: Sequence[Dataset],
    precision: str | None = None,
    threads: int = 0,
    truncation: str | None = None,
    undecided: Path | None = None,
    seed: int = SEED,
    before: Path | None = None,
    vader: bool = False,
) -> Evaluation:
    """Measure a bundle.

    Args:
        bundle: the bundle's directory.
        datasets: the labelled files.
        precision: the graph to measure; None: the graph that would be served on this machine.
        threads: threads of the session; 0: the available cores.
        truncation: how to read texts that are too long; None: the bundle's default.
        undecided: a .tsv file of kind<TAB>text with texts that have no correct label.
        seed: of the intervals and the perturbations.
        before: a bundle whose answers to the same texts are measured too. Its labels are some of the bundle's.
        vader: also measure the answers of VADER's word list, by the package vaderSentiment.

    Raises:
        ModelsError: ``before`` has a label that the bundle lacks.
        BadCheckpoint: the bundle's config is of a model that is not a classifier with one label a text.
        BadData: a file cannot be used, or two data sets have the same name.
        sentiment.errors.BadBundle: the bundle cannot be served on this machine.
    """
    refuse_equal_names(datasets)
    threads = threads or cores_granted()
    kinds = read_kinds(undecided, datasets[0].reading) if undecided else {}
    classifier = load_served(bundle, precision)
    other = load_served(before) if before else None
    if other and (unknown := set(other.manifest.labels) - set(classifier.manifest.labels)):
        raise ModelsError(f"{before}: has the label {min(unknown)}, which {classifier.bundle.id} lacks; the labels must be some of its own")
    way = Way(threads, truncation, seed, other, vader)
    measured = {dataset.name: measure(classifier, dataset, way) for dataset in datasets}
    return Evaluation(
        bundle=classifier.bundle.id,
        graph=graph_measured(classifier),
        temperature=classifier.manifest.calibration.temperature,
        abstain_below=classifier.manifest.calibration.abstain_below,
        truncation=truncation or classifier.manifest.default_truncation,
        threads=threads,
        seed=seed,
        datasets={name: found for name, (found, _, _) in measured.items()},
        pools=_pools({name: (answers, judged) for name, (_, answers, judged) in measured.items()}),
        leave_one_out=leave_one_out(
            {name: answers for name, (_, answers, _) in measured.items()}, classifier.manifest.calibration.temperature
        ),
        behaviours=tuple(behave(classifier, threads)),
        undecided=catch(classifier, kinds, threads),
    )


def refuse_equal_names(datasets: Sequence[Dataset]) -> None:
    """Refuse data sets with the same name.

    Raises:
        BadData: two data sets share a name.
    """
    names = [dataset.name for dataset in datasets]
    if len(set(names)) != len(names):
        raise BadData(f"two files have the name {max(names, key=names.count)}; rename one with NAME=FILE")


def graph_measured(classifier: Classifier) -> GraphMeasured:
    """Describe the graph that a classifier runs. ``bytes`` includes weights that the graph reads from another file."""
    graph, files = classifier.graph, classifier.manifest.files
    outside = WEIGHTS_FILE in files and WEIGHTS_FILE.encode() in (classifier.bundle.path / graph.file).read_bytes()
    return GraphMeasured(
        file=graph.file,
        precision=graph.precision,
        sha256=files[graph.file].sha256,
        bytes=files[graph.file].bytes + (files[WEIGHTS_FILE].bytes if outside else 0),
        bundle_bytes=sum(file.bytes for file in files.values()),
        beside={name: files[name].sha256 for name in BESIDE if name in files},
    )


def run_file(classifier: Classifier, dataset: Dataset, names: Sequence[str], threads: int, truncation: str | None = None) -> Measured:
    """Classify every text of a file. ``names``: the labels that it may have, those of the classifier among them.

    Raises:
        BadData: the file cannot be used.
    """
    also_trained_on(classifier, dataset)
    return _run(classifier, dataset, _read(classifier, dataset, names), names, threads, truncation)


def also_trained_on(classifier: Classifier, dataset: Dataset) -> bool:
    """Whether the record of the bundle's training names this very file. If so, it is said on standard error."""
    found = sha256(dataset.path) in files_trained_on(training_of(str(classifier.bundle.path)))
    if found:
        sys.stderr.write(
            f"warning: {dataset.path}: {classifier.bundle.id} was trained on this file; figures on it flatter. Evaluate on texts that were "
            "kept out of training\n"
        )
    return found


def _read(classifier: Classifier, dataset: Dataset, names: Sequence[str]) -> list[Example]:
    second_texts = classifier.manifest.pairs or classifier.manifest.targets is not None
    return list(read_examples(dataset.path, names, pairs=second_texts, reading=dataset.reading))


def _run(
    classifier: Classifier, dataset: Dataset, examples: Sequence[Example], names: Sequence[str], threads: int, truncation: str | None
) -> Measured:
    texts = [example.whole for example in examples]
    labels = np.array([example.label for example in examples], np.int64)
    begun, cpu_begun = time.perf_counter(), time.process_time()
    served = serve(classifier, texts, dataset.name, threads, truncation)
    seconds, core_s = time.perf_counter() - begun, time.process_time() - cpu_begun
    counts = present(labels, len(names))
    judged = judge(served.stated, served.abstain, classifier.manifest.labels, names, counts)
    return Measured(names, counts, texts, labels, served, judged, core_s, seconds)


def measure(classifier: Classifier, dataset: Dataset, way: Way) -> tuple[Measurement, Answers, Judged]:
    """Measure a classifier on one file, with the texts as they are and perturbed; return the answers to the former too.

    Raises:
        BadData: the file cannot be used, has too many domains, or only mixed texts.
    """
    examples, mixed = _labelled_and_mixed(classifier, dataset)
    domains = _domains(examples, dataset.path)
    run = _run(classifier, dataset, examples, classifier.manifest.labels, way.threads, way.truncation)
    lengths = _lengths(run.served)
    answers = Answers(run.served.stated, run.labels, run.served.abstain, np.argmax(np.stack(list(lengths.values())), axis=0))
    whole = expected(answers, np.ones(len(run.labels), np.bool_))
    assert whole is not None  # a file without texts is refused
    kinds = len(run.names)
    among, counts = confusion(run.judged.answers, run.labels, kinds), confusion(run.served.answers, run.labels, kinds)
    found = figures_of(run.judged.stated, run.labels)
    accuracy, f1 = accuracy_and_f1_intervals(run.judged.answers, run.labels, kinds, way.seed)
    made = [example.made or NOT_MADE for example in examples]
    measurement = Measurement(
        accuracy=round(found.accuracy, 5),
        accuracy_interval=_rounded(accuracy),
        macro_f1=round(found.macro_f1, 5),
        macro_f1_interval=_rounded(f1),
        macro_recall=round(macro_recall(among), 5),
        ece=round(found.ece, 5),
        all_labels=None if run.counts.all() else _all_labels(run),
        baselines=_baselines(classifier, run, dataset.name, way),
        mixed=_mixed(classifier, run, mixed, way) if mixed else None,
        calibration=calibration_test(run.judged.stated, run.labels, way.seed),
        expected=whole,
        expected_without_abstentions=expected(answers, answers.counted),
        classes=_classes(counts, run.names),
        confusion=tuple(tuple(row) for row in counts.tolist()),
        reliability=tuple(reliability_bins(run.judged.confidence, run.judged.answers == run.labels)),
        lengths=_slices(run, lengths),
        domains=_slices(run, domains),
        phenomena=_slices(run, _by([one.phenomenon for one in made])),
        held_out=_slices(run, _by([one.held_out for one in made])),
        registers=_slices(run, _by([one.register for one in made])),
        pairs=_pairs(run, examples),
        robustness=_robustness(classifier, run, way),
        rows=len(run.labels),
        tokens=int(run.served.lengths.sum()),
        truncated=int(run.served.truncated.sum()),
        abstained=int(run.served.abstain.sum()),
        core_ms_per_text=round(1e3 * run.core_s / len(run.labels), 3),
        texts_per_s=round(len(run.labels) / run.seconds, 1),
        sha256=sha256(dataset.path),
        also_trained_on=also_trained_on(classifier, dataset),
    )
    return measurement, answers, run.judged


def _labelled_and_mixed(classifier: Classifier, dataset: Dataset) -> tuple[list[Example], list[Example]]:
    """The texts with a label of the model, of which there is one at least, and those labelled mixed."""
    labels = classifier.manifest.labels
    examples: list[Example] = []
    mixed: list[Example] = []
    for example in _read(classifier, dataset, outputs_of(labels, classifier.manifest.mixed)):
        (examples if example.label < len(labels) else mixed).append(example)
    if not examples:
        raise BadData(f"{dataset.path}: all texts are labelled {MIXED}; add texts of one sign, for the false alarms")
    return examples, mixed


def _domains(examples: Sequence[Example], path: Path) -> dict[str, NDArray[np.bool_]]:
    domains = _by([example.domain for example in examples])
    if len(domains) > DOMAINS_MAX:
        raise BadData(
            f"{path}: the domain column has {len(domains)} values; the limit is {DOMAINS_MAX}. Rename the column if it holds something else"
        )
    return domains


def _robustness(classifier: Classifier, run: Measured, way: Way) -> dict[str, Robustness]:
    """By perturbation. None with targets: typing errors could hide one from its text."""

    def judged(served: Served) -> Labels:
        return judge(served.stated, served.abstain, run.names, run.names, run.counts).answers

    answered = run.judged.answers
    return {
        name: perturb(classifier, run.texts, run.labels, answered, judged, name, way.threads, way.truncation, way.seed)
        for name in (() if _has_targets(classifier, run) else PERTURBATIONS)
    }


def _has_targets(classifier: Classifier, run: Measured) -> bool:
    return classifier.manifest.targets is not None and not all(isinstance(text, str) for text in run.texts)


def _all_labels(run: Measured) -> AllLabels:
    return AllLabels(**_accuracy(run.served.answers == run.labels, run.served.stated.max(axis=1)))


def _baselines(classifier: Classifier, run: Measured, title: str, way: Way) -> dict[str, Baseline]:
    """Figures of other answers, by name. Of texts with targets only those of the commonest label: the others answer no targets."""
    answers = {COMMONEST: np.full(len(run.labels), commonest(run.labels))}
    if not _has_targets(classifier, run):
        if way.vader and (found := vader_answers(list(map(_joined, run.texts)), run.labels, run.names, run.counts)) is not None:
            answers[VADER] = found
        if other := way.before:
            served = serve(other, run.texts, f"{title}, {other.bundle.id}", way.threads, way.truncation)
            answers[other.bundle.id] = judge(served.stated, served.abstain, other.manifest.labels, run.names, run.counts).answers
    by_name = {name: confusion(one, run.labels, len(run.names)) for name, one in answers.items()}
    return {
        name: Baseline(accuracy=round(float(np.trace(one) / len(run.labels)), 5), macro_f1=round(float(macro_f1(one)), 5))
        for name, one in by_name.items()
    }


def _joined(text: TextOrPair) -> str:
    return text if isinstance(text, str) else " ".join(text)


def _mixed(classifier: Classifier, run: Measured, mixed: Sequence[Example], way: Way) -> MixedFound:
    """Judge what is said of ``mixed`` texts, and of those of ``run`` that have one sign."""
    one_sign = np.array([run.names[label].casefold() != NEUTRAL for label in run.labels.tolist()], np.bool_)
    found = int(serve(classifier, [example.whole for example in mixed], MIXED, way.threads, way.truncation).mixed.sum())
    signs, alarms = int(one_sign.sum()), int(run.served.mixed[one_sign].sum())
    return MixedFound(
        texts=len(mixed),
        found=found,
        found_interval=_rounded(wilson(found, len(mixed))),
        one_sign=signs,
        alarms=alarms,
        alarms_interval=_rounded(wilson(alarms, signs)) if signs else (0.0, 1.0),
    )


def _pools(sets: Mapping[str, tuple[Answers, Judged]]) -> dict[str, Pool]:
    """The answers to all sets whose names have the same part before the slash, together."""
    pools: dict[str, list[tuple[Answers, Judged]]] = defaultdict(list)
    for name, one in sets.items():
        pools[name.partition("/")[0]].append(one)
    return {name: _pool(members) for name, members in pools.items()}


def _pool(members: Sequence[tuple[Answers, Judged]]) -> Pool:
    right = np.concatenate([judged.answers == answers.labels for answers, judged in members])
    confidence = np.concatenate([judged.confidence for _, judged in members])
    ece = round(calibration_error(confidence, right), 5)
    return Pool(sets=len(members), rows=len(right), accuracy=round(float(right.mean()), 5), ece=ece)


def record(bundle: Path, evaluation: Evaluation) -> None:
    """Write the figures into the bundle's manifest, which changes the bundle's digest.

    Raises:
        ModelsError: the figures belong to another bundle, to another truncation, or to a graph that is not served first.
        sentiment.errors.BadBundle: the bundle is damaged.
    """
    manifest = load_bundle(bundle).manifest
    evaluation.check_of(manifest)
    if evaluation.truncation != manifest.default_truncation:
        raise ModelsError(
            f"the figures were measured with truncation {evaluation.truncation}; the manifest records only figures of its default "
            f"truncation, {manifest.default_truncation}"
        )
    served = manifest.graphs.classify[0].file
    if evaluation.graph.file != served:
        raise ModelsError(
            f"the figures were measured on {evaluation.graph.file}; the manifest records only figures of the served graph, {served}"
        )
    accuracy: dict[str, dict[str, Json]] = {name: one.model_dump(exclude_none=True) for name, one in manifest.accuracy.items()}
    for name, one in evaluation.datasets.items():
        counted = one.expected_without_abstentions
        accuracy[name] = {"accuracy": one.accuracy, "macro_f1": one.macro_f1, "ece": one.ece, "rows": one.rows}
        if one.all_labels:
            accuracy[name]["labels"] = [label for label, found in one.classes.items() if found.rows]
        if counted:
            accuracy[name]["without_abstentions"] = counted.model_dump(include={"rows", "accuracy", "expected_accuracy"})
    write_manifest(bundle, {**read_object(bundle / MANIFEST_FILE), "accuracy": accuracy})


def _classes(counts: NDArray[np.int64], names: Sequence[str]) -> dict[str, ClassFound]:
    precision, recall, f1 = (values.round(5).tolist() for values in class_scores(counts))
    return {
        name: ClassFound(precision=precision[i], recall=recall[i], f1=f1[i], rows=int(counts[i].sum()), answered=int(counts[:, i].sum()))
        for i, name in enumerate(names)
    }


def _lengths(served: Served) -> dict[str, NDArray[np.bool_]]:
    """Slice by length in tokens. A text that is longer than the model's limit is only in the slice OVER_THE_LIMIT."""
    lengths, long = served.lengths, served.long
    masks = {}
    for low, high in itertools.pairwise((0, *LENGTHS)):
        masks[f"{low + 1} to {high} tokens"] = ~long & (lengths > low) & (lengths <= high)
    masks[f"{LENGTHS[-1] + 1} tokens and more"] = ~long & (lengths > LENGTHS[-1])
    masks[OVER_THE_LIMIT] = long
    return masks


def _by(names: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    """Slice by name, such as that of a text's domain. A text without a name is in no slice."""
    named = np.array(names, object)
    return {name: named == name for name in sorted(set(names) - {""})}


def _pairs(run: Measured, examples: Sequence[Example]) -> dict[str, PairsFound]:
    """The pairs of each phenomenon, and of all, of which the file has both texts."""
    right = run.judged.answers == run.labels
    pairs: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for example, answered in zip(examples, right.tolist(), strict=True):
        if example.made is not None and example.made.pair:
            pairs[example.made.phenomenon, example.made.pair].append(answered)
    by: dict[str, list[bool]] = defaultdict(list)
    for (phenomenon, _), answers in sorted(pairs.items()):
        if len(answers) == 2:
            by[phenomenon].append(all(answers))
    found = {name: _pairs_found(both) for name, both in by.items()}
    return found | {ALL: _pairs_found(list(itertools.chain.from_iterable(by.values())))} if found else {}


def _pairs_found(both: Sequence[bool]) -> PairsFound:
    return PairsFound(pairs=len(both), right=sum(both), interval=_rounded(wilson(sum(both), len(both))))


def _slices(run: Measured, masks: Mapping[str, NDArray[np.bool_]]) -> dict[str, Slice]:
    """Return the figures of each slice that is not empty."""
    right, confidence = run.judged.answers == run.labels, run.judged.confidence
    return {name: Slice(rows=int(mask.sum()), **_accuracy(right[mask], confidence[mask])) for name, mask in masks.items() if mask.any()}


def _accuracy(right: NDArray[np.bool_], confidence: NDArray[np.float64]) -> dict[str, Any]:
    return {
        "accuracy": round(float(right.mean()), 5),
        "accuracy_interval": _rounded(wilson(int(right.sum()), len(right))),
        "ece": round(calibration_error(confidence, right), 5),
    }


def _rounded(interval: tuple[float, float]) -> tuple[float, float]:
    return round(interval[0], 5), round(interval[1], 5)
