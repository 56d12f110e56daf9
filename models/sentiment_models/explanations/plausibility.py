"""Agreement of word scores with human rationales. It does not measure faithfulness: a model may be right for other reasons.

The rationales are those of ERASER (DeYoung et al. 2020), which mark some of a review's reasons but rarely all.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError
from tqdm import tqdm

from sentiment.errors import InvalidInput
from sentiment.explain.methods import registry
from sentiment.explain.methods.erasure import Floats
from sentiment.model.cores import cores_granted
from sentiment.model.words import Word
from sentiment_models.data.labelled import PLAIN, Example
from sentiment_models.data.text_files import check_text, lines
from sentiment_models.errors import BadData
from sentiment_models.explanations.findings import PlausibilityFound, Plausible
from sentiment_models.explanations.intervals import paired_intervals
from sentiment_models.explanations.journal import Journal
from sentiment_models.explanations.rankings import WordCounts, lexicon_of, order, scores
from sentiment_models.explanations.sources import OF_RATIONALES, code_of
from sentiment_models.explanations.subject import Reading, Subject
from sentiment_models.export.manifest import sha256
from sentiment_models.export.provenance import Json
from sentiment_models.stored import problem

DOCUMENTS = 50
SEED = 7
# Without Shapley values of the whole text: one order of 400 words and its reverse take 800 rows of 512 tokens per review, twice as many
# as occlusion, and the values would still be noisy.
METHODS = tuple(name for name in registry.METHODS if name != "shapley")
# Share of the words for an F1 that does not use the rationale's own share; the same as in ``sentiment.explain.methods.evidence``.
SHARE = 0.2
DIGITS = 5

Marks = npt.NDArray[np.bool_]


class Document(BaseModel):
    """A line of an ERASER file. ``rationales``: token ranges [start, end). ``label``: an index or a label name."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    label: int | str
    tokens: tuple[str, ...]
    rationales: tuple[tuple[int, int], ...]

    @property
    def text(self) -> str:
        """The tokens joined by spaces."""
        return " ".join(self.tokens)

    def marks(self, words: Sequence[Word]) -> Marks:
        """Return which words of ``text`` are marked, [words]: those that include a character of a marked token."""
        starts = list(accumulate((len(token) + 1 for token in self.tokens), initial=0))
        marked = np.zeros(starts[-1], np.bool_)
        for first, end in self.rationales:
            marked[starts[first] : starts[end] - 1] = True
        return np.array([marked[word.start : word.end].any() for word in words], np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class _Marked:
    """A document as the model reads it, and which words are marked; ``label`` is the index of the correct label."""

    reading: Reading
    marks: Marks
    label: int


def read_documents(path: Path, labels: Sequence[str]) -> list[tuple[Document, int]]:
    """Read a .jsonl file of ERASER, compressed or not; each document comes with the index of its label.

    Raises:
        BadData: the file cannot be read, or is empty; names the file and the line.
    """
    found: list[tuple[Document, int]] = []
    names: dict[int | str, int] = {name: index for index, name in enumerate(labels)} | {index: index for index in range(len(labels))}
    for place, line in lines(path, PLAIN):
        where = f"{path}: {place}"
        try:
            document = Document.model_validate_json(line)
        except ValidationError as error:
            raise BadData(f"{where}: {problem(error, 'the line')}; expected ERASER's tokens, rationales and label") from error
        check_text(document.text, where)
        for first, end in document.rationales:
            if not 0 <= first < end <= len(document.tokens):
                raise BadData(f"{where}: rationale [{first}, {end}) is outside the document's {len(document.tokens)} tokens")
        if document.label not in names:
            raise BadData(f"{where}: unknown label {document.label!r}; the model has {', '.join(labels)}")
        found.append((document, names[document.label]))
    if not found:
        raise BadData(f"{path}: has no documents")
    return found


def open_journal(
    subject: Subject, file: Path, documents: int, seed: int, train: Sequence[Path], resume: Path | None, methods: Sequence[str] = ()
) -> Journal:
    """Open the journal of ``plausibility_found`` with these arguments, without writing to it.

    Raises:
        ModelsError: ``resume`` belongs to another run.
    """
    settings: dict[str, Json] = {
        "code": code_of(OF_RATIONALES),
        **subject.identity(),
        "rationales": sha256(file),
        "documents": documents,
        "seed": seed,
        "methods": list(methods),
        "train": [sha256(path) for path in train],
    }
    return Journal(resume, settings)


def plausibility_found(
    subject: Subject,
    file: Path,
    documents: int = DOCUMENTS,
    seed: int = SEED,
    train: Sequence[Path] = (),
    resume: Path | None = None,
    methods: Sequence[str] = (),
    threads: int = 0,
) -> PlausibilityFound:
    """Compare word scores for the correct label with rationales, with a progress bar.

    Only words within the model's limit count, and only documents where some but not all of them are marked. ``random`` is the
    expectation over random orders, computed exactly. A review of 512 tokens takes 50 s of one core, 36 of them for occlusion: 50
    reviews take 20 minutes on two cores.

    Args:
        subject: the bundle; without an explain graph only occlusion is measured.
        file: documents with rationales.
        documents: the most documents to draw.
        seed: of the draw, of the order of words with equal scores, and of the intervals.
        train: labelled files for the lexicon, from which the drawn documents are excluded; empty: no lexicon.
        resume: journal file of this run.
        methods: the attributions; empty: all that the bundle offers. Shapley values of the whole text are left out.
        threads: threads of the session; 0: the available cores.

    Raises:
        BadData: a file cannot be used, or none of its documents can.
        ModelsError: ``resume`` belongs to another run.
    """
    everything = read_documents(file, subject.labels)
    journal = open_journal(subject, file, documents, seed, train, resume, methods)
    chosen = _chosen(subject, everything, documents, seed, file)
    lexicon = lexicon_of(train, subject.labels, [Example(one.reading.texts[0], one.label) for one in chosen]) if train else None

    def one(index: int) -> None:
        values = _scores(subject, chosen[index], lexicon, methods or subject.explainer.methods)
        agreement = _agreement(values, chosen[index].marks, np.random.default_rng((seed, index)))
        journal.add(str(index), agreement)

    left = [index for index in range(len(chosen)) if journal.get(str(index)) is None]
    with (
        ThreadPoolExecutor(threads or cores_granted()) as pool,
        tqdm(total=len(chosen), initial=len(chosen) - len(left), desc="rationales", unit="document", mininterval=5) as bar,
    ):
        # The first failure cancels the calls that have not started.
        for _ in pool.map(one, left):
            bar.update()
    records = [journal.get(str(index)) or {} for index in range(len(chosen))]
    return PlausibilityFound(
        documents=len(chosen),
        prevalence=round(float(np.mean([marked.marks.mean() for marked in chosen])), DIGITS),
        sha256=sha256(file),
        methods=_means(records, seed),
    )


def _chosen(subject: Subject, everything: Sequence[tuple[Document, int]], documents: int, seed: int, file: Path) -> list[_Marked]:
    found: list[_Marked] = []
    for place in np.random.default_rng(seed).permutation(len(everything)):
        document, label = everything[int(place)]
        try:
            reading = subject.read(document.text)
        except InvalidInput:
            continue
        marks = document.marks(reading.encoded.words)
        if marks.any() and not marks.all():
            found.append(_Marked(reading, marks, label))
        if len(found) == documents:
            break
    if not found:
        raise BadData(f"{file}: no document has both marked and unmarked words within the model's limit")
    return found


def _scores(subject: Subject, one: _Marked, lexicon: WordCounts | None, methods: Sequence[str]) -> dict[str, Floats]:
    """Return the scores for the correct label by method. Without ``uniform``, whose order is random."""
    methods = [name for name in methods if name in METHODS]
    scored = scores(subject, one.reading, one.reading.target(one.label), lexicon=lexicon, methods=methods)
    return {name: found.values for name, found in scored.items() if name != "uniform"}


def _agreement(values_by_method: dict[str, Floats], marks: Marks, rng: np.random.Generator) -> dict[str, Json]:
    """Return by method [average precision, F1 at the rationale's share, F1 at SHARE], and the expectations of random orders."""
    n, marked = len(marks), int(marks.sum())
    fifth = int(np.ceil(SHARE * n - 1e-9))
    found: dict[str, Json] = {}
    for name, values in values_by_method.items():
        first = order(values, rng)
        found[name] = [average_precision(values, marks), f1_of_first(first, marks, marked), f1_of_first(first, marks, fifth)]
    found["random"] = [precision_of_chance(n, marked), f1_of_chance(n, marked, marked), f1_of_chance(n, marked, fifth)]
    return found


def _means(records: Sequence[dict[str, Json]], seed: int) -> dict[str, Plausible]:
    names = list(records[0])
    values = np.array([[one[name] for name in names] for one in records], np.float64)
    found = {}
    for place, (name, interval) in enumerate(zip(names, paired_intervals(values[:, :, 0], seed), strict=True)):
        assert interval is not None
        auprc, share, fifth = (round(float(value), DIGITS) for value in values[:, place].mean(axis=0))
        found[name] = Plausible(
            auprc=auprc,
            auprc_interval=(round(interval.low, DIGITS), round(interval.high, DIGITS)),
            f1_at_share=share,
            f1_at_20=fifth,
        )
    return found


def average_precision(values: Floats, marks: Marks) -> float:
    """Return the area under the precision-recall curve as a sum of steps; words with equal scores form one step.

    Args:
        values: scores [n], larger for likelier reasons.
        marks: [n], at least one marked.
    """
    _, places = np.unique(-values, return_inverse=True)
    hits, sizes = np.bincount(places, marks), np.bincount(places)
    precision = np.cumsum(hits) / np.cumsum(sizes)
    return float((hits * precision).sum() / hits.sum())


def precision_of_chance(n: int, marked: int) -> float:
    """Return the mean ``average_precision`` over all orders of ``n`` words, which is slightly above the marked share.

    The word at rank k is marked in a share of marked / n of the orders; then (marked - 1) / (n - 1) of the words before it are marked.
    """
    ranks = np.arange(1, n + 1)
    others = (marked - 1) / (n - 1) if n > 1 else 0.0
    return float(((1 + (ranks - 1) * others) / ranks).mean())


def f1_of_first(first: npt.NDArray[np.int64], marks: Marks, count: int) -> float:
    """Return the F1 of predicting the first ``count`` words of an order [n] as marked."""
    return float(2 * marks[first[:count]].sum() / (count + marks.sum()))


def f1_of_chance(n: int, marked: int, count: int) -> float:
    """Return the mean F1 of ``count`` random words out of ``n``."""
    return 2 * count * marked / n / (count + marked)
