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
from sentiment_models.data.labelled import PLAIN, Example, LabelledReading
from sentiment_models.errors import BadCheckpoint
from sentiment_models.evaluation.calibration import Calibration, calibrate
from sentiment_models.evaluation.metrics import stated
from sentiment_models.evaluation.reference import drawn_texts, record_texts
from sentiment_models.export.folders import new_bundle, refuse_replacing
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
from sentiment_models.export.positions import TOKENIZER_CONFIG, TOKENS_MIN, Reads, tokens_of
from sentiment_models.export.provenance import NO_ORIGIN, Facts, Json, library_versions, three_digits
from sentiment_models.export.verify import COMPARED_TOKENS_MAX, Movement, long_rows, movement, spread
from sentiment_models.reports.card import write_card

DEV_ROWS = 48
# Dynamic quantization rounds activations at borders, which another processor's last bit may move: allow this much of a logit.
INT8_TOLERANCE_MIN = 0.05
# Where ONNX Runtime does not load a file: what its reason has, and what the user can do.
WAYS_ON = {
    "not_implemented": "export it in float32",
    "tensor(float16)": "convert it with keep_io_types=True, or export it in float32",
    "version": "export it with an older opset, or install a newer onnxruntime",
}


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import found. ``movement``: the greatest of its texts; ``invariance``: of these, and of what a load measures."""

    graph: OwnGraph
    labels: tuple[str, ...]
    reads: Reads
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
    texts: Sequence[Path] = (),
    reading: LabelledReading = PLAIN,
    origin: Facts = NO_ORIGIN,
    force: bool = False,
    say: Callable[[str], object] = lambda _: None,
) -> Imported:
    """Make ``bundle`` of an ONNX file and its tokenizer, with its card.

    A failed import leaves nothing behind and does not change an existing bundle.

    Args:
        file: the ONNX file; its external data beside it.
        tokenizer: the folder with tokenizer.json; its tokenizer_config.json and config.json are read if they are there.
        bundle: the directory to make.
        name: the bundle's name.
        version: the bundle's version, from 1.
        labels: in the order of the logits.
        max_tokens: maximum tokens of a text, special tokens included; None: as many as ``tokens_of`` says that the model reads.
        pairs: the model reads pairs of texts.
        dev: labelled texts for calibration; None: no calibration.
        texts: files of texts like those that will be served, with labels or without, for the drift reference; empty: there is none.
        reading: how ``texts`` are read.
        origin: what is known of the model, for the manifest and the card: ``licence`` and ``note``.
        force: replace ``bundle`` if it exists.
        say: called with a line of what is to be known beforehand, and of progress.

    Raises:
        BadCheckpoint: the service cannot run the file, or something is missing that it does not say.
        ParityFailed: too few golden texts have a sure label.
        BadData: ``dev`` has labels that the model lacks, or a file of ``texts`` cannot be used.
        ModelsError: ``bundle`` exists and is not to be replaced, or is not a bundle, another process makes it, or the disk is full.
        sentiment.errors.BadBundle: the service would not load the result, for example because of its name.
    """
    refuse_replacing(bundle, force=force)
    graph = read_own(file)
    folder = _Folder.of(tokenizer)
    if graph.logits not in (None, len(labels)):
        raise BadCheckpoint(f"{file}: gives {graph.logits} logits a row, but {len(labels)} labels are named: {as_argument(labels)}")
    reads = tokens_of(folder.config, tokenizer, max_tokens)
    for line in (reads.line, *long_rows(reads.tokens, heads_of(folder.config))):
        say(line)
    known = drawn_texts(texts, pairs=pairs, reading=reading)
    with new_bundle(bundle, force=force) as part:
        found = _build(graph, folder, part, tuple(labels), reads, pairs, dev or (), origin, {"name": name, "version": version})
        served = load_classifier(part)
        if known:
            record_texts(part, served, known, texts, say)
        write_card(part)
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

    tokenizer: tokenizers.Tokenizer
    settings: Mapping[str, Json]
    config: Mapping[str, Json]

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
        # The bundle's max_tokens applies.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        settings, config = ({} if not (path / name).is_file() else read_object(path / name) for name in (TOKENIZER_CONFIG, CONFIG_FILE))
        return cls(tokenizer, settings, config)

    @property
    def pads_left(self) -> bool:
        return self.settings.get("padding_side") == "left"


def _build(
    own: OwnGraph,
    folder: _Folder,
    part: Path,
    labels: tuple[str, ...],
    reads: Reads,
    pairs: bool,
    dev: Sequence[Example],
    origin: Facts,
    identity: Mapping[str, Json],
) -> Imported:
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
    tokenizer = Tokenizer(part / TOKENIZER_FILE, reads.tokens)
    graph = Graph(tokenizer, _session(own, served, len(labels)), folder.pads_left)
    second = GOLDEN_PAIRS if pairs else ()
    rows = [tokenizer.encode(""), *tokenizer.encode_many(GOLDEN_TEXTS), *(tokenizer.encode(*pair) for pair in second)]
    _check_runs(own.path, graph, rows, len(labels), folder)
    rows += spread(encode_all(tokenizer, [example.whole for example in dev]), DEV_ROWS)
    calibration = calibrate(graph, dev, labels, None)
    golden = golden_set({"fp32": graph}, labels, second, INT8_TOLERANCE_MIN if own.precision.startswith("int") else TOLERANCE_MIN)
    mates = mates_of(tokenizer, [Golden.model_validate(one) for one in golden.entries])
    # Also of the rows of verify: other batches of fewer rows may move a probability further. Unlike Python's max, numpy's finds NaN.
    found = [movement(graph, some, len(labels), temperature=calibration.temperature) for some in (rows, mates)]
    moved = found[int(np.argmax([one.probability_max for one in found]))]
    at_load = measure(lambda batch: stated(graph.logits(batch), len(labels), calibration.temperature).tolist(), mates)
    greatest = float(np.max([moved.probability_max, at_load.probability]))
    invariance = EXACT if greatest <= EXACT else float(f"{min(1.0, TOLERANCE_FACTOR * greatest):.2g}")
    imported = Imported(own, labels, reads, moved, invariance, golden, calibration)
    write_manifest(part, {**identity, **_manifest(imported, architecture, pairs, folder.pads_left, origin, graph, part)})
    return imported


def _session(own: OwnGraph, served: Path, labels: int) -> Session:
    try:
        return Session(served, logits=labels, pairs_fit=False)
    except BadBundle as error:
        reason = str(error).removeprefix(f"{served}: ")
        versions = f"IR version {own.model.ir_version}, opset {', '.join(str(one.version) for one in own.model.opset_import)}"
        way_on = next((f"; {way}" for sign, way in WAYS_ON.items() if sign in reason.lower()), "")
        raise BadCheckpoint(f"{own.path} ({versions}): {reason}{way_on}") from error


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
    alone = np.concatenate([graph.logits([row]) for row in rows])
    if (moved := float(np.abs(alone[1] - graph.logits([rows[1]])).max())) > TOLERANCE_MIN:
        raise BadCheckpoint(
            f"{path}: answers the same text differently from run to run, by {moved:.2g} in a logit, so it has a random operator, such as "
            "RandomNormal, or Dropout in training mode; export it without, after model.eval() in torch"
        )
    if ((alone >= 0) & (alone <= 1)).all():
        raise BadCheckpoint(
            f"{path}: gives probabilities, all from 0 to 1, and not logits; remove its last node, Softmax or Sigmoid, or export it without"
        )


def _manifest(found: Imported, architecture: str, pairs: bool, pads_left: bool, origin: Facts, graph: Graph, part: Path) -> dict[str, Json]:
    own, calibration = found.graph, found.calibration
    return {
        "format": 1,
        "labels": list(found.labels),
        "architecture": architecture,
        "max_tokens": found.reads.tokens,
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
            "origin": {**origin, "file": own.path.name, "sha256": sha256(own.path), "changes": list(own.changes)},
            "calibration": {"texts": calibration.dev.rows if calibration.dev else 0},
            "batch_mates": {own.precision: three_digits(asdict(found.movement))},
            "libraries": library_versions(),
        },
        "files": file_entries(part),
    }
