"""Loads a bundle's explain graph and checks it on the golden set before it is used."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentiment.errors import BadBundle, CannotRead, OutOfMemory
from sentiment.explain.engine.golden_words import GoldenWords
from sentiment.model.bundle import GraphSpec
from sentiment.model.classifier import Classifier
from sentiment.model.execute import Execute, here
from sentiment.model.session import ExplainSession, Providers
from sentiment.model.tensors import pad
from sentiment.model.tokenizer import Row

# Far above rounding (1e-6), and far below the error of a wrong axis or of scores without softmax.
ROW_SUM_ERROR_MAX = 1e-3

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ExplainGraph:
    """An explain graph that passed its check. ``width``: length of a head's query vector. ``golden``: the words of the golden texts."""

    session: ExplainSession
    width: int
    golden: GoldenWords


def load_graph(classifier: Classifier, spec: GraphSpec, execute: Execute = here, providers: Providers = ()) -> ExplainGraph:
    """Load the explain graph and run the golden set through it, each text in a batch with a shorter or longer one.

    Logits must match those of the manifest (from the fp32 reference) within ``spec.tolerance``, and give the same label. Attention rows
    must be non-negative, sum to 1 and give padding nothing. All outputs must be finite. ``providers`` may be empty: ``spec`` names one.

    Raises:
        BadBundle: says what is wrong.
        CannotRead: its files cannot be read now.
        OutOfMemory: there is not enough memory for the golden set.
    """
    file = classifier.bundle.path / spec.file
    bundle = classifier.bundle
    try:
        # The files may have changed since the bundle was loaded: this happens at the first request for an explanation.
        session = ExplainSession(file, providers or spec.providers[:1], bundle.outside(spec.file))
        bundle.check(spec.file)
    except BadBundle as error:
        if _may_pass(error):
            raise CannotRead(str(error)) from error
        raise
    try:
        widths = {width for pair in _pairs(classifier) for width in _check(classifier, session, spec, pair, execute)}
    except (BadBundle, OutOfMemory):
        raise
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise BadBundle(f"{file}: cannot run the golden set: {error}") from error
    return ExplainGraph(session, max(widths), GoldenWords(classifier))


def _may_pass(error: BadBundle) -> bool:
    """Whether the error may be temporary: an existing file could not be read."""
    cause = error.__cause__
    if isinstance(cause, OSError):
        return not isinstance(cause, FileNotFoundError)
    # ONNX Runtime has no exception class for errors of the operating system, only this text.
    return "system error number" in str(cause)


def _pairs(classifier: Classifier) -> Iterator[list[int]]:
    """Indices of golden texts in pairs of different lengths, the shortest with the longest; -1 is the empty text."""
    golden = classifier.manifest.golden
    order = sorted(range(len(golden)), key=lambda number: classifier.tokenizer.encode(golden[number].text, golden[number].text_pair).tokens)
    order = [-1, *order]
    while order:
        yield [order.pop(), order.pop(0)] if len(order) > 1 else [order.pop()]


def _check(classifier: Classifier, session: ExplainSession, spec: GraphSpec, numbers: Sequence[int], execute: Execute) -> Iterator[int]:
    """Check a batch of golden texts. Yields the head width of each layer."""
    manifest = classifier.manifest
    texts = [(golden.text, golden.text_pair) for golden in manifest.golden]
    rows: list[Row] = [classifier.tokenizer.encode(*(texts[number] if number >= 0 else ("", None))) for number in numbers]
    feeds = pad(rows, session.inputs, classifier.tokenizer.pad_id, manifest.padding_side == "left")
    labels = np.array([manifest.labels.index(manifest.golden[number].label) if number >= 0 else 0 for number in numbers])
    found = session.run(feeds, session.outputs, labels, execute=execute)
    for place, number in enumerate(numbers):
        if number >= 0:
            _check_logits(classifier, spec, number, found["logits"][place])
        # The tokens of the row without the session's padding.
        length, longest = rows[place].tokens, max(row.tokens for row in rows)
        read = slice(longest - length, longest) if manifest.padding_side == "left" else slice(0, length)
        if not np.isfinite(found["embedding_dots"][place, read]).all():
            raise BadBundle(f"{spec.file}: embedding_dots of golden[{number}] are not all finite")
        for layer in range(session.layers + 1) if session.hidden else ():
            if not np.isfinite(found[f"hidden.{layer}"][place, read]).all():
                raise BadBundle(f"{spec.file}: hidden.{layer} of golden[{number}] is not all finite")
        for layer in range(session.layers):
            parts = (found[f"{kind}.{layer}"][place] for kind in ("attention", "attention_gradient", "value_norm", "query", "key"))
            _check_layer(f"{spec.file}: layer {layer} of golden[{number}]", *parts, read=read)
    yield from (found[f"query.{layer}"].shape[-1] for layer in range(session.layers))


def _check_logits(classifier: Classifier, spec: GraphSpec, number: int, logits: Floats) -> None:
    golden, labels = classifier.manifest.golden[number], classifier.manifest.labels
    if len(logits) != len(golden.logits):
        raise BadBundle(f"{spec.file}: has {len(logits)} logits per row, but the manifest says {len(golden.logits)}")
    error = float(np.abs(logits - np.array(golden.logits)).max())
    if not error <= spec.tolerance:  # also true for NaN
        raise BadBundle(f"{spec.file}: logits of golden[{number}] differ by {error:.6f}; the tolerance is {spec.tolerance}")
    if (label := labels[int(logits[: len(labels)].argmax())]) != golden.label:
        raise BadBundle(f"{spec.file}: golden[{number}] must have the label {golden.label}, got {label}")


def _check_layer(where: str, attention: Floats, gradient: Floats, norms: Floats, queries: Floats, keys: Floats, *, read: slice) -> None:
    weights = attention[:, read]
    error = float(np.abs(weights.sum(axis=2) - 1).max())
    if not error <= ROW_SUM_ERROR_MAX:
        raise BadBundle(f"{where}: the sum of an attention row differs from 1 by {error:.3g}; the limit is {ROW_SUM_ERROR_MAX}")
    padding = np.delete(weights, np.arange(attention.shape[2])[read], axis=2)
    if padding.any():
        raise BadBundle(f"{where}: attention to padding must be 0, got {float(np.abs(padding).max()):.3g}")
    if weights.min() < 0:
        raise BadBundle(f"{where}: attention must be at least 0, got {float(weights.min()):.3g}")
    slopes = weights[:, :, read] * gradient[:, read, read]
    for name, numbers in (("attention x gradient", slopes), ("value norms", norms[:, read]), ("queries", queries), ("keys", keys)):
        part = numbers[:, read] if name in ("queries", "keys") else numbers
        if not np.isfinite(part).all():
            raise BadBundle(f"{where}: {name} are not all finite")
