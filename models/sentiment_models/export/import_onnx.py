"""Make a bundle of somebody's own ONNX file. There are no weights in torch to compare with: the file's own answers are the golden ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tokenizers

from sentiment.batch_limits import EXACT
from sentiment.errors import BadBundle
from sentiment.model.batch_mates import measure
from sentiment.model.bundle import Golden, heads_of
from sentiment.model.classifier import load_classifier, mates_of
from sentiment.model.session import Session
from sentiment.model.tokenizer import Row, Tokenizer
from sentiment_models.data.labelled import Example
from sentiment_models.errors import BadCheckpoint
from sentiment_models.evaluation.calibration import Calibration, calibrate
from sentiment_models.evaluation.metrics import Logits, stated
from sentiment_models.export.folders import new_bundle
from sentiment_models.export.golden import (
    GOLDEN_PAIRS,
    GOLDEN_TEXTS,
    PARAGRAPH,
    TOLERANCE_FACTOR,
    TOLERANCE_MIN,
    GoldenSet,
    golden_set,
)
from sentiment_models.export.inference import Graph, encode_all
from sentiment_models.export.labels import as_argument, check_task, labels_of
from sentiment_models.export.manifest import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    file_entries,
    graph_file,
    read_object,
    sha256,
    write_manifest,
    write_object,
)
from sentiment_models.export.own_graph import OwnGraph, read_own
from sentiment_models.export.provenance import Json, library_versions, three_digits
from sentiment_models.export.verify import COMPARED_TOKENS_MAX, Movement, long_rows, movement, spread
from sentiment_models.reports.report import refuse_existing

TOKENIZER_CONFIG = "tokenizer_config.json"
# The service's limits of a manifest.
TOKENS_MIN, TOKENS_MAX = 8, 8192
# transformers writes 10^30 for a tokenizer without a limit.
NO_LIMIT = 10**6
# Families whose positions begin behind the padding's, 1.
BEHIND_PADDING = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "longformer", "data2vec-text", "ibert", "bertweet")
DEV_ROWS = 48
# Dynamic quantization rounds activations at borders, which another processor's last bit may move: allow this much of a logit.
INT8_TOLERANCE_MIN = 0.05
# Of the sum of a row that a softmax made.
SUM_ERROR_MAX = 1e-3


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import found. ``movement``: by golden and development texts; ``invariance``: of these and of what a load measures."""

    graph: OwnGraph
    labels: tuple[str, ...]
    max_tokens: int
    movement: Movement
    invariance: float
    golden: GoldenSet
    calibration: Calibration


def import_onnx(
    file: Path,
    tokenizer: Path,
    bundle: Path,
    *,
    name: str,
    version: int,
    labels: Sequence[str],
    max_tokens: int | None = None,
    pairs: bool = False,
    dev: Sequence[Example] | None = None,
    force: bool = False,
    say: Callable[[str], object] = lambda _: None,
) -> Imported:
    """Make ``bundle`` of an ONNX file and its tokenizer. A failed import leaves nothing behind and does not change an existing bundle.

    Args:
        file: the ONNX file; its external data beside it.
        tokenizer: the folder with tokenizer.json; its tokenizer_config.json and config.json are read if they are there.
        bundle: the directory to make.
        name: the bundle's name.
        version: the bundle's version, from 1.
        labels: in the order of the logits.
        max_tokens: of a text, special tokens included; None: what tokenizer and config say.
        pairs: the model reads pairs of texts.
        dev: labelled texts for calibration; None: no calibration.
        force: replace ``bundle`` if it exists.
        say: called with a line of what is to be known beforehand.

    Raises:
        BadCheckpoint: the service cannot run the file, or something is missing that it does not say.
        ParityFailed: too few golden texts have a sure label.
        BadData: ``dev`` has labels that the model lacks.
        ModelsError: ``bundle`` exists, another process makes it, or the disk is full.
        sentiment.errors.BadBundle: the service would not load the result, for example because of its name.
    """
    refuse_existing(bundle, force=force)
    graph = read_own(file)
    folder = _Folder.of(tokenizer)
    if graph.logits not in (None, len(labels)):
        raise BadCheckpoint(f"{file}: gives {graph.logits} logits a row, but {len(labels)} labels are named: {as_argument(labels)}")
    limit = max_tokens or folder.max_tokens
    for line in long_rows(limit, heads_of(folder.config)):
        say(line)
    with new_bundle(bundle, force=force) as part:
        found = _build(graph, folder, part, tuple(labels), limit, pairs, dev or (), {"name": name, "version": version})
        load_classifier(part)
    return found


def named(tokenizer: Path, given: Sequence[str] = ()) -> Sequence[str]:
    """Return the labels that are given, or else that config.json beside a tokenizer names, in the order of their indices.

    Raises:
        BadCheckpoint: neither names any, or it is of a model that does not answer one label of several.
    """
    file = tokenizer / CONFIG_FILE
    config = read_object(file) if file.is_file() else None
    if config is not None:
        check_task(config, str(file))
    if given:
        return given
    if config is None:
        raise BadCheckpoint(f"{file}: no such file, so name the labels in the order of the logits, as in --labels negative,positive")
    try:
        return labels_of(config, file)
    except BadCheckpoint as error:
        raise BadCheckpoint(f"{error}; or give --labels") from error


@dataclass(frozen=True, slots=True)
class _Folder:
    """What stands beside a tokenizer."""

    path: Path
    tokenizer: tokenizers.Tokenizer
    settings: Mapping[str, Json]
    config: Mapping[str, Json]
    truncation: int | None

    @classmethod
    def of(cls, path: Path) -> "_Folder":
        file = path / TOKENIZER_FILE
        if not file.is_file():
            make = f'AutoTokenizer.from_pretrained("{path}").save_pretrained("{path}")'
            raise BadCheckpoint(f"{file}: no such file; name its folder with --tokenizer, or make it with transformers: {make}")
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the Rust side raises bare Exception
            raise BadCheckpoint(f"{file}: not a tokenizer: {error}") from error
        truncation = (tokenizer.truncation or {}).get("max_length")
        # The bundle's max_tokens applies.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        settings, config = ({} if not (path / name).is_file() else read_object(path / name) for name in (TOKENIZER_CONFIG, CONFIG_FILE))
        return cls(path, tokenizer, settings, config, truncation)

    @property
    def max_tokens(self) -> int:
        """The least limit that tokenizer and config state, at most the service's."""
        positions = self.config.get("max_position_embeddings")
        if isinstance(positions, int) and self.config.get("model_type") in BEHIND_PADDING:
            positions -= 2
        stated = (self.settings.get("model_max_length"), self.truncation, positions)
        limits = [int(one) for one in stated if isinstance(one, int | float) and 0 < one < NO_LIMIT]
        if not limits:
            raise BadCheckpoint(f"{self.path}: nothing here says how many tokens the model reads; add --max-tokens N")
        return min(*limits, TOKENS_MAX)

    @property
    def pads_left(self) -> bool:
        return self.settings.get("padding_side") == "left"


def _build(
    own: OwnGraph,
    folder: _Folder,
    part: Path,
    labels: tuple[str, ...],
    max_tokens: int,
    pairs: bool,
    dev: Sequence[Example],
    identity: Mapping[str, Json],
) -> Imported:
    if not TOKENS_MIN <= max_tokens <= TOKENS_MAX:
        raise BadCheckpoint(f"--max-tokens must be from {TOKENS_MIN} to {TOKENS_MAX}, got {max_tokens}")
    folder.tokenizer.save(str(part / TOKENIZER_FILE))
    architecture = str(folder.config.get("model_type") or "onnx")
    names = {str(index): label for index, label in enumerate(labels)}
    vocabulary = 1 + max(folder.tokenizer.get_vocab().values(), default=0)
    indices: dict[str, Json] = {label: index for index, label in enumerate(labels)}
    own_names: dict[str, Json] = {"model_type": architecture, "id2label": names, "label2id": indices}
    config = {"vocab_size": vocabulary, **folder.config, **own_names}
    # A path of the maker's machine.
    config.pop("_name_or_path", None)
    write_object(part / CONFIG_FILE, config)
    served = part / graph_file(own.precision)
    own.save(served)
    tokenizer = Tokenizer(part / TOKENIZER_FILE, max_tokens)
    graph = Graph(tokenizer, _session(own, served, len(labels)), folder.pads_left)
    second = GOLDEN_PAIRS if pairs else ()
    rows = [tokenizer.encode(""), *tokenizer.encode_many(GOLDEN_TEXTS), *(tokenizer.encode(*pair) for pair in second)]
    _check_runs(own.path, graph, rows, len(labels), folder)
    rows += spread(encode_all(tokenizer, [example.whole for example in dev]), DEV_ROWS)
    calibration = calibrate(graph, dev, labels, None)
    golden = golden_set({"fp32": graph}, labels, second, INT8_TOLERANCE_MIN if own.precision.startswith("int") else TOLERANCE_MIN)
    moved = movement(graph, rows, len(labels), temperature=calibration.temperature)
    at_load = measure(
        lambda batch: stated(graph.logits(batch), len(labels), calibration.temperature).tolist(),
        mates_of(tokenizer, [Golden.model_validate(one) for one in golden.entries]),
    )
    # Unlike Python's max, numpy's keeps NaN.
    greatest = float(np.max([moved.probability_max, at_load.probability]))
    invariance = EXACT if greatest <= EXACT else float(f"{min(1.0, TOLERANCE_FACTOR * greatest):.2g}")
    found = Imported(own, labels, max_tokens, moved, invariance, golden, calibration)
    write_manifest(part, {**identity, **_manifest(found, architecture, pairs, folder.pads_left, graph, part)})
    return found


def _session(own: OwnGraph, served: Path, labels: int) -> Session:
    try:
        return Session(served, logits=labels, pairs_fit=False)
    except BadBundle as error:
        reason = str(error).removeprefix(f"{served}: ")
        versions = f"IR version {own.model.ir_version}, opset {', '.join(str(one.version) for one in own.model.opset_import)}"
        newer = "; export it with an older opset, or install a newer onnxruntime" if "version" in reason.lower() else ""
        raise BadCheckpoint(f"{own.path} ({versions}): {reason}{newer}") from error


def _check_runs(path: Path, graph: Graph, rows: Sequence[Row], labels: int, folder: _Folder) -> None:
    """Run what a server will: one row and several, the longest row, the last id of the vocabulary.

    A row of over COMPARED_TOKENS_MAX tokens runs alone: two would take twice its memory, and one is enough to find fixed shapes.
    """
    longest = graph.tokenizer.encode(" ".join([PARAGRAPH] * (1 + graph.tokenizer.max_tokens // 40)))
    beside = longest if longest.tokens <= COMPARED_TOKENS_MAX else longest.part(COMPARED_TOKENS_MAX - 1, 1)
    last = Row([max(folder.tokenizer.get_vocab().values(), default=0)] * TOKENS_MIN, None, False)
    of_vocabulary = f"the tokenizer has ids up to {last.ids[0]}, which the graph does not take: is it the model's own tokenizer?"
    fixed = "its shapes are fixed inside: export it with dynamic axes for rows and tokens"
    for batch, reason in (
        ([rows[1]], "export it again"),
        (rows[:3], fixed),
        ([last], of_vocabulary),
        ([longest], f"give --max-tokens N, fewer than {longest.tokens}"),
        ([beside, rows[0]], fixed),
    ):
        shown = f"{len(batch)} row{'s' * (len(batch) > 1)} of up to {max(row.tokens for row in batch)} tokens"
        try:
            logits = graph.logits(batch)
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            raise BadCheckpoint(f"{path}: cannot run {shown}: {reason} ({error})") from error
        if logits.shape != (len(batch), labels):
            raise BadCheckpoint(f"{path}: gives the shape {list(logits.shape)} for {shown} and {labels} labels")
        if not np.isfinite(logits).all():
            raise BadCheckpoint(f"{path}: gives logits that are not finite for {shown}; export it in fp32")
    if _are_probabilities(np.concatenate([graph.logits([row]) for row in rows[:8]])):
        raise BadCheckpoint(f"{path}: gives probabilities, which sum to 1, and not logits; export it without its last Softmax")


def _are_probabilities(logits: Logits) -> bool:
    return bool(((logits >= 0) & (logits <= 1)).all() and np.abs(logits.sum(axis=1) - 1).max() <= SUM_ERROR_MAX)


def _manifest(found: Imported, architecture: str, pairs: bool, pads_left: bool, graph: Graph, part: Path) -> dict[str, Json]:
    own, calibration = found.graph, found.calibration
    return {
        "format": 1,
        "labels": list(found.labels),
        "architecture": architecture,
        "max_tokens": found.max_tokens,
        "pairs": pairs,
        "default_truncation": "head",
        "inputs": list(own.inputs),
        "graphs": {
            "classify": [
                {
                    "file": graph_file(own.precision),
                    "precision": own.precision,
                    "providers": ["CPUExecutionProvider"],
                    "inputs": list(own.inputs),
                    "outputs": [graph.session.output],
                    "invariance": found.invariance,
                    "tolerance": found.golden.tolerance["fp32"],
                    "pairs_fit": False,
                }
            ]
        },
        "calibration": {"temperature": round(calibration.temperature, 5), "abstain_below": round(calibration.abstain_below, 5)},
        "padding_side": "left" if pads_left else "right",
        "windows": None,
        "golden": found.golden.entries,
        "accuracy": {"dev": calibration.dev.rounded()} if calibration.dev else {},
        "provenance": {
            "imported": {"file": own.path.name, "sha256": sha256(own.path), "changes": list(own.changes)},
            "calibration": {"texts": calibration.dev.rows if calibration.dev else 0},
            "batch_mates": {own.precision: three_digits(asdict(found.movement))},
            "libraries": library_versions(),
        },
        "files": file_entries(part),
    }
