"""Measure a bundle's served graph on labelled files, through the service's own tokenizer, padding, session and calibration."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sentiment.model.bundle import load_bundle
from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.cores import cores_granted
from sentiment_models.data import read_examples
from sentiment_models.errors import BadData, ModelsError
from sentiment_models.evaluation import Evaluation, GraphMeasured, Measurement
from sentiment_models.inference import Graph, answer
from sentiment_models.manifest import MANIFEST_FILE, read_object, sha256, write_object
from sentiment_models.metrics import figures, probabilities
from sentiment_models.provenance import Json


@dataclass(frozen=True, slots=True)
class Dataset:
    """A labelled file and what its figures are called."""

    name: str
    path: Path

    @classmethod
    def parse(cls, spec: str) -> "Dataset":
        """Read ``FILE`` or ``NAME=FILE`` as the command line takes it; a file's name is its folder's and its own: sst2/dev."""
        name, equals, path = spec.partition("=")
        if equals and not Path(spec).exists():
            return cls(name, Path(path))
        whole = Path(spec).resolve()
        return cls(f"{whole.parent.name}/{whole.name.split('.')[0]}", Path(spec))


def evaluate(bundle: Path, datasets: Sequence[Dataset], precision: str | None = None, threads: int = 0) -> Evaluation:
    """Measure a bundle.

    Args:
        bundle: the bundle's directory.
        datasets: what to measure it on.
        precision: measure this graph; None: the one that would be served on this machine.
        threads: how many share the session; 0: as many as cores are granted.

    Raises:
        BadData: a file cannot be used, or two have one name.
        sentiment.errors.BadBundle: the bundle cannot be served here.
    """
    names = [dataset.name for dataset in datasets]
    if len(set(names)) != len(names):
        raise BadData(f"two files are called {max(names, key=names.count)}; name one of them by NAME=FILE")
    threads = threads or cores_granted()
    classifier = load_classifier(bundle, precision)
    graph, manifest = classifier.graph, classifier.manifest
    return Evaluation(
        bundle=classifier.bundle.id,
        graph=GraphMeasured(file=graph.file, precision=graph.precision, sha256=manifest.files[graph.file].sha256),
        temperature=manifest.calibration.temperature,
        threads=threads,
        datasets={dataset.name: measure(classifier, dataset, threads) for dataset in datasets},
    )


def measure(classifier: Classifier, dataset: Dataset, threads: int) -> Measurement:
    """Run one file through a classifier.

    Raises:
        BadData: the file cannot be used.
    """
    examples = list(read_examples(dataset.path, classifier.manifest.labels))
    labels = np.array([example.label for example in examples], np.int64)
    graph = Graph(classifier.tokenizer, classifier.session, classifier.manifest.padding_side == "left")
    begun, cpu_begun = time.perf_counter(), time.process_time()
    answers = answer(graph, [example.text for example in examples], dataset.name, threads)
    seconds, core_s = time.perf_counter() - begun, time.process_time() - cpu_begun
    calibration = classifier.manifest.calibration
    found = figures(answers.logits, labels, calibration.temperature)
    confidence = probabilities(answers.logits, calibration.temperature).max(axis=1)
    return Measurement(
        accuracy=round(found.accuracy, 5),
        macro_f1=round(found.macro_f1, 5),
        ece=round(found.ece, 5),
        rows=found.rows,
        tokens=answers.tokens,
        truncated=answers.truncated,
        abstained=int((confidence < calibration.abstain_below).sum()),
        core_ms_per_text=round(1e3 * core_s / len(examples), 3),
        texts_per_s=round(len(examples) / seconds, 1),
        sha256=sha256(dataset.path),
    )


def record(bundle: Path, evaluation: Evaluation) -> None:
    """Write the figures into the bundle's manifest; its digest, and with it the bundle's, changes.

    Raises:
        ModelsError: the figures are of another bundle, or of another graph than the one that is served first.
        sentiment.errors.BadBundle: the bundle is damaged.
    """
    manifest = load_bundle(bundle).manifest
    evaluation.check_of(manifest)
    served = manifest.graphs.classify[0].file
    if evaluation.graph.file != served:
        raise ModelsError(f"the figures are of {evaluation.graph.file}; the manifest records those of the served graph, {served}")
    accuracy: dict[str, Json] = {name: one.model_dump() for name, one in manifest.accuracy.items()}
    for name, one in evaluation.datasets.items():
        accuracy[name] = {"accuracy": one.accuracy, "macro_f1": one.macro_f1, "ece": one.ece, "rows": one.rows}
    path = bundle / MANIFEST_FILE
    write_object(path, {**read_object(path), "accuracy": accuracy})
