"""Check a finished bundle: everything that the service checks when it loads, and what only an export checks.

``verify`` checks graphs during an export. This module checks a bundle at any later time, on any machine.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sentiment.errors import BadBundle
from sentiment.extras import to_install
from sentiment.model.batch_mates import interleave
from sentiment.model.bundle import Bundle, GraphSpec, load_bundle
from sentiment.model.classifier import Classifier, golden_error, mates_of
from sentiment.model.session import RUNTIME_VERSION, ExplainSession, Session
from sentiment.model.tensors import pad
from sentiment.model.tokenizer import Row, Tokenizer
from sentiment_models.errors import ModelsError
from sentiment_models.export.golden import PARAGRAPH
from sentiment_models.export.graphs.graph_rules import graph_faults, read_graph, shape_faults
from sentiment_models.export.inference import Graph
from sentiment_models.export.labels import outputs_of
from sentiment_models.export.manifest import (
    CARD_FILE,
    CONFIG_FILE,
    MANIFEST_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    digest_without_card,
    read_object,
)
from sentiment_models.export.positions import positions_of
from sentiment_models.export.spellings import vocabulary_of
from sentiment_models.export.verify import (
    COMPARED_TOKENS_MAX,
    check_explain_parity,
    check_parity,
    explain_parity,
    movement,
    parity,
)
from sentiment_models.export.weights import Stored, stored_tensors

if TYPE_CHECKING:
    from sentiment_models.export.checkpoint import Checkpoint

# How transformers names the labels of a configuration without names.
_NAMELESS = {"0": "LABEL_0", "1": "LABEL_1"}


@dataclass(frozen=True, slots=True)
class Check:
    """The name of a check, whether it passed (None: left out, because a package or a card is missing), and what it found."""

    name: str
    good: bool | None
    found: str

    @property
    def line(self) -> str:
        """The line for the terminal, in the format of ``sentiment check``."""
        return f"{'skip' if self.good is None else 'ok' if self.good else 'BAD':5} {self.name}: {self.found}"


def examine(path: Path, signature: Path | None = None, key: Path | None = None) -> Iterator[Check]:
    """Run all checks of a bundle, one by one. If its files are damaged, the other checks are skipped.

    Without torch, the comparison with the weights is left out, and with it those of the graphs that need it.

    Args:
        path: the bundle's folder.
        signature: a signature of the bundle, to check with ``key``.
        key: the signer's public key.
    """
    try:
        subject = _Subject(load_bundle(path))
    except BadBundle as error:
        yield Check("files", False, str(error))
        return
    manifest = subject.bundle.manifest
    yield Check("files", True, f"{subject.bundle.id}, {len(manifest.files)} files match the manifest, digest {subject.bundle.digest}")
    if signature and key:
        yield _check("signature", partial(_signed, path, signature, key))
    for name, look in (("folder", _folder), ("tokenizer", _tokenizer), ("configuration", _configuration)):
        yield _check(name, partial(look, subject))
    # One that the manifest lists is there, or the bundle would not have been loaded.
    missing = Check("model card", None, f"no {CARD_FILE} yet; write it with sentiment-models card")
    yield _check("model card", partial(_card, subject)) if subject.bundle.card else missing
    safe = {}
    for file in sorted(name for name in manifest.files if name.endswith(".onnx")):
        check = _check(f"{file} content", partial(_content, subject, file))
        safe[file] = check.good
        yield check
    try:
        # Without weights nothing can be compared with torch.
        alone = Check("weights", None, f"none to compare with: the bundle has no {WEIGHTS_FILE}, as one of an own ONNX file")
        weights = _check("weights", partial(_weights, subject)) if WEIGHTS_FILE in manifest.files else alone
    except ModuleNotFoundError as error:
        weights = Check("weights", None, f"not compared with torch, nor are the graphs: {to_install(error, 'models') or error}")
    yield weights
    for spec in manifest.graphs.classify:
        if not safe.get(spec.file):
            yield Check(spec.file, False, "not run, because its content check failed")
            continue
        yield _check(f"{spec.file} golden set", partial(_golden, subject, spec))
        if weights.good:
            yield _check(f"{spec.file} against the weights", partial(_parity, subject, spec))
        yield _check(f"{spec.file} batch mates", partial(_movement, subject, spec))
    explain = manifest.graphs.explain
    if explain and weights.good and safe.get(explain.file):
        yield _check(f"{explain.file} against the weights", partial(_explain, subject, explain))


def _check(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except ModuleNotFoundError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions share no base class, and torch's are many
        ours = isinstance(error, BadBundle | ModelsError)
        return Check(name, False, str(error) if ours else f"{type(error).__name__}: {error}")


def _raise(faults: Sequence[str]) -> None:
    if faults:
        raise BadBundle("; ".join(faults))


class _Subject:
    """A bundle whose hashes match, and the objects that several checks share, each made once."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.path, self.manifest = bundle.path, bundle.manifest
        self._graphs: dict[str, Graph] = {}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.path / TOKENIZER_FILE, self.manifest.max_tokens)

    @cached_property
    def rows(self) -> list[Row]:
        """The rows that a load measures, and an import before: of the golden texts and of the shortest ones."""
        return mates_of(self.tokenizer, self.manifest.golden)

    @cached_property
    def longest(self) -> Row:
        """A row of the maximum length, of at most COMPARED_TOKENS_MAX tokens."""
        tokenizer = Tokenizer(self.path / TOKENIZER_FILE, min(self.manifest.max_tokens, COMPARED_TOKENS_MAX))
        return tokenizer.encode(" ".join([PARAGRAPH] * (1 + self.manifest.max_tokens // 40)))

    def graph(self, spec: GraphSpec) -> Graph:
        if spec.file not in self._graphs:
            session = Session(self.path / spec.file, spec.providers[0], self.manifest.logits, pairs_fit=spec.pairs_fit)
            self._graphs[spec.file] = Graph(self.tokenizer, session, self.manifest.padding_side == "left")
        return self._graphs[spec.file]

    @cached_property
    def checkpoint(self) -> "Checkpoint":
        """The bundle's own weights in torch."""
        from sentiment_models.export.checkpoint import Checkpoint  # noqa: PLC0415  # imports torch, which the other checks do not need

        return Checkpoint.of_bundle(self.path)

    @cached_property
    def stored(self) -> dict[str, Stored]:
        """The tensors of the weights; none in a bundle of an own ONNX file."""
        return stored_tensors(self.path / WEIGHTS_FILE) if WEIGHTS_FILE in self.manifest.files else {}

    @cached_property
    def config(self) -> dict[str, object]:
        return dict(read_object(self.path / CONFIG_FILE))


def _signed(path: Path, signature: Path, key: Path) -> str:
    from sentiment_models.export.signature import check_signature  # noqa: PLC0415  # only signatures need cryptography

    check_signature(path, signature, key)
    return f"{signature.name} matches the key {key.name}"


def _folder(subject: _Subject) -> str:
    """Check that the folder has all files of the format, no other file, and no links or folders."""
    wanted = {*subject.manifest.files, CONFIG_FILE, MANIFEST_FILE, CARD_FILE}
    found = {path.name: path for path in subject.path.iterdir()}
    faults = [f"lacks {name}" for name in sorted(wanted - found.keys() - {CARD_FILE})]
    faults += [f"has {name}, which the manifest does not list" for name in sorted(found.keys() - wanted)]
    faults += [f"{CONFIG_FILE} is not listed in the manifest"] * (CONFIG_FILE not in subject.manifest.files)
    odd = sorted(name for name, path in found.items() if path.is_symlink() or not path.is_file())
    faults += [f"{name} is not a regular file" for name in odd if name in wanted]
    _raise(faults)
    return f"{len(found)} regular files, none missing, none extra"


def _tokenizer(subject: _Subject) -> str:
    path = subject.path / TOKENIZER_FILE
    vocabulary = vocabulary_of(path)
    rows = subject.config.get("vocab_size")
    largest = max(vocabulary.values(), default=0)
    faults = [] if isinstance(rows, int) else [f"{CONFIG_FILE} has no vocab_size"]
    if isinstance(rows, int) and largest >= rows:
        faults.append(f"has token ids up to {largest}, but the vocabulary of {CONFIG_FILE} ends at {rows - 1}")
    if (
        isinstance(rows, int)
        and subject.stored
        and not any(len(place.dims) == 2 and place.dims[0] == rows for place in subject.stored.values())
    ):
        faults.append(f"{WEIGHTS_FILE} has no embedding table of {rows} rows, the vocab_size of {CONFIG_FILE}")
    pad = subject.config.get("pad_token_id")
    if isinstance(pad, int) and pad != subject.tokenizer.pad_id:
        faults.append(f"pads with id {subject.tokenizer.pad_id}, but {CONFIG_FILE} has pad_token_id {pad}")
    _raise(faults)
    words = len(set(vocabulary.values()))
    spelled = f", {len(vocabulary) - words:,} spellings" if len(vocabulary) > words else ""
    return f"{words:,} tokens for {rows:,} rows of the embedding table{spelled}"


def _configuration(subject: _Subject) -> str:
    config, manifest = subject.config, subject.manifest
    names = config.get("id2label", _NAMELESS)
    labels = tuple(names[key] for key in sorted(names, key=int)) if isinstance(names, dict) and all(map(str.isdecimal, names)) else names
    outputs = outputs_of(manifest.labels, manifest.mixed)
    faults = [] if labels == outputs else [f"labels are {labels}, but the manifest has {outputs}"]
    if config.get("model_type") != manifest.architecture:
        faults.append(f"model_type is {config.get('model_type')}, but the manifest has {manifest.architecture}")
    positions = positions_of(config)
    if positions is not None and positions < manifest.max_tokens:
        faults.append(
            f"max_position_embeddings is {config.get('max_position_embeddings')}, so the model reads {positions} tokens, but max_tokens of "
            f"the manifest is {manifest.max_tokens}"
        )
    _raise(faults)
    return f"{manifest.architecture}, {', '.join(manifest.labels)}, {manifest.max_tokens} tokens"


def _card(subject: _Subject) -> str:
    card, listed = subject.bundle.card, CARD_FILE in subject.manifest.files
    # Earlier versions did not list it; it names the digest then.
    digest = digest_without_card(dict(read_object(subject.path / MANIFEST_FILE))) if listed else subject.bundle.digest
    missing = [text for text in (subject.bundle.id, digest) if text not in card]
    if missing:
        raise BadBundle(f"does not name {' and '.join(missing)}; write it with sentiment-models card")
    return f"{CARD_FILE} names {subject.bundle.id} and {'its manifest' if listed else 'its digest, but the manifest does not list it'}"


def _content(subject: _Subject, file: str) -> str:
    model = read_graph(subject.path / file)
    if model is None:
        raise BadBundle("not an ONNX file")
    sizes = {name: spec.bytes for name, spec in subject.manifest.files.items()}
    faults = list(graph_faults(model, sizes, subject.stored))
    for spec in subject.manifest.graphs.classify:
        if spec.file == file:
            faults += shape_faults(model, spec, subject.manifest.logits)
    _raise(faults)
    outside = sum(bool(tensor.external_data) for tensor in model.graph.initializer)
    return f"{len(model.graph.node):,} known operators, {len(model.graph.initializer):,} tensors, {outside:,} of them from {WEIGHTS_FILE}"


def _weights(subject: _Subject) -> str:
    """Check that torch computes the manifest's golden logits from the bundle's weights."""
    checkpoint = subject.checkpoint
    outputs = outputs_of(subject.manifest.labels, subject.manifest.mixed)
    if tuple(checkpoint.labels) != outputs:
        raise BadBundle(f"the labels are {', '.join(checkpoint.labels)}, but the manifest has {', '.join(outputs)}")
    allowed = min(spec.tolerance for spec in subject.manifest.graphs.classify)
    left = subject.manifest.padding_side == "left"
    worst = 0.0
    for number, golden in enumerate(subject.manifest.golden):
        row = subject.tokenizer.encode(golden.text, golden.text_pair)
        found = checkpoint.logits(pad([row], checkpoint.family.inputs, subject.tokenizer.pad_id, left))[0]
        error = float(np.abs(found - np.array(golden.logits)).max())
        if not error <= allowed:  # also true for NaN
            raise BadBundle(f"logits of golden[{number}] in torch differ by {error:.4f}; the tolerance is {allowed}")
        worst = max(worst, error)
    return f"logits of {len(subject.manifest.golden)} golden texts in torch differ by at most {worst:.2g}"


def _golden(subject: _Subject, spec: GraphSpec) -> str:
    graph = subject.graph(spec)
    classifier = Classifier(subject.bundle, spec, subject.tokenizer, graph.session)
    worst = 0.0
    for number, golden in enumerate(subject.manifest.golden):
        label, error = golden_error(classifier, golden)
        if label != golden.label or not error <= spec.tolerance:
            raise BadBundle(
                f"golden[{number}] is {golden.label}, got {label}; logits differ by {error:.4f}; the tolerance is {spec.tolerance}"
            )
        worst = max(worst, error)
    return (
        f"{len(subject.manifest.golden)} labels correct, logits differ by at most {worst:.4f} (tolerance {spec.tolerance}) "
        f"with ONNX Runtime {RUNTIME_VERSION}"
    )


def _parity(subject: _Subject, spec: GraphSpec) -> str:
    rows = interleave([*subject.rows, subject.longest])
    measured = parity(subject.graph(spec), subject.checkpoint.logits, rows, len(subject.manifest.labels))
    check_parity(spec.precision, measured)
    return (
        f"{measured.rows} rows in mixed batches, logits differ from torch by at most {measured.logit_error_max:.2g}, "
        f"probabilities by {measured.probability_error_mean:.2g} on average"
    )


def _explain(subject: _Subject, spec: GraphSpec) -> str:
    session = ExplainSession(subject.path / spec.file, spec.providers[:1])
    rows = interleave([*subject.rows, subject.longest])
    measured = explain_parity(session, subject.tokenizer, subject.checkpoint.explained, rows)
    check_explain_parity(measured)
    return (
        f"{measured.points} rows in mixed batches, {session.layers} layers of {session.heads} heads, differs from torch by at most "
        f"{measured.largest:.2g} of the size of an output"
    )


def _movement(subject: _Subject, spec: GraphSpec) -> str:
    moved = movement(subject.graph(spec), subject.rows, len(subject.manifest.labels), temperature=subject.manifest.calibration.temperature)
    if not moved.probability_max <= spec.invariance:
        raise BadBundle(
            f"batch mates change a probability by {moved.probability_max:.2g}; the limit in the manifest is {spec.invariance:.2g}"
        )
    return f"batch mates change a probability by at most {moved.probability_max:.2g} (limit in the manifest: {spec.invariance:.2g})"
