"""Loads a bundle for serving: the first of its graphs that passes the golden set on this machine."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from sentiment.batch_limits import rounding
from sentiment.errors import BadBundle
from sentiment.model.batch_mates import Inexact, Moved, measure
from sentiment.model.bundle import Bundle, Golden, GraphSpec, HeadTail, Manifest, WindowsSpec, load_bundle
from sentiment.model.effort import EffortSpec, log_odds_of
from sentiment.model.execute import Execute, here, result_of
from sentiment.model.parts import Parted, Reading, Sentence, Target
from sentiment.model.scores import Scored, contrary, probabilities, score, score_windows, unnamed
from sentiment.model.session import Fed, Session
from sentiment.model.tokenizer import Row, Tokenizer, Windows, tokenizer_of


@dataclass(frozen=True, slots=True)
class Parts:
    """The answers to parts of a text. ``sentences`` are the first ones of ``sentences_total``; 1,024: that many or more."""

    sentences: tuple[tuple[Sentence, Scored], ...]
    sentences_total: int
    targets: tuple[tuple[Target, Scored], ...]


class Classifier:
    """Tokenizer, session and calibration of one bundle. Immutable, for any thread; the session may restrict ``feeds`` and ``run``."""

    def __init__(self, bundle: Bundle, graph: GraphSpec, tokenizer: Tokenizer, session: Session, passed_over: Sequence[str] = ()) -> None:
        self.bundle = bundle
        self.manifest = bundle.manifest
        self.graph = graph
        self.tokenizer = tokenizer
        self.session = session
        self.head_tail = self.manifest.head_tail or HeadTail.default(self.manifest.max_tokens)
        self.windows = self.manifest.windows or WindowsSpec.default(self.manifest.max_tokens)
        self._mixed_at = self.manifest.mixed_at
        # Why the graphs that the bundle prefers are not served; empty if its first graph is.
        self.passed_over = tuple(passed_over)

    def with_rows_alone(self) -> "Classifier":
        """Return it with a session that runs each row by itself, so that batch mates change nothing. On the CPU only."""
        self.session.rows_alone = True
        return Classifier(self.bundle, self.graph.model_copy(update={"invariance": 0.0}), self.tokenizer, self.session, self.passed_over)

    def read_on(self, text: str, truncation: str) -> Row | Windows:
        """Read a text that ``tokenizer.encode`` truncates. ``truncation`` is one of READ_ON."""
        if truncation == "head_tail":
            return self.tokenizer.encode_head_tail(text, self.head_tail.head)
        return self.tokenizer.encode_windows(text, self.windows.size, self.windows.stride, self.windows.count_max)

    def feeds(self, rows: Sequence[Row]) -> Fed:
        """Lay rows out for the session."""
        return self.session.feeds(rows, self.tokenizer.pad_id, self.manifest.padding_side == "left")

    def part_of(self, row: Row) -> Row | None:
        """What adaptive effort reads first of a text that is in this row; None: all of it."""
        return part_of(row, self.manifest.effort)

    def suffices(self, logits: Sequence[float]) -> bool:
        """Whether the answer to the part of a text makes reading the whole unnecessary. Not if a logit is NaN."""
        manifest = self.manifest
        return manifest.effort is not None and log_odds_of(logits, len(manifest.labels)) >= manifest.effort.log_odds

    def run(self, rows: Sequence[Row]) -> list[list[float]]:
        """Pad, run and return the raw logits of each row, in order."""
        logits: list[list[float]] = self.session.run(self.feeds(rows))[: len(rows)].tolist()
        return logits

    def stated(self, rows: Sequence[Row]) -> list[list[float]]:
        """The probabilities of rows that run as one batch: of the labels, and of the output beside them.

        Raises:
            BadBundle: the graph cannot run them.
        """
        labels, temperature = len(self.manifest.labels), self.manifest.calibration.temperature
        try:
            found = self.run(rows)
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            longest = max(row.tokens for row in rows)
            file = self.bundle.path / self.graph.file
            raise BadBundle(f"{file}: cannot run a batch of {len(rows)} rows of up to {longest} tokens: {error}") from error
        # Of the output beside the labels, its share in the softmax of all.
        return [[*probabilities(one[:labels], temperature), *probabilities(one, temperature)[labels:]] for one in found]

    def score(self, logits: Sequence[float]) -> Scored:
        """The calibrated answer for the raw logits of one row."""
        manifest, calibration = self.manifest, self.manifest.calibration
        return score(logits, manifest.labels, calibration.temperature, calibration.abstain_below, self._mixed_at)

    def score_windows(self, windows: Sequence[Sequence[float]]) -> Scored:
        """The calibrated answer for one text from the raw logits of its windows."""
        labels, calibration = self.manifest.labels, self.manifest.calibration
        return score_windows(windows, self.windows.combine, labels, calibration.temperature, calibration.abstain_below, self._mixed_at)

    def answer(self, reading: Reading, logits: Sequence[Sequence[float]]) -> tuple[Scored, Parts | None]:
        """The calibrated answers for one text from the raw logits of its rows: to the whole, and to the parts that were read.

        Raises:
            ValueError: a logit is not finite.
        """
        if not isinstance(reading, Parted):
            return self.score(logits[0]) if len(logits) == 1 else self.score_windows(logits), None
        whole, _ = self.answer(reading.whole, logits[: len(reading.whole.rows)])
        rest = map(self.score, logits[len(reading.whole.rows) :])
        sentences = tuple((one, whole if one.row is None else next(rest)) for one in reading.sentences)
        targets = tuple((one, self._unnamed() if one.row is None else next(rest)) for one in reading.targets)
        if contrary([scored for _, scored in sentences]):
            whole = replace(whole, mixed=True)
        return whole, Parts(sentences, reading.sentences_total, targets)

    def _unnamed(self) -> Scored:
        assert self.manifest.neutral is not None, "a model for targets has this label"
        return unnamed(self.manifest.labels, self.manifest.neutral)


def part_of(row: Row, effort: EffortSpec | None) -> Row | None:
    """What a rule of adaptive effort reads first of a text that is in this row; None: all of it."""
    return row.part(effort.head, effort.tail) if effort is not None and row.tokens >= effort.tokens_min else None


def load_classifier(path: Path, precision: str | None = None, execute: Execute = here, inexact: Inexact = "alone") -> Classifier:
    """Load a bundle and check it on its golden set: its answers, and how far they depend on batch mates.

    Args:
        path: the bundle's directory.
        precision: of the graph to serve; None: the first graph that passes, in the manifest's order.
        execute: runs the heavy parts: hashing files, loading graphs and running them.
        inexact: what to do with a graph whose answers depend on batch mates.

    Raises:
        BadBundle: no graph can be served here; the message has the reason of each.
    """
    bundle = load_bundle(path, execute)
    manifest = bundle.manifest
    tokenizer = tokenizer_of(path / "tokenizer.json", manifest.max_tokens, manifest.files["tokenizer.json"].sha256)
    bundle.check("tokenizer.json")
    _check_long_texts(path, manifest, tokenizer.special_tokens)
    reasons: list[str] = []
    for graph in manifest.graphs.classify:
        if precision not in (None, graph.precision):
            continue
        try:
            session = result_of(execute, partial(load_session, bundle, graph))
            classifier = Classifier(bundle, graph, tokenizer, session, reasons)
            failure = result_of(execute, partial(next, golden_failures(classifier), ""))
            if failure:
                raise BadBundle(f"{path / graph.file}: {failure}")
            return result_of(execute, partial(_settled, classifier, inexact))
        except BadBundle as error:
            reasons.append(str(error))
    if not reasons:
        available = ", ".join(graph.precision for graph in manifest.graphs.classify)
        raise BadBundle(f"{path}: has no {precision} graph; it has {available}")
    raise BadBundle("; ".join(reasons))


def batch_mates(classifier: Classifier) -> Moved:
    """Measure how far batch mates change the answers to golden texts and to two that are as short as can be.

    Raises:
        BadBundle: the graph cannot run a batch.
    """
    return measure(classifier.stated, mates_of(classifier.tokenizer, classifier.manifest.golden))


def mates_of(tokenizer: Tokenizer, golden: Sequence[Golden]) -> list[Row]:
    """The rows that ``batch_mates`` measures."""
    return [*(tokenizer.encode(one.text, one.text_pair) for one in golden), *map(tokenizer.encode, ("", "a"))]


def mates_failure(graph: GraphSpec, found: Moved) -> str:
    """Why the manifest's invariance is not true; empty if it is. Rounding is allowed, whatever the manifest says."""
    if found.probability <= max(graph.invariance, rounding(graph.precision)):
        return ""
    return f"batch mates change a probability by {found.probability:.2g}; the manifest says by {graph.invariance:.2g} at most"


def _settled(classifier: Classifier, inexact: Inexact) -> Classifier:
    """The classifier as it is served, after the check of batch mates, which rows that run alone do not have."""
    graph = classifier.graph
    if not graph.exact and inexact == "alone":
        return classifier.with_rows_alone()
    file = classifier.bundle.path / graph.file
    if failure := mates_failure(graph, batch_mates(classifier)):
        raise BadBundle(f"{file}: {failure}; sentiment-models import-onnx makes a bundle of the file with what is measured")
    if graph.exact or inexact == "batch":
        return classifier
    raise BadBundle(
        f"{file}: batch mates may change a probability by {graph.invariance:.2g}; inexact_models = refuse takes graphs with "
        f"{rounding(graph.precision):g} at most, and inexact_models = alone runs each text of this one by itself"
    )


def load_session(bundle: Bundle, graph: GraphSpec) -> Session:
    """Load a graph on the CPU.

    Raises:
        BadBundle: it cannot be loaded, or its files differ from the manifest.
    """
    outside, file = bundle.outside(graph.file), bundle.path / graph.file
    session = Session(file, graph.providers[0], bundle.manifest.logits, outside, graph.pairs_fit)
    # Checked again after loading, in case the file was replaced between the first check and the load.
    bundle.check(graph.file)
    return session


def use_threads(classifier: Classifier, threads: int) -> str:
    """Load the graph for wide runs too, if it answers the golden set with the same bits in ``threads`` threads.

    Returns:
        Why it runs in one thread only; empty if it does not.
    """
    bundle, session = classifier.bundle, classifier.session
    file = classifier.graph.file
    try:
        session.use_threads(bundle.path / file, threads, bundle.outside(file))
        bundle.check(file)
        for number, golden in enumerate(classifier.manifest.golden):
            feeds = classifier.feeds([classifier.tokenizer.encode(golden.text, golden.text_pair)])
            if not np.array_equal(session.run(feeds), session.run_wide(feeds)):
                raise BadBundle(f"{bundle.path / file}: golden[{number}]: other logits in {threads} threads than in one")
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        session.use_one_thread()
        return str(error) or repr(error)
    return ""


def _check_long_texts(path: Path, manifest: Manifest, special_tokens: int) -> None:
    """Check the limits that depend on the number of special tokens, which the manifest does not have."""
    head_tail, windows = manifest.head_tail, manifest.windows
    if head_tail and head_tail.head >= manifest.max_tokens - special_tokens:
        room = manifest.max_tokens - special_tokens
        raise BadBundle(f"{path}: head_tail.head must be less than {room} (the text tokens of a row), got {head_tail.head}")
    if windows and windows.stride > windows.size - special_tokens:
        room = windows.size - special_tokens
        raise BadBundle(f"{path}: windows.stride must be at most {room} (the text tokens of a window), got {windows.stride}")


def golden_failures(classifier: Classifier) -> Iterator[str]:
    """Run the golden set, one text at a time, and yield a message for each difference."""
    for number, golden in enumerate(classifier.manifest.golden):
        label, error = golden_error(classifier, golden)
        if label != golden.label:
            yield f"golden[{number}]: expected {golden.label}, got {label}"
        elif not error <= classifier.graph.tolerance:  # also true for NaN
            yield f"golden[{number}]: the logit error is {error:.4f}; the tolerance is {classifier.graph.tolerance}"


def golden_error(classifier: Classifier, golden: Golden) -> tuple[str, float]:
    """The label, and the largest difference from the recorded logits.

    Raises:
        BadBundle: the graph cannot run, or returns another number of logits.
    """
    file = classifier.bundle.path / classifier.graph.file
    try:
        logits = classifier.run([classifier.tokenizer.encode(golden.text, golden.text_pair)])[0]
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # ONNX Runtime's exceptions share no base class, and the tokenizer's panics are not Exceptions
        raise BadBundle(f"{file}: cannot run the golden set: {error}") from error
    if len(logits) != len(golden.logits):
        raise BadBundle(f"{file}: returns {len(logits)} logits per row; the manifest says {len(golden.logits)}")
    errors = [abs(found - known) for found, known in zip(logits, golden.logits, strict=True)]
    labels = classifier.manifest.labels
    label = labels[max(range(len(labels)), key=logits.__getitem__)]
    return label, max(errors, key=lambda error: (math.isnan(error), error))
