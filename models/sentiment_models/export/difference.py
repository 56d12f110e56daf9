"""The difference between two bundles: manifests, files, operators, weights and tokens."""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from sentiment.errors import BadBundle
from sentiment.files.visible import visible, visible_json
from sentiment.model.bundle import MANIFEST, Bundle, Golden, load_bundle
from sentiment_models.export.graphs.graph_rules import all_nodes, read_graph
from sentiment_models.export.manifest import CARD_FILE, TOKENIZER_FILE, WEIGHTS_FILE, read_object, sha256
from sentiment_models.export.provenance import Json
from sentiment_models.export.spellings import vocabulary_of
from sentiment_models.export.weights import real_names, real_weight

# Keys of the manifest that have their own sections, or follow from other parts.
_OWN_SECTIONS = ("labels", "calibration", "golden", "accuracy", "files")
# Limits of the table; JSON has everything.
LINES_MAX = 12
SHOWN_CHARACTERS_MAX = 60

Pair = tuple[Any, Any]
"""The value in A and in B; None if it does not exist there. Any: plain JSON."""


@dataclass(frozen=True, slots=True)
class Change:
    """The absolute differences between a weight of B and the weight of A with the same name and shape, whether stored in fp16 or int8."""

    largest: float
    mean: float
    values: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between two bundles. Every mapping holds only what differs, A's value first."""

    a: str
    b: str
    # Dotted path in the manifest -> values.
    manifest: dict[str, Pair]
    # Name -> "bytes sha256".
    files: dict[str, Pair]
    labels: Pair | None
    calibration: dict[str, Pair]
    # Data set and figure -> values.
    accuracy: dict[str, Pair]
    # Text -> label and logits.
    golden: dict[str, Pair]
    # File of the graph -> operator -> counts.
    operators: dict[str, dict[str, Pair]]
    # Tensors that only one bundle has, or whose shape or type differs -> "type [shape]".
    tensors: dict[str, Pair]
    weights: dict[str, Change]
    # Token -> id.
    vocabulary: dict[str, Pair]
    # Part of tokenizer.json other than the vocabulary -> values.
    tokenizer: dict[str, Pair]

    @property
    def same(self) -> bool:
        """Whether nothing differs, the model card included."""
        return not any(getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in ("a", "b"))

    def json(self) -> str:
        """Return everything as JSON."""
        return visible_json(json.dumps({"same": self.same, **dataclasses.asdict(self)}, indent=1, ensure_ascii=False))


def difference(a: Path, b: Path) -> Difference:
    """Compare two bundles.

    Raises:
        BadBundle: one of them is damaged.
    """
    bundles = (load_bundle(a), load_bundle(b))
    one, other = bundles[0].manifest, bundles[1].manifest
    facts = [{key: value for key, value in read_object(path / MANIFEST).items() if key not in _OWN_SECTIONS} for path in (a, b)]
    files = [_files(bundle) for bundle in bundles]
    stated = [_weight_facts(bundle) for bundle in bundles]
    vocabularies, settings = zip(*(_tokenizer(bundle) for bundle in bundles), strict=True)
    graphs = sorted({name for listed in files for name in listed if name.endswith(".onnx")})
    counted = {name: _changed(*(_operators(bundle, name) for bundle in bundles)) for name in graphs}
    return Difference(
        a=f"{bundles[0].id} {bundles[0].digest}",
        b=f"{bundles[1].id} {bundles[1].digest}",
        manifest=_changed(*(dict(_flat(fact)) for fact in facts)),
        files=_changed(*files),
        labels=None if one.labels == other.labels else (list(one.labels), list(other.labels)),
        calibration=_changed(one.calibration.model_dump(), other.calibration.model_dump()),
        accuracy=_changed(*(dict(_flat({k: v.model_dump() for k, v in m.accuracy.items()})) for m in (one, other))),
        golden=_changed(*({_text(golden): _answer(golden) for golden in m.golden} for m in (one, other))),
        operators={name: counts for name, counts in counted.items() if counts},
        tensors=_changed(*stated),
        weights=dict(_weights(bundles)),
        vocabulary=_changed(*vocabularies),
        tokenizer=_changed(*settings),
    )


def _changed(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Pair]:  # Any: plain JSON
    return {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}


def _flat(value: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Yield the leaves of nested objects under dotted paths; an empty object and a list of plain values are leaves."""
    children: Sequence[tuple[str, Json]] = ()
    if isinstance(value, Mapping):
        children = [(f"{path}.{key}" if path else key, item) for key, item in value.items()]
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        children = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    if not children:
        yield path, value
    for child, item in children:
        yield from _flat(item, child)


def _files(bundle: Bundle) -> dict[str, str]:
    found = {name: f"{spec.bytes} bytes {spec.sha256}" for name, spec in bundle.manifest.files.items()}
    card = bundle.path / CARD_FILE
    if card.is_file():
        found[CARD_FILE] = f"{card.stat().st_size} bytes {sha256(card)}"
    return found


def _text(golden: Golden) -> str:
    return golden.text if golden.text_pair is None else f"{golden.text} | {golden.text_pair}"


def _answer(golden: Golden) -> str:
    return f"{golden.label} [{', '.join(f'{logit:.6g}' for logit in golden.logits)}]"


def _operators(bundle: Bundle, file: str) -> dict[str, int]:
    if file not in bundle.manifest.files:
        return {}
    model = read_graph(bundle.path / file)
    if model is None:
        raise BadBundle(f"{bundle.path / file}: not an ONNX file")
    return Counter(f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in all_nodes(model.graph))


def _weight_facts(bundle: Bundle) -> dict[str, str]:
    if WEIGHTS_FILE not in bundle.manifest.files:
        return {}
    path = bundle.path / WEIGHTS_FILE
    try:
        with safe_open(path, "numpy") as weights:
            slices = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118 - not a mapping
            return {name: f"{part.get_dtype()} {part.get_shape()}" for name, part in slices.items()}
    except SafetensorError as error:
        raise BadBundle(f"{path}: not a safetensors file: {error}") from error


def _weights(bundles: Sequence[Bundle]) -> Iterator[tuple[str, Change]]:
    """Compare tensor by tensor, so that only one of each bundle is in memory."""
    if any(WEIGHTS_FILE not in bundle.manifest.files for bundle in bundles):
        return
    with safe_open(bundles[0].path / WEIGHTS_FILE, "numpy") as ours, safe_open(bundles[1].path / WEIGHTS_FILE, "numpy") as theirs:
        known = set(real_names(theirs.keys()))
        for name in real_names(ours.keys()):
            if name not in known:
                continue
            a, b = (real_weight(name, each.keys(), each.get_tensor) for each in (ours, theirs))
            if a.shape == b.shape and not np.array_equal(a, b, equal_nan=True):
                apart = np.abs(b.astype(np.float64) - a.astype(np.float64))
                yield name, Change(float(apart.max()), float(apart.mean()), apart.size)


def _tokenizer(bundle: Bundle) -> tuple[dict[str, int], dict[str, Json]]:
    path = bundle.path / TOKENIZER_FILE
    vocabulary = vocabulary_of(path)
    whole = dict(read_object(path))
    model = whole.pop("model", None)
    if isinstance(model, dict):
        # The vocabulary is compared separately. Merges are as long; their number is enough.
        merges = model.get("merges")
        known = {key: value for key, value in model.items() if key not in ("vocab", "merges")}
        whole["model"] = {**known, "merges": len(merges)} if isinstance(merges, list) else known
    return vocabulary, dict(_flat(whole))


def table(found: Difference) -> str:
    """Format the difference, at most ``LINES_MAX`` lines per section, the largest changes of weights first."""
    if found.same:
        return f"same: {found.a}"
    lines = [f"A  {found.a}", f"B  {found.b}"]
    if found.labels:
        lines += _section("labels", [f"{_short(found.labels[0])} -> {_short(found.labels[1])}"])
    for title in ("manifest", "calibration", "accuracy", "golden", "files"):
        lines += _section(title, _arrows(getattr(found, title)))
    for file, counts in found.operators.items():
        lines += _section(f"operators of {file}", [f"{kind}: {a or 0} -> {b or 0}" for kind, (a, b) in counts.items()])
    lines += _section("tensors", _arrows(found.tensors))
    largest = sorted(found.weights.items(), key=lambda item: -item[1].largest if math.isfinite(item[1].largest) else -math.inf)
    lines += _section("weights, change", [f"{name}: largest {one.largest:.3g}, mean {one.mean:.3g}" for name, one in largest])
    lines += _section("vocabulary", _arrows(found.vocabulary))
    lines += _section("tokenizer", _arrows(found.tokenizer))
    return "\n".join(lines)


def _arrows(pairs: Mapping[str, Pair]) -> list[str]:
    return [f"{_short(key)}: {_short(a)} -> {_short(b)}" for key, (a, b) in pairs.items()]


def _section(title: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    rest = [f"  ... and {len(lines) - LINES_MAX} more; --json shows all"] if len(lines) > LINES_MAX else []
    return [f"{title} ({len(lines)})", *(f"  {visible(line)}" for line in lines[:LINES_MAX]), *rest]


def _short(value: Any) -> str:  # Any: plain JSON
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[: SHOWN_CHARACTERS_MAX - 3] + "..."
