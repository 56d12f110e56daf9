"""Bundles on disk: finds one, reads its manifest, and checks every byte before it is used."""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from sentiment.batch_limits import is_exact
from sentiment.errors import BadBundle
from sentiment.model.effort import EffortSpec
from sentiment.model.execute import Execute, here, result_of
from sentiment.model.scores import COMBINATIONS, NEUTRAL
from sentiment.model.section import Section
from sentiment.model.shown import Shown
from sentiment.model.trust import ExplanationsMeasured
from sentiment.observability.drift import Signal

MANIFEST = "manifest.json"
CARD = "MODEL_CARD.md"
CONFIG = "config.json"
# A whole bundle has a few dozen MB, so no manifest is larger than this.
MANIFEST_BYTES_MAX = 2**22
# transformers writes some kB.
CONFIG_BYTES_MAX = 2**20
# GetModel gives it to any caller. That of the default bundle has 45 kB.
CARD_BYTES_MAX = 2**20
# Each window is a row, so 16 windows cost as much as 16 texts. With 512 tokens every 256 they cover about 20,000 characters of English.
WINDOWS_MAX = 16
# Of a bundle and of a reference. A reference's name is a value of a label in metrics.
NAME = r"^[a-z0-9][a-z0-9_-]{0,62}$"
# The server compares its texts with each at each scrape.
REFERENCES_MAX = 8
# Each version has one spelling: no leading zero, no Unicode digits.
VERSION = re.compile(r"[1-9][0-9]{0,8}")
# Of a file of a bundle, which lies in its own folder.
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# Entry points of packages that hold bundles as NAME/VERSION, made by ``sentiment-models pack``.
BUNDLES_GROUP = "sentiment.bundles"
CHECKOUT_BUNDLES = Path(__file__).resolve().parents[3] / "models" / "bundles"


class GraphSpec(Section):
    """One ONNX graph of a bundle."""

    file: str
    precision: Shown
    providers: tuple[Shown, ...] = Field(min_length=1, strict=False)
    inputs: tuple[Shown, ...] = Field(min_length=1, strict=False)
    outputs: tuple[Shown, ...] = Field(min_length=1, strict=False)
    # The greatest change of a probability with the other rows of the batch. Measured again at each load: see ``batch_mates``.
    invariance: float
    # The greatest difference between a logit of the golden set on this machine and the recorded one.
    tolerance: float = Field(gt=0)
    # Of a classify graph: whether its int8 products fit into the pairs of 16 bits that x86 without VNNI adds them in. False for one without
    # such products. None: the manifest is older than 0.2.0, and the graph's metadata tell.
    pairs_fit: bool | None = None

    @property
    def exact(self) -> bool:
        """Whether an answer depends on batch mates by rounding at most."""
        return is_exact(self.precision, self.invariance)


class Graphs(Section):
    """The graphs by use. The first one of ``classify`` that passes the golden set is served."""

    classify: tuple[GraphSpec, ...] = Field(min_length=1, strict=False)
    explain: GraphSpec | None = None


class Calibration(Section):
    """How logits become probabilities: softmax(logits / temperature)."""

    temperature: float = Field(gt=0)
    abstain_below: float = Field(ge=0, le=1)

    @property
    def uncalibrated(self) -> bool:
        """Whether it is as it is without a development set, which hardly ever gives just these two."""
        return self.temperature == 1 and self.abstain_below == 0


class HeadTail(Section):
    """Truncation head_tail of a text longer than a row: its first ``head`` tokens, and as many of its last tokens as still fit."""

    head: int = Field(ge=1)

    @classmethod
    def default(cls, max_tokens: int) -> "HeadTail":
        """A quarter of the tokens: 128 of 512 (Sun et al. 2019)."""
        return cls(head=max(1, max_tokens // 4))


class WindowsSpec(Section):
    """Truncation windows of a text longer than a row. In the manifest, not in a setting: the same digest means the same answers."""

    # Tokens of a window, special tokens included.
    size: int = Field(ge=8)
    # The greatest distance, in tokens, from the start of a window to the start of the next.
    stride: int = Field(ge=1)
    # How the answers of the windows are combined; see scores.COMBINATIONS.
    combine: str = Field(pattern=f"^({'|'.join(COMBINATIONS)})$")
    # The greatest number of windows; the text after them is not read.
    count_max: int = Field(WINDOWS_MAX, ge=1, le=64)

    @classmethod
    def default(cls, max_tokens: int) -> "WindowsSpec":
        """Windows of the model's full length that overlap by half; the most confident one decides.

        On IMDB reviews over 512 tokens this is as accurate as any other rule and has the least calibration error (measured by
        ``sentiment-models long-texts``). Do not change it: the same digest means the same answers.
        """
        return cls(size=max_tokens, stride=max_tokens // 2, combine="most_confident")


class Mixed(Section):
    """Each row has one more logit, after those of the labels: that the text has both positive and negative sentiment.

    Its probability is its share in the softmax of all logits; from ``at`` on the text is mixed.
    """

    at: float = Field(ge=0, le=1)


class TargetsSpec(Section):
    """The model reads pairs of a part of a text and a target, and answers the sentiment towards the target."""

    # Of a row, special tokens included.
    tokens: int = Field(ge=16)


class Golden(Section):
    """A text with its known answer. ``logits`` are raw, one per label, and that of ``mixed`` if the manifest has it."""

    text: str
    text_pair: str | None = None
    label: str
    logits: tuple[float, ...] = Field(strict=False)


class Expected(Section):
    """Answers of the served graph that do not abstain, on one data set: how many, the share that is right, and the expected one."""

    rows: int
    accuracy: float = Field(ge=0, le=1)
    # The mean of their winning probabilities.
    expected_accuracy: float = Field(ge=0, le=1)


class Measured(Section):
    """Accuracy of the served graph on one data set, measured by the bundle's maker.

    ``accuracy``, ``macro_f1`` and ``ece`` are of the likeliest of ``labels``: those of the set, in the model's order; empty for all of the
    model's. ``without_abstentions`` is of the answers as they are given.
    """

    accuracy: float
    macro_f1: float
    ece: float
    rows: int
    # The labels of the set, among which accuracy, macro F1 and ECE count; empty: all of the model's.
    labels: tuple[Shown, ...] = Field((), strict=False)
    # Among all labels. None: not measured.
    without_abstentions: Expected | None = None


class Histogram(Section):
    """Texts by a number: up to each edge, and above the last one."""

    # The longest of a reference has 13. Each bin is a series of metrics.
    edges: tuple[float, ...] = Field(min_length=1, max_length=100, strict=False)
    counts: tuple[Annotated[int, Field(ge=0)], ...] = Field(strict=False)

    @model_validator(mode="after")
    def _agree(self) -> "Histogram":
        if list(self.edges) != sorted(set(self.edges)) or len(self.counts) != len(self.edges) + 1:
            raise ValueError(f"edges must ascend and counts must have one more: got {list(self.edges)} and {len(self.counts)} counts")
        return self


# Of a text's hidden states: see ``sentiment.explain.engine.projections``.
PROJECTIONS = 8


class HiddenStates(Section):
    """Texts by projections of their mean hidden state after a layer: see ``sentiment.explain.engine.projections``."""

    layer: int = Field(ge=1)
    projections: tuple[Histogram, ...] = Field(min_length=PROJECTIONS, max_length=PROJECTIONS, strict=False)

    @property
    def edges(self) -> tuple[int, list[tuple[float, ...]]]:
        """What references must have in common: the layer, and the edges of each projection."""
        return self.layer, [one.edges for one in self.projections]

    @property
    def histograms(self) -> dict[str, Histogram]:
        """The projections by their signals' names."""
        return {f"hidden_{number}": one for number, one in enumerate(self.projections, 1)}


class Reference(Section):
    """How many texts of a set, such as those of a day, have each answer and form. The server compares its own texts with them.

    ``score``: probability of the winning label. ``tokens``: tokens read, special ones included. ``unknown``: share of these that are not in
    the vocabulary. ``fragments``: share of a text's first words and fragments that are fragments; None without a WordPiece tokenizer.
    ``hidden``: None if it was not measured.
    """

    texts: int = Field(ge=1)
    # SHA-256 of the files that hold the texts, by name.
    files: dict[Shown, str] = Field({})
    # By winning label, in any order.
    label: dict[str, Annotated[int, Field(ge=0)]]
    abstained: int = Field(ge=0)
    score: Histogram
    tokens: Histogram
    unknown: Histogram
    fragments: Histogram | None = None
    hidden: HiddenStates | None = None

    @property
    def histograms(self) -> dict[str, Histogram]:
        """The signals that are numbers, by name, in their order."""
        found = {"score": self.score, "tokens": self.tokens, "unknown": self.unknown}
        return found if self.fragments is None else {**found, "fragments": self.fragments}

    @property
    def edges(self) -> dict[str, tuple[float, ...]]:
        """The edges of these, by name."""
        return {name: one.edges for name, one in self.histograms.items()}

    @model_validator(mode="after")
    def _agree(self) -> "Reference":
        histograms = {**self.histograms, **(self.hidden.histograms if self.hidden is not None else {})}
        sums = {"label": sum(self.label.values()), **{name: sum(one.counts) for name, one in histograms.items()}}
        for name, found in sums.items():
            if found != self.texts:
                raise ValueError(f"{name} counts {found} texts; texts is {self.texts}")
        if self.abstained > self.texts:
            raise ValueError(f"abstained is {self.abstained}; texts is {self.texts}")
        return self


class FileSpec(Section):
    """The expected digest and size of a file."""

    sha256: str
    bytes: int


class Manifest(Section):
    """manifest.json, format 1."""

    format: int = Field(ge=1, le=1)
    name: str = Field(pattern=NAME)
    version: int = Field(ge=1, lt=2**31)
    labels: tuple[Shown, ...] = Field(min_length=2, strict=False)
    architecture: Shown
    max_tokens: int = Field(ge=8, le=8192)
    pairs: bool
    default_truncation: str = Field(pattern="^(refuse|head|head_tail|windows)$")
    graphs: Graphs
    calibration: Calibration
    padding_side: str = Field(pattern="^(left|right)$")
    # None: their ``default``.
    head_tail: HeadTail | None = None
    windows: WindowsSpec | None = None
    # None: no output for it, and no pairs of a text and a target.
    mixed: Mixed | None = None
    targets: TargetsSpec | None = None
    # None: all of every text is read.
    effort: EffortSpec | None = None
    golden: tuple[Golden, ...] = Field(min_length=1, strict=False)
    accuracy: dict[Shown, Measured] = Field({})
    # None: not measured.
    explanations: ExplanationsMeasured | None = None
    # By name. Empty: the server does not tell drift.
    references: dict[Annotated[str, Field(pattern=NAME)], Reference] = Field({}, max_length=REFERENCES_MAX)
    files: dict[str, FileSpec]

    @property
    def logits(self) -> int:
        """How many logits each graph gives for a row: one per label, and that of ``mixed``."""
        return len(self.labels) + (self.mixed is not None)

    @property
    def mixed_at(self) -> float | None:
        """The least probability of a mixed text; None without an output for it."""
        return None if self.mixed is None else self.mixed.at

    @property
    def neutral(self) -> str | None:
        """The label of texts without sentiment, if there is one."""
        return next((label for label in self.labels if label.casefold() == NEUTRAL), None)

    @property
    def expected_accuracy_error(self) -> float:
        """The largest distance of expected from true accuracy on any data set; NaN if none was recorded."""
        found = [one.without_abstentions for one in self.accuracy.values() if one.without_abstentions]
        return max((abs(one.expected_accuracy - one.accuracy) for one in found), default=math.nan)

    @model_validator(mode="after")
    def _agree(self) -> "Manifest":
        labels = set(self.labels)
        if len(labels) != len(self.labels):
            raise ValueError(f"a label is listed twice: {list(self.labels)}")
        for number, golden in enumerate(self.golden):
            if golden.label not in labels or len(golden.logits) != self.logits:
                raise ValueError(
                    f"golden[{number}] has label {golden.label!r} and {len(golden.logits)} logits; the labels are {list(self.labels)}"
                    f"{' and mixed has a logit too' if self.mixed else ''}"
                )
        if self.targets and not self.neutral:
            raise ValueError(
                f"targets needs a label {NEUTRAL!r}, the answer for a target that is not named; labels are {list(self.labels)}"
            )
        if self.targets and self.targets.tokens > self.max_tokens:
            raise ValueError(f"targets.tokens must be at most max_tokens ({self.max_tokens}), got {self.targets.tokens}")
        if self.head_tail and self.head_tail.head >= self.max_tokens:
            raise ValueError(f"head_tail.head must be less than max_tokens ({self.max_tokens}), got {self.head_tail.head}")
        if self.effort:
            self.effort.check(self.max_tokens)
        if self.windows and not self.windows.stride < self.windows.size <= self.max_tokens:
            raise ValueError(
                f"windows.stride must be less than windows.size, and windows.size at most max_tokens ({self.max_tokens}); got stride "
                f"{self.windows.stride} and size {self.windows.size}"
            )
        graphs = [*self.graphs.classify, *([self.graphs.explain] if self.graphs.explain else ())]
        for wanted in ("tokenizer.json", *(graph.file for graph in graphs)):
            if wanted not in self.files:
                raise ValueError(f"files does not list {wanted}")
        for path in self.files:
            if not FILE_NAME.fullmatch(path):
                raise ValueError(f"files lists {path!r}; only plain file names in the bundle's own folder are allowed")
        return self

    @model_validator(mode="after")
    def _agree_on_references(self) -> "Manifest":
        labels = set(self.labels)
        edges = {name: one.edges for name, one in self.references.items()}
        for name, one in self.references.items():
            if set(one.label) != labels:
                raise ValueError(f"references.{name}.label counts {sorted(one.label)}; the labels are {list(self.labels)}")
            first = next(iter(edges))
            if edges[name] != edges[first]:
                raise ValueError(f"references.{name} and references.{first} have different signals or edges")
        hidden = {name: one.hidden.edges for name, one in self.references.items() if one.hidden is not None}
        for name, found in hidden.items():
            first = next(iter(hidden))
            if found != hidden[first]:
                raise ValueError(f"references.{name}.hidden and references.{first}.hidden have different layers or edges")
        return self

    @property
    def signals(self) -> tuple[Signal, ...]:
        """What the references count, in the order of ``values_of``; empty if there are none."""
        found = self.references
        by_label = {name: [one.label[label] for label in self.labels] for name, one in found.items()}
        by_abstention = {name: [one.texts - one.abstained, one.abstained] for name, one in found.items()}
        edges = next((one.edges for one in found.values()), None)
        if edges is None:
            return ()
        return (
            Signal.of_values("label", {label: label for label in self.labels}, by_label),
            Signal.of_values("abstained", {False: "false", True: "true"}, by_abstention),
            *(
                Signal.of_numbers(signal, at, {name: one.histograms[signal].counts for name, one in found.items()})
                for signal, at in edges.items()
            ),
        )

    @property
    def hidden_layer(self) -> int | None:
        """The layer whose hidden states the references count; None unless all of them do."""
        layers = [one.hidden.layer if one.hidden is not None else None for one in self.references.values()]
        return layers[0] if layers and None not in layers else None

    @property
    def hidden_signals(self) -> tuple[Signal, ...]:
        """What the references count of hidden states, one for each projection; empty unless all of them do."""
        if self.hidden_layer is None:
            return ()
        found = {name: one.hidden.histograms for name, one in self.references.items() if one.hidden is not None}
        first = next(iter(found.values()))
        return tuple(
            Signal.of_numbers(signal, one.edges, {name: histograms[signal].counts for name, histograms in found.items()})
            for signal, one in first.items()
        )


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose files match its manifest. ``digest`` is the SHA-256 of the manifest, in hex."""

    path: Path
    manifest: Manifest
    digest: str
    # The content of config.json; empty if the manifest does not list it.
    config: Mapping[str, object]
    # The model card in Markdown; empty if there is none.
    card: str = ""

    @property
    def id(self) -> str:
        """``name/version``."""
        return f"{self.manifest.name}/{self.manifest.version}"

    @property
    def attention_heads(self) -> int:
        """Attention heads of a layer, from config.json, whose key depends on the model family. 16, the largest usual number, by default."""
        return heads_of(self.config)

    @property
    def attention_layers(self) -> int:
        """Attention layers, from config.json; 0 if it does not have the number."""
        return _configured(self.config, "num_hidden_layers", "n_layers", "n_layer")

    def check(self, name: str) -> None:
        """Check a file again: after it was opened by name, or long after the bundle was loaded.

        Raises:
            BadBundle: the file differs from the manifest.
        """
        _check_file(self.path, name, self.manifest.files[name])

    def read(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            BadBundle: it differs from the manifest.
        """
        content = _content(self.path, name)
        _check_bytes(self.path / name, self.manifest.files[name], len(content), hashlib.sha256(content).hexdigest())
        return content

    def outside(self, graph: str) -> dict[str, bytes]:
        """The content of the external files of a graph, by name. The graph file and its external files are checked.

        ONNX Runtime would keep external files mapped into memory. Overwriting a mapped file changes answers, and truncating it kills
        the process.

        Raises:
            BadBundle: a file differs from the manifest.
        """
        content = self.read(graph)
        names = [name for name in self.manifest.files if Path(name).suffix not in (".onnx", ".json") and name.encode() in content]
        return {name: self.read(name) for name in names}


def heads_of(config: Mapping[str, object]) -> int:
    """``Bundle.attention_heads`` of a config.json."""
    return max(1, _configured(config, "num_attention_heads", "n_heads", "n_head") or 16)


def _configured(config: Mapping[str, object], *keys: str) -> int:
    """The number that a config has under the first of these keys that it has; 0 if it has none."""
    numbers = (config.get(key) for key in keys)
    return next((number for number in numbers if isinstance(number, int)), 0)


def digest_of(manifest: bytes) -> str:
    """The digest of a bundle, from the bytes of its manifest."""
    return hashlib.sha256(manifest).hexdigest()


def opened(folder: Path, name: str) -> io.BufferedReader:
    """Open a file of a bundle. Links within the folder are followed, as Kubernetes mounts files by way of ``..data``.

    Raises:
        BadBundle: it cannot be opened, is not a regular file, or a link leads out of the folder.
    """
    path = folder / name
    try:
        real = Path(os.path.realpath(path, strict=True))
        if not real.is_relative_to(folder.resolve()):
            raise BadBundle(f"{path}: is a link to {real}, which is outside of the bundle's folder")
        # Opening a pipe would wait for a writer.
        file = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise BadBundle(f"{error.filename}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise BadBundle(f"{path}: is not a regular file")
    return os.fdopen(file, "rb")


def load_bundle(path: Path, execute: Execute = here, *, card: bool = True) -> Bundle:
    """Read a bundle directory and check the size and SHA-256 of every file it lists.

    Args:
        path: the directory.
        execute: runs the hashing.
        card: whether to check and read the model card, too.

    Raises:
        BadBundle: the message has the first difference: what was found and what was expected.
    """
    content = _content(path, MANIFEST, MANIFEST_BYTES_MAX)
    manifest = parse_manifest(content, path / MANIFEST)
    for name, spec in manifest.files.items():
        if card or name != CARD:
            _check_file(path, name, spec, execute)
    config = _config(path) if CONFIG in manifest.files else {}
    return Bundle(path, manifest, digest_of(content), config, _card(path, CARD in manifest.files) if card else "")


def parse_manifest(content: bytes, file: Path) -> Manifest:
    """The manifest with this content. ``file`` is only for the error.

    Raises:
        BadBundle: the service would not take it; the message has the first reason.
    """
    try:
        return Manifest.model_validate(json.loads(content))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        # A missing field has no value, and our own messages include the value.
        found = "" if first["type"] in ("missing", "value_error") else f", got {first['input']!r:.200}"
        raise BadBundle(f"{file}: {where + ': ' if where else ''}{first['msg']}{found}") from error
    except (ValueError, RecursionError) as error:
        raise BadBundle(f"{file}: not JSON: {error}") from error


def _config(folder: Path) -> Mapping[str, object]:
    try:
        config = json.loads(_content(folder, CONFIG, CONFIG_BYTES_MAX))
    except (ValueError, RecursionError) as error:
        raise BadBundle(f"{folder / CONFIG}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise BadBundle(f"{folder / CONFIG}: must be a JSON object, got a {type(config).__name__}")
    return config


def _card(folder: Path, listed: bool) -> str:
    # Bundles of earlier versions have a card that their manifest does not list, or none.
    if not listed and not os.path.lexists(folder / CARD):
        return ""
    try:
        return _content(folder, CARD, CARD_BYTES_MAX).decode()
    except UnicodeDecodeError as error:
        raise BadBundle(f"{folder / CARD}: not UTF-8: {error}") from error


def _content(folder: Path, name: str, bytes_max: int | None = None) -> bytes:
    """The content of a file of a bundle; of one that is longer than ``bytes_max`` no more than that is read."""
    with opened(folder, name) as stream:
        try:
            content = stream.read() if bytes_max is None else stream.read(bytes_max + 1)
        except OSError as error:
            raise BadBundle(f"{folder / name}: {error.strerror}") from error
        size = os.fstat(stream.fileno()).st_size
    if bytes_max is not None and len(content) > bytes_max:
        raise BadBundle(f"{folder / name}: has {size} bytes; the limit is {bytes_max}")
    return content


def _check_file(folder: Path, name: str, spec: FileSpec, execute: Execute = here) -> None:
    with opened(folder, name) as stream:
        size = os.fstat(stream.fileno()).st_size
        # A file of another size is not read, since it may be of any size.
        try:
            found = result_of(execute, lambda: hashlib.file_digest(stream, "sha256").hexdigest()) if size == spec.bytes else ""
        except OSError as error:
            raise BadBundle(f"{folder / name}: {error.strerror}") from error
    _check_bytes(folder / name, spec, size, found)


def _check_bytes(path: Path, spec: FileSpec, size: int, sha256: str) -> None:
    if size != spec.bytes:
        raise BadBundle(f"{path}: has {size} bytes; the manifest says {spec.bytes}")
    if sha256 != spec.sha256:
        raise BadBundle(f"{path}: SHA-256 is {sha256}; the manifest says {spec.sha256}")


def find_bundle(model: str, roots: Sequence[Path]) -> Path:
    """Find ``name`` (its highest version) or ``name/version`` in the first root that has it.

    Raises:
        BadBundle: no root has it; the message lists the roots and the bundles in them.
    """
    name, _, version = model.partition("/")
    for root in roots:
        versions = _versions(root / name)
        if version in map(str, versions):
            return root / name / version
        if not version and versions:
            return root / name / str(max(versions))
    held = bundles_in(roots)
    closed = [folder for root in roots for folder in (root, root / name, root / name / version) if _is_closed(folder)]
    searched = ", ".join(str(root) for root in roots)
    remedy = "" if held else "; install the wheel of a bundle, or name a folder that holds bundles with --bundles or SENTIMENT_BUNDLES"
    if closed:
        remedy = f"; the server's user cannot read {', '.join(map(str, dict.fromkeys(closed)))}"
    raise BadBundle(f"no bundle {model!r} in {searched}; the bundles there are: {', '.join(held) or 'none'}{remedy}")


def bundles_in(roots: Sequence[Path]) -> list[str]:
    """The bundles in these folders, as sorted ``name/version``. None is opened."""
    return sorted({f"{path.parent.name}/{path.name}" for root in roots for path in root.glob("*/*") if os.path.isfile(path / MANIFEST)})


def _versions(folder: Path) -> list[int]:
    """The versions in the folder of a name, also those that cannot be read, which are not passed over; none if it cannot be read itself."""
    with contextlib.suppress(OSError):
        found = [path for path in folder.iterdir() if VERSION.fullmatch(path.name)]
        return [int(path.name) for path in found if os.path.isfile(path / MANIFEST) or _is_closed(path)]
    return []


def _is_closed(folder: Path) -> bool:
    return os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK)


def bundle_roots(configured: Sequence[Path]) -> list[Path]:
    """The folders that are searched for bundles, in order.

    These are the configured roots, /models, the checkout that this package runs from, and the packages of bundles that pip installed.
    """
    # Where a wheel is installed, it would be a folder of Python's own.
    checkout = [CHECKOUT_BUNDLES] if (CHECKOUT_BUNDLES.parents[1] / "pyproject.toml").is_file() else []
    return [*configured, Path("/models"), *checkout, *_installed()]


def _installed() -> Iterator[Path]:
    """The folders of installed packages that say that they hold bundles. None of them is imported."""
    for entry in importlib.metadata.entry_points(group=BUNDLES_GROUP):
        spec = importlib.util.find_spec(entry.module)
        if spec is not None:
            yield from map(Path, spec.submodule_search_locations or ())
