"""Measure the ways of reading texts longer than the model's limit on labelled texts, choose the best, record it in the manifest.

The service's own modules tokenize, run and combine.
"""

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from tqdm import tqdm

from sentiment.model.bundle import HeadTail, WindowsSpec, load_bundle
from sentiment.model.classifier import Classifier
from sentiment.model.cores import cores_granted
from sentiment.model.scores import COMBINATIONS, combine
from sentiment.model.tokenizer import Row, Windows
from sentiment_models.data.carving import carve
from sentiment_models.data.labelled import PLAIN, Example, LabelledReading, read_examples, wholes
from sentiment_models.errors import BadData, ModelsError
from sentiment_models.evaluation.metrics import Labels, calibration_error
from sentiment_models.export.inference import Pool, graph_of, load_served
from sentiment_models.export.labels import outputs_of
from sentiment_models.export.manifest import MANIFEST_FILE, read_object, sha256, write_manifest
from sentiment_models.export.provenance import Json, distinct_names, facts
from sentiment_models.stored import Stored

# Texts tokenized together in the search for long texts.
LOOK_TEXTS = 512
# A combination rule may give a label probability 0, which has no logarithm.
PROBABILITY_MIN = 1e-12


class Plan(Stored):
    """One way of reading long texts, in the manifest's terms."""

    truncation: str
    head_tail: HeadTail | None = None
    windows: WindowsSpec | None = None

    @property
    def name(self) -> str:
        """The name shown in tables."""
        if self.windows:
            return f"windows {self.windows.size}/{self.windows.stride} {self.windows.combine}"
        return f"head_tail {self.head_tail.head}" if self.head_tail else self.truncation

    def by_rule(self) -> "list[Plan]":
        """Return the plan once per rule that can combine its windows."""
        if self.windows is None:
            return [self]
        return [Plan(truncation=self.truncation, windows=self.windows.model_copy(update={"combine": rule})) for rule in COMBINATIONS]


class Way(Plan):
    """A plan and its results. ``gained``: texts that only this plan answers correctly; ``lost``: texts that only truncation head does."""

    accuracy: float
    ece: float
    nll: float
    gained: int = 0
    lost: int = 0
    truncated: int
    rows_per_text: float
    core_ms_per_text: float


class LongTexts(Stored):
    """The results: ``texts`` texts of more than ``max_tokens`` tokens, read in each way."""

    bundle: str
    graph: str
    graph_sha256: str
    temperature: float
    max_tokens: int
    texts: int = Field(gt=0)
    files: dict[str, str]
    ways: tuple[Way, ...]

    def best(self, truncation: str = "") -> Way:
        """Return the best way of one truncation, or of all.

        Candidates are the ways within one standard error of the highest accuracy (Breiman et al. 1984). Among them the lowest
        NLL wins, then the lowest cost.
        """
        ways = [way for way in self.ways if truncation in ("", way.truncation)]
        top = max(way.accuracy for way in ways)
        error = math.sqrt(max(0.0, top * (1 - top)) / self.texts)
        return min((way for way in ways if way.accuracy >= top - error), key=lambda way: (way.nll, way.core_ms_per_text))

    def table(self) -> str:
        """Format the figures for a terminal."""
        width = max(len(way.name) for way in self.ways)
        lines = [
            f"{self.bundle}, {self.graph}, {self.texts:,} texts of more than {self.max_tokens} tokens",
            f"{'':{width}}  accuracy     ECE     NLL  gained  lost  truncated  rows/text  core-ms/text",
        ]
        lines += [
            f"{way.name:{width}} {way.accuracy:9.4f} {way.ece:7.4f} {way.nll:7.4f} {way.gained:7,} {way.lost:5,} {way.truncated:10,}"
            f" {way.rows_per_text:10.2f} {way.core_ms_per_text:13.1f}"
            for way in self.ways
        ]
        best, windows = self.best(), self.best("windows")
        lines.append(f"best: {best.name}" + ("" if best is windows else f"; of the windows: {windows.name}"))
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which long texts to measure, and with which strides.

    ``dev_fraction``: only the texts that ``train`` holds out with this fraction and seed; None: all. ``texts_max``: the most
    texts, drawn by the seed; 0: all. ``strides``: in tokens; empty: a half, three quarters and the whole of a window. ``reading``: how
    the files are read.
    """

    dev_fraction: float | None = None
    seed: int = 1
    texts_max: int = 0
    strides: tuple[int, ...] = ()
    reading: LabelledReading = PLAIN


@dataclass(frozen=True, slots=True)
class _Run:
    """The long texts run in one way: raw logits of the rows of each text."""

    logits: list[list[list[float]]]
    truncated: int
    core_s: float


def measure_long_texts(bundle: Path, files: Sequence[Path], choice: Choice, threads: int = 0) -> LongTexts:
    """Measure every way of reading long texts: head, head_tail with the manifest's split, windows with every rule.

    Args:
        bundle: the bundle's directory; measured is the graph that is served on this machine.
        files: labelled texts; those within the model's limit are skipped.
        choice: which texts, and which strides.
        threads: threads of the session; 0: the available cores.

    Raises:
        BadData: a file cannot be used, or none has a long text.
        ModelsError: a stride is longer than a window.
        sentiment.errors.BadBundle: the bundle cannot be served on this machine.
    """
    classifier = load_served(bundle)
    room = classifier.windows.size - classifier.tokenizer.special_tokens
    strides = choice.strides or tuple(sorted({max(1, room * quarters // 4) for quarters in (2, 3, 4)}))
    if max(strides) > room:
        raise ModelsError(f"stride must be at most {room} (the tokens of one window), got {max(strides)}")
    examples = long_examples(classifier, files, choice)
    texts, labels = [example.text for example in examples], np.array([example.label for example in examples], np.int64)
    found: list[tuple[Way, NDArray[np.bool_]]] = []
    for plan in _plans(classifier, strides):
        run = _run(classifier, texts, plan, threads or cores_granted())
        found += [_way(run, labels, one, classifier.manifest.calibration.temperature) for one in plan.by_rule()]
    head_right = found[0][1]
    graph = classifier.graph.file
    return LongTexts(
        bundle=classifier.bundle.id,
        graph=graph,
        graph_sha256=classifier.manifest.files[graph].sha256,
        temperature=classifier.manifest.calibration.temperature,
        max_tokens=classifier.manifest.max_tokens,
        texts=len(examples),
        files=dict(zip(distinct_names(files), map(sha256, files), strict=True)),
        ways=tuple(
            way.model_copy(update={"gained": int((right & ~head_right).sum()), "lost": int((head_right & ~right).sum())})
            for way, right in found
        ),
    )


def long_examples(classifier: Classifier, files: Sequence[Path], choice: Choice) -> list[Example]:
    """Return the chosen texts that are longer than the model's limit.

    Raises:
        BadData: a file cannot be used, or no text is too long.
    """
    manifest, reading = classifier.manifest, choice.reading
    outputs, targets = outputs_of(manifest.labels, manifest.mixed), manifest.targets is not None
    examples = [example for file in files for example in read_examples(file, outputs, pairs=targets, reading=reading)]
    if choice.dev_fraction is not None:
        examples = carve([(examples, 1)], choice.dev_fraction, choice.seed).dev
    examples = [example for example in wholes(examples, targets=targets) if example.label < len(manifest.labels)]
    long: list[Example] = []
    for start in tqdm(range(0, len(examples), LOOK_TEXTS), desc="finding long texts", unit="chunk", mininterval=1):
        chunk = examples[start : start + LOOK_TEXTS]
        rows = classifier.tokenizer.encode_many([example.text for example in chunk])
        long += [example for example, row in zip(chunk, rows, strict=True) if row.truncated]
    if not long:
        raise BadData(f"{', '.join(map(str, files))}: none of {len(examples)} texts has more than {classifier.manifest.max_tokens} tokens")
    if 0 < choice.texts_max < len(long):
        long = random.Random(choice.seed).sample(long, choice.texts_max)  # noqa: S311 - a sample, not a secret
    return long


def record_long_texts(bundle: Path, found: LongTexts, default: str | None = None) -> None:
    """Write the best windows, the head_tail split and the accuracies they were chosen by into the manifest. Its digest changes.

    ``default``: also make this truncation the bundle's default.

    Raises:
        ModelsError: the figures belong to a graph that is not served first, or to another temperature.
        sentiment.errors.BadBundle: the bundle is damaged.
    """
    manifest = load_bundle(bundle).manifest
    first = manifest.graphs.classify[0].file
    if (found.graph, found.graph_sha256) != (first, manifest.files[first].sha256):
        raise ModelsError(
            f"the figures were measured on {found.graph} with SHA-256 {found.graph_sha256[:12]}; the bundle serves another graph first"
        )
    if found.temperature != manifest.calibration.temperature:
        raise ModelsError(
            f"the figures were measured with temperature {found.temperature}; the bundle has {manifest.calibration.temperature}"
        )
    whole = read_object(bundle / MANIFEST_FILE)
    windows, head_tail = found.best("windows").windows, found.best("head_tail").head_tail
    assert windows and head_tail
    chosen: dict[str, Json] = {
        "texts": found.texts,
        "files": found.files,
        "accuracy": {way.name: way.accuracy for way in found.ways},
    }
    whole["windows"], whole["head_tail"] = windows.model_dump(), head_tail.model_dump()
    whole["provenance"] = {**facts(whole.get("provenance")), "long_texts": chosen}
    if default:
        whole["default_truncation"] = default
    # It was proved for another way of reading.
    whole.pop("effort", None)
    write_manifest(bundle, whole)


def _plans(classifier: Classifier, strides: Sequence[int]) -> Iterator[Plan]:
    yield Plan(truncation="head")
    yield Plan(truncation="head_tail", head_tail=classifier.head_tail)
    for stride in strides:
        yield Plan(truncation="windows", windows=classifier.windows.model_copy(update={"stride": stride}))


def _read(classifier: Classifier, text: str, plan: Plan) -> Row | Windows:
    if plan.windows:
        return classifier.tokenizer.encode_windows(text, plan.windows.size, plan.windows.stride, plan.windows.count_max)
    return classifier.read_on(text, plan.truncation) if plan.head_tail else classifier.tokenizer.encode(text)


def _run(classifier: Classifier, texts: Sequence[str], plan: Plan, threads: int) -> _Run:
    begun = time.process_time()
    readings = [_read(classifier, text, plan) for text in texts]
    parts = [reading.rows for reading in readings]
    rows = [row for part in parts for row in part]
    title = f"windows {plan.windows.stride}" if plan.windows else plan.truncation
    with Pool(graph_of(classifier), threads, len(rows), title) as pool:
        own = iter([row_logits[: len(classifier.manifest.labels)].tolist() for row_logits in pool.run(rows)])
    truncated = sum(reading.truncated for reading in readings)
    return _Run([[next(own) for _ in part] for part in parts], truncated, time.process_time() - begun)


def _way(run: _Run, labels: Labels, plan: Plan, temperature: float) -> tuple[Way, NDArray[np.bool_]]:
    """Return the figures of one way, and which texts it answers correctly."""
    # For a text of a single row, every rule gives the same result.
    rule = plan.windows.combine if plan.windows else "mean_probability"
    stated = np.array([combine(logits, rule, temperature) for logits in run.logits])
    right = stated.argmax(axis=1) == labels
    texts = len(labels)
    way = Way(
        truncation=plan.truncation,
        head_tail=plan.head_tail,
        windows=plan.windows,
        accuracy=round(float(right.mean()), 5),
        ece=round(calibration_error(stated.max(axis=1), right), 5),
        nll=round(float(-np.log(np.maximum(stated[np.arange(texts), labels], PROBABILITY_MIN)).mean()), 5),
        truncated=run.truncated,
        rows_per_text=round(sum(map(len, run.logits)) / texts, 3),
        core_ms_per_text=round(1e3 * run.core_s / texts, 2),
    )
    return way, right
