"""Measure how far the explanations of one bundle can be trusted. A journal keeps the results of finished texts.

Threads share the texts: ONNX Runtime, which takes nearly all of the time, releases the GIL while it runs.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
from tqdm import tqdm

from sentiment.explain.methods.target import compares
from sentiment.model.cores import cores_granted
from sentiment_models.data.labelled import Example, read_examples
from sentiment_models.errors import BadData, ModelsError
from sentiment_models.evaluation.evaluate import Dataset, refuse_equal_names
from sentiment_models.explanations.aggregate import agreement, evidence_found, methods_found
from sentiment_models.explanations.corpus_heads import heads_found
from sentiment_models.explanations.findings import AttentionFound, DatasetFound, Findings, HeadsFound
from sentiment_models.explanations.journal import Journal
from sentiment_models.explanations.one_text import TextFound, UnsignedText, study_text, study_unsigned
from sentiment_models.explanations.rankings import WordCounts, lexicon_of
from sentiment_models.explanations.sources import OF_STUDY, code_of
from sentiment_models.explanations.subject import Subject
from sentiment_models.export.manifest import sha256
from sentiment_models.export.provenance import Json

TEXTS = 500
SEED = 7
# The number of texts, evenly spread, on which stability and bounds are measured. They take as long as everything else, and a mean over
# 100 texts is known to about 0.03.
CLOSE_TEXTS = 100
# By its name, because what makes bundles does not know the study, which needs torch.
ATTENTION_TESTS = "sentiment_models.study.attention_tests:attention_found"


@dataclass(frozen=True, slots=True)
class _Sample:
    """Texts drawn from one file with ``rows`` texts."""

    dataset: Dataset
    rows: int
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    """Everything that the files of a study share."""

    subject: Subject
    lexicon: WordCounts | None
    journal: Journal
    methods: Sequence[str]
    default: str
    seed: int
    threads: int


def study(
    bundle: Path,
    datasets: Sequence[Dataset],
    texts: int = TEXTS,
    seed: int = SEED,
    train: Sequence[Path] = (),
    resume: Path | None = None,
    threads: int = 0,
    precision: str | None = None,
    default: str | None = None,
    methods: Sequence[str] = (),
) -> Findings:
    """Study a bundle, with progress bars.

    On a busy machine with AVX2 a sentence of 19 words takes 16 s of a core, a text of 240 words 65 s without occlusion and Shapley values
    of words.

    Args:
        bundle: the bundle's directory.
        datasets: labelled files.
        texts: the most texts to draw from each file, balanced over the labels.
        seed: of the draw, of random orders and of intervals.
        train: labelled files for the lexicon, from which the drawn texts are excluded; empty: the other drawn texts of each file.
        resume: journal file, with which an interrupted study continues.
        threads: threads of the session; 0: the available cores.
        precision: the graph to study; None: the graph that would be served on this machine.
        default: the attribution that others are compared with; None: the first of the methods. With another default, records of an
            earlier run remain valid.
        methods: the attributions to study, the first also for the deciding words; empty: all that the bundle offers, its default first.

    Raises:
        BadData: a file cannot be used, or two data sets have the same name.
        ModelsError: ``resume`` belongs to another study or code version, the explain graph is damaged, the bundle lacks a method, or
            ``default`` is not studied.
        sentiment.errors.BadBundle: the bundle cannot be served on this machine.
    """
    refuse_equal_names(datasets)
    subject = Subject(bundle, precision)
    studied = methods_of(subject, methods)
    default = default or studied[0]
    if default not in studied:
        raise ModelsError(f"the default method {default!r} is not among the studied ones: {', '.join(studied)}")
    settings: dict[str, Json] = {
        "code": code_of(OF_STUDY),
        **subject.identity(),
        "texts": texts,
        "seed": seed,
        "methods": list(methods),
        "train": [sha256(path) for path in train],
        "datasets": {dataset.name: sha256(dataset.path) for dataset in datasets},
    }
    journal = Journal(resume, settings)
    samples = [_drawn(subject, dataset, texts, seed) for dataset in datasets]
    lexicon = lexicon_of(train, subject.labels, [example for one in samples for example in one.examples]) if train else None
    run = _Run(subject, lexicon, journal, studied, default, seed, threads or cores_granted())
    graph = subject.classifier.graph.file
    return Findings(
        bundle=subject.classifier.bundle.id,
        digest=subject.classifier.bundle.digest,
        graph=graph,
        graph_sha256=subject.classifier.manifest.files[graph].sha256,
        operators=subject.operators,
        default_method=default,
        seed=seed,
        datasets={one.dataset.name: _dataset(run, one) for one in samples},
        against_runner_up=compares(len(subject.labels), None, alone=False),
    )


def methods_of(subject: Subject, methods: Sequence[str]) -> Sequence[str]:
    """Return the attributions to study: those named, or all that the bundle offers, its default first.

    Raises:
        ModelsError: the bundle lacks one.
    """
    given = subject.explainer.methods
    for method in methods:
        if method not in given:
            raise ModelsError(f"no method {method!r}; the bundle has {', '.join(given)}")
    return methods or given


def balanced(examples: Sequence[Example], texts: int, labels: int, seed: int) -> list[Example]:
    """Draw texts in random order, balanced over the labels; other labels fill up for one with too few texts."""
    rng = np.random.default_rng(seed)
    shuffled = [examples[place] for place in rng.permutation(len(examples))]
    groups = [[example for example in shuffled if example.label == label] for label in range(labels)]
    chosen: list[Example] = []
    while len(chosen) < texts and any(groups):
        chosen += [group.pop() for group in groups if group]
    return [chosen[place] for place in rng.permutation(min(texts, len(chosen)))]


def _drawn(subject: Subject, dataset: Dataset, texts: int, seed: int) -> _Sample:
    examples = list(read_examples(dataset.path, subject.labels, pairs=subject.classifier.manifest.pairs, reading=dataset.reading))
    read = [example for example in balanced(examples, texts, len(subject.labels), seed) if subject.reads(example.whole)]
    if not read:
        raise BadData(f"{dataset.path}: none of the {texts} drawn texts has a word that the model reads")
    return _Sample(dataset, len(examples), tuple(read))


def _dataset(run: _Run, sample: _Sample) -> DatasetFound:
    texts = _texts(run, sample)
    methods, comparisons = methods_found(texts, run.default, run.seed)
    attention, heads = _attention(run, sample, texts)
    return DatasetFound(
        texts=len(texts),
        rows=sample.rows,
        sha256=sha256(sample.dataset.path),
        words=round(float(np.mean([text.words for text in texts])), 2),
        words_max=max(text.words for text in texts),
        accuracy=round(float(np.mean([text.label == text.right for text in texts])), 5),
        methods=methods,
        comparisons=comparisons,
        agreement=agreement([text.scores() for text in texts]),
        attention=attention,
        heads=heads,
        unseen=dict(Counter(change for text in texts for change in text.unseen)),
        deciding=evidence_found([text.deciding for text in texts if text.deciding is not None], run.seed),
        seconds=round(sum(text.seconds for text in texts), 1),
    )


def _texts(run: _Run, sample: _Sample) -> list[TextFound]:
    """Return the results of every text, from the journal if they are there. The default's unsigned order has separate records."""
    examples, journal, lexicon = sample.examples, run.journal, run.lexicon
    own = WordCounts.of(((example.whole, example.label) for example in examples), len(run.subject.labels))

    def keys(index: int) -> tuple[str, str]:
        key = f"{sample.dataset.name} {index}"
        return key, f"{key} {run.default} unsigned"

    def one(index: int) -> None:
        example, seed = examples[index], (run.seed, index)
        key, of_default = keys(index)
        # Evenly spread, so that the progress bar predicts the end.
        closely = index * CLOSE_TEXTS % len(examples) < CLOSE_TEXTS
        reading = run.subject.read(example.whole)
        if journal.get(key) is None:
            found = study_text(run.subject, reading, example.label, own, lexicon or own, lexicon is None, seed, closely, run.methods)
            journal.add(key, found.model_dump(mode="json"))
        if journal.get(of_default) is None:
            values = TextFound.model_validate(journal.get(key)).methods[run.default].values
            journal.add(of_default, study_unsigned(run.subject, reading, values, seed).model_dump(mode="json"))

    left = [index for index in range(len(examples)) if None in map(journal.get, keys(index))]
    with (
        ThreadPoolExecutor(run.threads) as pool,
        tqdm(total=len(examples), initial=len(examples) - len(left), desc=sample.dataset.name, unit="text", mininterval=5) as bar,
    ):
        # The first failure cancels the calls that have not started.
        for _ in pool.map(one, left):
            bar.update()
    records = [tuple(map(journal.get, keys(index))) for index in range(len(examples))]
    return [UnsignedText.model_validate(size).added_to(TextFound.model_validate(text)) for text, size in records]


def _attention(run: _Run, sample: _Sample, texts: Sequence[TextFound]) -> tuple[AttentionFound | None, HeadsFound | None]:
    """Return the results over all texts together; None without an explain graph."""
    subject, journal = run.subject, run.journal
    if subject.session is None:
        return None, None
    keys = [f"{sample.dataset.name} {part}" for part in ("attention", "heads")]
    if any(journal.get(key) is None for key in keys):
        # Read again: keeping the readings with their cached answers would take 1 MB per text.
        readings = [subject.read(example.whole) for example in sample.examples]
        right = [text.right for text in texts]
        if journal.get(keys[0]) is None:
            found = resolve_name(ATTENTION_TESTS)(subject, readings, right, [text.scores() for text in texts], run.seed)
            journal.add(keys[0], found.model_dump(mode="json"))
        if journal.get(keys[1]) is None:
            journal.add(keys[1], heads_found(subject, readings).model_dump(mode="json"))
    return AttentionFound.model_validate(journal.get(keys[0])), HeadsFound.model_validate(journal.get(keys[1]))
