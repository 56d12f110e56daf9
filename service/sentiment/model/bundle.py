"""Bundles on disk: finding one, reading its manifest, checking every byte before it is used."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sentiment.errors import BadBundle
from sentiment.model.execute import Execute, here, result_of
from sentiment.model.scores import COMBINATIONS
from sentiment.model.trust import ExplanationsMeasured

MANIFEST = "manifest.json"
CARD = "MODEL_CARD.md"
CONFIG = "config.json"
# The whole bundle is a few dozen MB; a manifest beyond this is not one.
MANIFEST_BYTES_MAX = 2**22
# A window is a row: 16 of 512 tokens every 256 read about 20,000 characters of English, for the time of 16 texts.
WINDOWS_MAX = 16
# One spelling a version: neither 01 nor the other digits of Unicode.
VERSION = re.compile(r"[1-9][0-9]{0,8}")
CHECKOUT_BUNDLES = Path(__file__).resolve().parents[3] / "models" / "bundles"


class _Part(BaseModel):
    # Manifests of later versions may say more; what this version does not know it does not use.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False, protected_namespaces=())


class GraphSpec(_Part):
    """One ONNX graph of a bundle."""

    file: str
    precision: str
    providers: tuple[str, ...] = Field(min_length=1, strict=False)
    inputs: tuple[str, ...] = Field(min_length=1, strict=False)
    outputs: tuple[str, ...] = Field(min_length=1, strict=False)
    # The most that a probability may differ with the row's batch mates.
    invariance: float
    # The most that a logit of the golden set may differ from the recorded one on this machine.
    tolerance: float = Field(gt=0)


class Graphs(_Part):
    """The graphs by use; of ``classify`` the first one that answers the golden set is served."""

    classify: tuple[GraphSpec, ...] = Field(min_length=1, strict=False)
    explain: GraphSpec | None = None


class Calibration(_Part):
    """How logits become probabilities: softmax(logits / temperature)."""

    temperature: float = Field(gt=0)
    abstain_below: float = Field(ge=0, le=1)


class HeadTail(_Part):
    """How a text that does not fit is read by truncation head_tail: its first ``head`` tokens, and as many last ones as fit."""

    head: int = Field(ge=1)

    @classmethod
    def default(cls, max_tokens: int) -> "HeadTail":
        """A quarter: 128 of 512 tokens (Sun et al. 2019)."""
        return cls(head=max(1, max_tokens // 4))


class WindowsSpec(_Part):
    """How a text that does not fit is read by truncation windows. Here, not in a setting: the same digest means the same answers."""

    # Tokens of a window with its special ones.
    size: int = Field(ge=8)
    # From one window's beginning to the next one's, at most.
    stride: int = Field(ge=1)
    # How their answers make one; see scores.COMBINATIONS.
    combine: str = Field(pattern=f"^({'|'.join(COMBINATIONS)})$")
    # What lies behind so many windows is not read.
    count_max: int = Field(WINDOWS_MAX, ge=1, le=64)

    @classmethod
    def default(cls, max_tokens: int) -> "WindowsSpec":
        """As long as the model reads, each half over the one before; the surest answers it.

        On IMDB reviews over 512 tokens as accurate as any rule, with the least calibration error (sentiment-models long-texts).
        Never another: the same digest means the same answers.
        """
        return cls(size=max_tokens, stride=max_tokens // 2, combine="most_confident")


class Golden(_Part):
    """A text with its known answer; ``logits`` are raw, one per label."""

    text: str
    text_pair: str | None = None
    label: str
    logits: tuple[float, ...] = Field(strict=False)


class Measured(_Part):
    """Accuracy of the served graph on one data set, by the bundle's maker."""

    accuracy: float
    macro_f1: float
    ece: float
    rows: int


class FileSpec(_Part):
    """What a file must be."""

    sha256: str
    bytes: int


class Manifest(_Part):
    """manifest.json, format 1."""

    format: int = Field(ge=1, le=1)
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    version: int = Field(ge=1, lt=2**31)
    labels: tuple[str, ...] = Field(min_length=2, strict=False)
    architecture: str
    max_tokens: int = Field(ge=8, le=8192)
    pairs: bool
    default_truncation: str = Field(pattern="^(refuse|head|head_tail|windows)$")
    graphs: Graphs
    calibration: Calibration
    padding_side: str = Field(pattern="^(left|right)$")
    # None: as their ``default`` says.
    head_tail: HeadTail | None = None
    windows: WindowsSpec | None = None
    golden: tuple[Golden, ...] = Field(min_length=1, strict=False)
    accuracy: dict[str, Measured] = {}
    # None: not measured.
    explanations: ExplanationsMeasured | None = None
    files: dict[str, FileSpec]

    @model_validator(mode="after")
    def _agree(self) -> "Manifest":
        labels = set(self.labels)
        if len(labels) != len(self.labels):
            raise ValueError(f"labels repeat: {list(self.labels)}")
        for number, golden in enumerate(self.golden):
            if golden.label not in labels or len(golden.logits) != len(labels):
                raise ValueError(
                    f"golden[{number}] has label {golden.label!r} and {len(golden.logits)} logits; the labels are {list(self.labels)}"
                )
        if self.head_tail and self.head_tail.head >= self.max_tokens:
            raise ValueError(f"head_tail.head is {self.head_tail.head}; max_tokens is {self.max_tokens}")
        if self.windows and not self.windows.stride < self.windows.size <= self.max_tokens:
            raise ValueError(
                f"windows have size {self.windows.size} and stride {self.windows.stride}; a stride is less than a size and that at most "
                f"max_tokens, {self.max_tokens}"
            )
        graphs = [*self.graphs.classify, *([self.graphs.explain] if self.graphs.explain else ())]
        for wanted in ("tokenizer.json", *(graph.file for graph in graphs)):
            if wanted not in self.files:
                raise ValueError(f"files does not list {wanted}")
        for path in self.files:
            if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", path):
                raise ValueError(f"files lists {path!r}; only plain names in the bundle's own folder are read")
        return self


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose files are what its manifest says. ``digest`` is the manifest's SHA-256 in hex."""

    path: Path
    manifest: Manifest
    digest: str
    # config.json, empty if there is none that can be read.
    config: Mapping[str, object]

    @property
    def id(self) -> str:
        """``name/version``."""
        return f"{self.manifest.name}/{self.manifest.version}"

    @property
    def attention_heads(self) -> int:
        """Heads of a layer, as config.json says under one of its families' names; 16, the most of them, if it does not."""
        return max(1, self._configured("num_attention_heads", "n_heads", "n_head") or 16)

    @property
    def attention_layers(self) -> int:
        """Layers of attention, likewise; 0 if it does not say."""
        return self._configured("num_hidden_layers", "n_layers", "n_layer")

    def check(self, name: str) -> None:
        """Check a file again: after it was read by its name, or long after the bundle was loaded.

        Raises:
            BadBundle: it is not what the manifest says.
        """
        try:
            _check_file(self.path / name, self.manifest.files[name])
        except OSError as error:
            raise BadBundle(f"{error.filename}: {error.strerror}") from error

    def outside(self, graph: str) -> dict[str, bytes]:
        """The files that a graph refers to, by name, read and checked; the graph's own is checked too.

        ONNX Runtime would map them into memory, and keep them so: one that is written over changes answers, one that is cut short kills
        the process.

        Raises:
            BadBundle: one of them is not what the manifest says.
        """
        self.check(graph)
        try:
            content = (self.path / graph).read_bytes()
            names = [name for name in self.manifest.files if Path(name).suffix not in (".onnx", ".json") and name.encode() in content]
            found = {name: (self.path / name).read_bytes() for name in names}
        except OSError as error:
            raise BadBundle(f"{error.filename}: {error.strerror}") from error
        for name, held in found.items():
            _check_bytes(self.path / name, self.manifest.files[name], len(held), hashlib.sha256(held).hexdigest())
        return found

    def _configured(self, *keys: str) -> int:
        """The number that config.json has under one of the keys; 0 without one."""
        numbers = (self.config.get(key) for key in keys)
        return next((number for number in numbers if isinstance(number, int)), 0)

    @property
    def card(self) -> str:
        """The model card in Markdown, empty if there is none."""
        path = self.path / CARD
        return path.read_text(encoding="utf-8") if path.is_file() else ""


def digest_of(manifest: bytes) -> str:
    """The digest of a bundle by its manifest's bytes."""
    return hashlib.sha256(manifest).hexdigest()


def _config(file: Path) -> Mapping[str, object]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def load_bundle(path: Path, execute: Execute = here) -> Bundle:
    """Read a bundle directory and check size and SHA-256 of every file it lists. ``execute`` reads the files.

    Raises:
        BadBundle: names the first thing that is wrong, what stands there and what should.
    """
    file = path / MANIFEST
    try:
        content = file.read_bytes()
        if len(content) > MANIFEST_BYTES_MAX:
            raise BadBundle(f"{file}: has {len(content)} bytes; the limit is {MANIFEST_BYTES_MAX}")
        manifest = Manifest.model_validate(json.loads(content))
        for name, spec in manifest.files.items():
            _check_file(path / name, spec, execute)
    except OSError as error:
        raise BadBundle(f"{error.filename}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        # Missing fields have no value of their own, and our own messages tell it.
        found = "" if first["type"] in ("missing", "value_error") else f"; found {first['input']!r:.200}"
        raise BadBundle(f"{file}: {where + ': ' if where else ''}{first['msg']}{found}") from error
    except (ValueError, RecursionError) as error:
        raise BadBundle(f"{file}: not JSON: {error}") from error
    return Bundle(path, manifest, digest_of(content), _config(path / CONFIG))


def _check_file(path: Path, spec: FileSpec, execute: Execute = here) -> None:
    size = path.stat().st_size
    with path.open("rb") as stream:
        # One of another size is not read: it may be of any.
        found = result_of(execute, lambda: hashlib.file_digest(stream, "sha256").hexdigest()) if size == spec.bytes else ""
    _check_bytes(path, spec, size, found)


def _check_bytes(path: Path, spec: FileSpec, size: int, sha256: str) -> None:
    if size != spec.bytes:
        raise BadBundle(f"{path}: has {size} bytes; the manifest says {spec.bytes}")
    if sha256 != spec.sha256:
        raise BadBundle(f"{path}: SHA-256 is {sha256}; the manifest says {spec.sha256}")


def find_bundle(model: str, roots: Sequence[Path]) -> Path:
    """Find ``name`` (its highest version) or ``name/version`` in the first root that has it.

    Raises:
        BadBundle: no root has it; names the roots and what they hold.
    """
    name, _, version = model.partition("/")
    for root in roots:
        versions = _versions(root / name)
        if version in map(str, versions):
            return root / name / version
        if not version and versions:
            return root / name / str(max(versions))
    held = sorted(f"{path.parent.name}/{path.name}" for root in roots for path in root.glob("*/*") if (path / MANIFEST).is_file())
    looked = ", ".join(str(root) for root in roots)
    raise BadBundle(f"no bundle {model!r} in {looked}; found there: {', '.join(held) or 'none'}")


def _versions(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return [int(path.name) for path in folder.iterdir() if VERSION.fullmatch(path.name) and (path / MANIFEST).is_file()]


def bundle_roots(configured: Sequence[Path]) -> list[Path]:
    """Where bundles are looked for: the configured roots, then /models, then the checkout this package runs from."""
    return [*configured, Path("/models"), CHECKOUT_BUNDLES]
