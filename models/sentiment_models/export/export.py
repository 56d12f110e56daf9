"""Export a checkpoint to a bundle: its weights once, an int8 and an fp32 graph, and a manifest with golden answers for both."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sentiment.batch_limits import EXACT
from sentiment.explain.engine.graph_check import load_graph
from sentiment.model.batch_mates import interleave
from sentiment.model.bundle import Mixed, TargetsSpec
from sentiment.model.classifier import load_classifier
from sentiment.model.scores import NEUTRAL
from sentiment.model.session import ExplainSession, Session
from sentiment.model.tokenizer import Row, Tokenizer
from sentiment_models.data.labelled import PLAIN, Example, LabelledReading, Source, wholes
from sentiment_models.errors import BadCheckpoint, ModelsError, NotExplainable, NotInInt8, ParityFailed
from sentiment_models.evaluation.calibration import MIXED_AT, Calibration, calibrate, calibrated_on
from sentiment_models.evaluation.reference import drawn_texts, record_texts
from sentiment_models.export.checkpoint import Checkpoint, one_thread, save_weights
from sentiment_models.export.folders import new_bundle, refuse_replacing
from sentiment_models.export.golden import GOLDEN_PAIRS, GOLDEN_TARGETS, GOLDEN_TEXTS, PARAGRAPH, GoldenSet, golden_set
from sentiment_models.export.graphs.explain_graph import explain_graph
from sentiment_models.export.graphs.flatten import flatten
from sentiment_models.export.graphs.graph import serialize
from sentiment_models.export.graphs.quantize import INT8, Embeddings, quantize
from sentiment_models.export.inference import Graph, encode_all
from sentiment_models.export.inherited import Inherited, inherited_of
from sentiment_models.export.labels import outputs_of, without_mixed
from sentiment_models.export.manifest import (
    CONFIG_FILE,
    EXPLAIN_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    file_entries,
    graph_file,
    sha256,
    write_manifest,
)
from sentiment_models.export.provenance import (
    NO_ORIGIN,
    Facts,
    Json,
    distinct_names,
    facts,
    library_versions,
    three_digits,
    without_folders,
)
from sentiment_models.export.spellings import add_spellings, learn_spellings
from sentiment_models.export.verify import (
    COMPARED_TOKENS_MAX,
    EXPLAIN_TOLERANCE,
    ExplainParity,
    Movement,
    Parity,
    check_explain_parity,
    check_movement,
    check_parity,
    explain_parity,
    long_rows,
    movement,
    parity,
    shortened,
    spread,
)
from sentiment_models.export.weights import put_real, refer, rounded, stored_tensors
from sentiment_models.reports.card import write_card
from sentiment_models.training.bases import training_of
from sentiment_models.training.label import read_inputs

PRECISIONS = ("int8", "fp32")
"""In order of preference: a server serves the first graph that passes its golden set on its machine."""

PARITY_DEV_ROWS = 48
INVARIANCE_DEV_ROWS = 48
EXPLAIN_DEV_ROWS = 16

NO_REFERENCE = (
    "no drift reference: {names} of {base} count its answers, not those of this model; give the training files with --texts, or add one "
    "later with sentiment-models reference"
)

FLATTENED = "int8.onnx is flattened: its last layer is computed only for the first token"
NOT_FLATTENED = (
    "int8.onnx is not flattened, because the encoder of this {family} was not recognized: its last layer is computed for every token "
    "(flattening works for encoders built as BERT's, such as RoBERTa's and ELECTRA's, and saves a seventh of the work of six layers)"
)

ONLY_FP32 = "no int8 graph: {reason}; the bundle is served in fp32, which takes about twice the time"
NO_EXPLAIN = (
    "no explain graph: {reason}; the bundle has no attention maps, head views and gradient methods, and explains by erasing words, with "
    "evidence and counterfactuals"
)

Say = Callable[[str], object]
"""Called with a line of progress at each step."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The name and version of a bundle, its labels, and facts that the checkpoint does not hold."""

    name: str
    version: int
    labels: tuple[str, ...]
    # Name of the pre-trained model; None: the name in training.json.
    base: str | None = None
    # Whether the bundle reads pairs of texts, too.
    pairs: bool = False
    # Tokens of a row of a text and a target; None: it answers no targets.
    targets: int | None = None
    # The threshold of mixed texts without development texts; None: the checkpoint has no output beside the labels.
    mixed_at: float | None = None

    @property
    def second_texts(self) -> tuple[tuple[str, str], ...]:
        """Golden texts with a second one, as the bundle reads them."""
        return GOLDEN_PAIRS if self.pairs else GOLDEN_TARGETS if self.targets else ()


@dataclass(frozen=True, slots=True)
class Exported:
    """Measurements of an export by precision; without int8 if the model can be served only in fp32.

    ``base_temperature`` is the one that the calibration started from, None without a base whose head it has; ``explain`` the parity of the
    explain graph, None without one; ``weights_in_int8`` how many weights are stored in int8. ``left_out``: why there is no ``int8`` or
    ``explain`` graph.
    """

    parity: dict[str, Parity]
    movement: dict[str, Movement]
    golden: GoldenSet
    calibration: Calibration
    base_temperature: float | None
    explain: ExplainParity | None
    weights_in_int8: int
    left_out: Mapping[str, str]


def export(
    checkpoint: Path,
    bundle: Path,
    *,
    name: str,
    version: int,
    dev: Sequence[Example] | None = None,
    base: str | None = None,
    embeddings: Embeddings = "int8",
    pairs: bool = False,
    mixed: bool = False,
    targets: int | None = None,
    max_tokens: int | None = None,
    spellings: Sequence[Path] = (),
    texts: Sequence[Path] = (),
    reading: LabelledReading = PLAIN,
    labels: Sequence[str] = (),
    tokenizer: Path | None = None,
    origin: Facts = NO_ORIGIN,
    card: bool = False,
    force: bool = False,
    say: Say = lambda _: None,
) -> Exported:
    """Make ``bundle`` from a checkpoint directory that transformers saved. Repeated exports on one machine give the same bytes.

    Of a checkpoint that was trained from a bundle, the result keeps how that reads long texts, its spellings, and its study of
    explanations, marked as the base's.

    The bundle is built in ``<bundle>.part`` and renamed after all checks. A failed export leaves nothing behind and does not change an
    existing bundle. The remains of a killed export are removed by the next one.

    Args:
        checkpoint: the directory.
        bundle: the directory to make.
        name: the bundle's name.
        version: the bundle's version, from 1.
        dev: labelled texts for calibration, other than those that accuracy is reported on; None: no calibration.
        base: name of the pre-trained model, for a training.json that holds only its folder.
        embeddings: how int8.onnx stores the embedding tables.
        pairs: the checkpoint was trained on pairs of texts. The bundle reads pairs, and the checks use pairs, too.
        mixed: the checkpoint's last label, ``mixed``, is not a label of the bundle but an output beside them. The same holds if the
            base has this output and the checkpoint has its labels.
        targets: the checkpoint was trained on pairs of a text and a target. The bundle answers the sentiment towards targets from at most
            this many tokens around their mention. None: as the base does, if the labels have ``neutral``.
        max_tokens: maximum tokens of a text, special tokens included; None: those of the base bundle, or else as many as ``tokens_of``
            says that the checkpoint reads.
        spellings: files of texts, .txt with one text per line or labelled files. The tokenizer reads misspelled words as words that are
            frequent in them. None: those of the base, if that is a bundle; else it reads misspelled words in pieces.
        texts: files of texts like those that will be served, with labels or without, such as the training files. They are the drift
            reference of the server. None: there is no reference, because those of a base count the base's answers. A model is surer of
            texts that it was trained on than of new ones, so texts that were held out make the better reference.
        reading: how ``spellings`` and ``texts`` are read.
        labels: names for the checkpoint's outputs, in their order; empty: those of its config.json.
        tokenizer: the folder of the tokenizer; None: ``checkpoint``.
        origin: where the checkpoint comes from, for the manifest and the card: ``checkpoint``, ``licence`` and ``note``.
        card: write the model card, which otherwise ``write_card`` adds.
        force: replace ``bundle`` if it exists.
        say: called with a line of progress at each step.

    Raises:
        BadCheckpoint: the checkpoint cannot be used, its family is not supported, its last label is not ``mixed`` though it should, or it
            has no label ``neutral``, the answer for targets that are not named.
        ParityFailed: the fp32 graph does not compute what torch computes, or its answers depend on batch mates. If the int8 or the explain
            graph fails its proof, the bundle has none.
        BadData: ``dev`` has labels that the model lacks, ``spellings`` has too few words, or ``texts`` cannot be read. Raised before the
            graphs are made.
        ModelsError: ``bundle`` exists and is not to be replaced, or is not a bundle, another process makes it, or the disk is full.
        sentiment.errors.BadBundle: the service would not load the result, for example because of its name.
    """
    refuse_replacing(bundle, force=force)
    inherited = inherited_of(checkpoint)
    loaded = Checkpoint(checkpoint, max_tokens or (inherited.max_tokens if inherited else None), labels, tokenizer)
    identity = _identity(loaded, inherited, Identity(name, version, (), base, pairs, targets, MIXED_AT if mixed else None))
    if identity.second_texts:
        loaded.check_pairs()
    for line in (loaded.reads.line, *long_rows(loaded.max_tokens, loaded.heads)):
        say(line)
    known = drawn_texts(texts, pairs=identity.pairs, reading=reading)
    with new_bundle(bundle, force=force) as part:
        with one_thread():
            exported = _build(loaded, part, identity, inherited, dev or (), embeddings, spellings, reading, origin, say)
        say("loading the bundle with the service's code")
        served, *_ = [load_classifier(part, precision) for precision in exported.parity]
        if served.manifest.graphs.explain:
            load_graph(served, served.manifest.graphs.explain)
        if known:
            record_texts(part, served, known, texts, say)
        elif inherited and inherited.references:
            say(NO_REFERENCE.format(base=inherited.bundle, names=", ".join(inherited.references)))
        if card:
            write_card(part)
    return exported


def _identity(checkpoint: Checkpoint, inherited: Inherited | None, given: Identity) -> Identity:
    """What is given, with what a base hands on."""
    names, config = tuple(checkpoint.labels), checkpoint.path / CONFIG_FILE
    as_base = inherited is not None and _names(names) == _names(outputs_of(inherited.labels, inherited.mixed))
    of_base = inherited.mixed.at if inherited and inherited.mixed and as_base else None
    mixed_at = given.mixed_at if of_base is None else of_base
    labels = names if mixed_at is None else tuple(without_mixed(names, config))
    neutral = NEUTRAL in map(str.casefold, labels)
    of_base_targets = inherited.targets.tokens if inherited and inherited.targets and neutral else None
    targets = given.targets or of_base_targets
    if targets and not neutral:
        raise BadCheckpoint(f"{config}: --targets needs a label {NEUTRAL}, the answer for targets that a text does not name")
    if targets and targets > checkpoint.max_tokens:
        raise ModelsError(f"--targets must be at most {checkpoint.max_tokens}, the tokens that the bundle reads, got {targets}")
    pairs = given.pairs or (inherited is not None and inherited.pairs)
    if pairs and targets:
        raise ModelsError("--pairs and --targets exclude each other: a second text would be both")
    return replace(given, labels=labels, pairs=pairs, targets=targets, mixed_at=mixed_at)


def _build(
    checkpoint: Checkpoint,
    part: Path,
    identity: Identity,
    inherited: Inherited | None,
    dev: Sequence[Example],
    embeddings: Embeddings,
    spellings: Sequence[Path],
    reading: LabelledReading,
    origin: Facts,
    say: Say,
) -> Exported:
    # Temperature and explanations are of one head, which a new one has not of the base. Neither depends on the order of labels.
    same = inherited if inherited and _names(inherited.labels) == _names(identity.labels) else None
    learned = _learned(checkpoint, spellings, reading, say) if spellings else inherited.spellings if inherited else {}
    try:
        proved = _proved(checkpoint, part, identity, dev, PRECISIONS, embeddings, learned, say)
    except NotInInt8 as error:
        say(ONLY_FP32.format(reason=error))
        proved = _proved(checkpoint, part, identity, dev, ("fp32",), embeddings, learned, say)
        proved.left_out["int8"] = str(error)
    graphs = proved.graphs
    known = Calibration(same.calibration.temperature, same.calibration.abstain_below) if same else None
    # Targets are calibrated as whole texts are: there is one temperature, and most answers are of whole texts.
    judging = wholes(dev, targets=identity.targets is not None)
    say(calibrated_on(judging, known, pairs=identity.pairs))
    calibration = calibrate(next(iter(graphs.values())), judging, identity.labels, known, identity.mixed_at)
    in_int8 = sum(name.endswith(INT8) for name in stored_tensors(part / WEIGHTS_FILE))
    exported = Exported(
        proved.parity,
        proved.movement,
        proved.golden,
        calibration,
        known.temperature if known else None,
        proved.explain,
        in_int8,
        proved.left_out,
    )
    provenance = {
        **_provenance(checkpoint.path, identity.base, embeddings, exported),
        "spellings": _spelled(learned, spellings, inherited),
        "kept_of": inherited.bundle if inherited else None,
        **({"origin": origin} if origin else {}),
    }
    manifest = _manifest(checkpoint, identity, graphs, exported, provenance, file_entries(part))
    kept = {**(inherited.truncation(checkpoint.max_tokens) if inherited else {}), **(same.study() if same else {})}
    write_manifest(part, {**manifest, **kept})
    return exported


@dataclass(frozen=True, slots=True)
class _Proved:
    """The graphs of ``precisions`` in a bundle's folder, and what their proof measured. As in ``Exported``."""

    graphs: Mapping[str, Graph]
    parity: dict[str, Parity]
    movement: dict[str, Movement]
    golden: GoldenSet
    explain: ExplainParity | None
    left_out: dict[str, str]


def _proved(
    checkpoint: Checkpoint,
    part: Path,
    identity: Identity,
    dev: Sequence[Example],
    precisions: Sequence[str],
    embeddings: Embeddings,
    spellings: Mapping[str, str],
    say: Say,
) -> _Proved:
    """Write the weights, the tokenizer and the graphs, and prove the graphs.

    Raises:
        NotInInt8: only the int8 graph failed.
        ParityFailed: another one did.
    """
    stored, no_explain = _write_graphs(checkpoint, part, precisions, embeddings, say)
    if spellings:
        add_spellings(part / TOKENIZER_FILE, spellings)
    tokenizer = Tokenizer(part / TOKENIZER_FILE, checkpoint.max_tokens)
    pads_left = checkpoint.family.padding_side == "left"
    graphs = {p: Graph(tokenizer, Session(part / graph_file(p), logits=len(checkpoint.labels)), pads_left) for p in precisions}
    say("comparing the graphs with torch, and single rows with batches")
    rows = _rows(tokenizer, dev, identity)
    found = {"fp32": _prove("fp32", graphs["fp32"], stored, rows, len(identity.labels))}
    try:
        if "int8" in graphs:
            found = {"int8": _prove("int8", graphs["int8"], checkpoint, rows, len(identity.labels)), **found}
        golden = golden_set(graphs, identity.labels, identity.second_texts)
    except ParityFailed as error:
        raise (NotInInt8 if "int8" in graphs else ParityFailed)(str(error)) from error
    try:
        explain = _prove_explain(part, tokenizer, stored, rows)
    except ParityFailed as error:
        (part / EXPLAIN_FILE).unlink()
        explain, no_explain = None, str(error)
    if no_explain:
        say(NO_EXPLAIN.format(reason=no_explain))
    parities = {p: same for p, (same, _) in found.items()}
    movements = {p: moved for p, (_, moved) in found.items()}
    return _Proved(graphs, parities, movements, golden, explain, {"explain": no_explain} if no_explain else {})


def _write_graphs(
    checkpoint: Checkpoint, part: Path, precisions: Sequence[str], embeddings: Embeddings, say: Say
) -> tuple[Checkpoint, str]:
    """Write the weights and the graphs. Returns the checkpoint with the weights as they are stored, and why there is no explain graph."""
    say(f"writing the {' and '.join(reversed(precisions))} graphs")
    checkpoint.save(part)
    stored = checkpoint.weights
    whole = checkpoint.to_onnx(stored)
    graphs = {"fp32": whole}
    (part / graph_file("int8")).unlink(missing_ok=True)
    if "int8" in precisions:
        flat = flatten(whole) if checkpoint.family.reads == "first" else whole
        say(NOT_FLATTENED.format(family=checkpoint.architecture) if flat is whole else FLATTENED)
        graphs["int8"] = quantize(flat, embeddings)
        stored = rounded(stored, graphs["int8"])
        put_real(whole, stored)
    save_weights(stored, part / WEIGHTS_FILE)
    for precision, graph in graphs.items():
        (part / graph_file(precision)).write_bytes(serialize(refer(graph, part / WEIGHTS_FILE)))
    try:
        (part / EXPLAIN_FILE).write_bytes(serialize(refer(explain_graph(whole, checkpoint.heads), part / WEIGHTS_FILE)))
    except NotExplainable as error:
        return checkpoint.with_weights(stored), str(error)
    return checkpoint.with_weights(stored), ""


def _names(labels: Sequence[str]) -> list[str]:
    """The labels as training compares them: in any order and case."""
    return sorted(label.casefold() for label in labels)


def _learned(checkpoint: Checkpoint, files: Sequence[Path], reading: LabelledReading, say: Say) -> dict[str, str]:
    say("learning spellings")
    inputs = (one for path in files for one in read_inputs(Source(path), checkpoint.labels, 0, reading))
    texts = (text for one in inputs for text in (one.text, one.text_pair) if text)
    return learn_spellings(checkpoint.tokenizer, texts, ", ".join(map(str, files)))


def _spelled(learned: Mapping[str, str], files: Sequence[Path], inherited: Inherited | None) -> dict[str, Json] | None:
    if not learned:
        return None
    named = zip(distinct_names(files), files, strict=True)
    base = {"base": inherited.bundle} if inherited and not files else {}
    return {"count": len(learned), "files": [{"file": name, "sha256": sha256(path)} for name, path in named], **base}


@dataclass(frozen=True, slots=True)
class _Rows:
    """``always``: the shortest row, a long row and the golden texts; ``read``: rows of the development set. None has more than
    COMPARED_TOKENS_MAX tokens.
    """

    always: list[Row]
    read: list[Row]


def _rows(tokenizer: Tokenizer, dev: Sequence[Example], identity: Identity) -> _Rows:
    longest = " ".join([PARAGRAPH] * 12)
    always = [tokenizer.encode(""), tokenizer.encode(longest), *tokenizer.encode_many(GOLDEN_TEXTS)]
    read = encode_all(tokenizer, [example.whole for example in dev])
    if identity.second_texts:
        always += [tokenizer.encode("", ""), tokenizer.encode(longest, longest)]
        always += [tokenizer.encode(*pair) for pair in identity.second_texts]
    if identity.pairs:
        read += [tokenizer.encode(one.text, other.text) for one, other in zip(dev[::2], dev[1::2], strict=False)]
    return _Rows(shortened(always, COMPARED_TOKENS_MAX), shortened(read, COMPARED_TOKENS_MAX))


def _prove(precision: str, graph: Graph, torch: Checkpoint, rows: _Rows, labels: int) -> tuple[Parity, Movement]:
    same = parity(graph, torch.logits, interleave([*rows.always, *spread(rows.read, PARITY_DEV_ROWS)]), labels)
    check_parity(precision, same)
    moved = movement(graph, [*rows.always, *spread(rows.read, INVARIANCE_DEV_ROWS)], labels)
    check_movement(precision, moved)
    return same, moved


def _prove_explain(part: Path, tokenizer: Tokenizer, checkpoint: Checkpoint, rows: _Rows) -> ExplainParity | None:
    if not (part / EXPLAIN_FILE).exists():
        return None
    session = ExplainSession(part / EXPLAIN_FILE)
    measured = explain_parity(session, tokenizer, checkpoint.explained, interleave([*rows.always, *spread(rows.read, EXPLAIN_DEV_ROWS)]))
    check_explain_parity(measured)
    return measured


def _manifest(
    checkpoint: Checkpoint,
    identity: Identity,
    graphs: Mapping[str, Graph],
    exported: Exported,
    provenance: dict[str, Json],
    files: dict[str, Json],
) -> dict[str, Json]:
    calibration = exported.calibration
    further: dict[str, Json] = {
        **({"mixed": Mixed(at=calibration.mixed.at).model_dump()} if calibration.mixed else {}),
        **({"targets": TargetsSpec(tokens=identity.targets).model_dump()} if identity.targets else {}),
    }
    # Only the fixed outputs: those of the layers are read from the graph itself.
    explain = _entry(EXPLAIN_FILE, "fp32", checkpoint.family.inputs, ["logits", "embedding_dots"], EXPLAIN_TOLERANCE)
    return {
        "format": 1,
        "name": identity.name,
        "version": identity.version,
        "labels": list(identity.labels),
        "architecture": checkpoint.architecture,
        "max_tokens": checkpoint.max_tokens,
        "pairs": identity.pairs,
        "default_truncation": "head",
        "inputs": list(checkpoint.family.inputs),
        "graphs": {
            "classify": [
                {
                    **_entry(graph_file(p), p, graphs[p].session.inputs, [graphs[p].session.output], exported.golden.tolerance[p]),
                    "pairs_fit": graphs[p].session.pairs_fit,
                }
                for p in graphs
            ],
            **({} if exported.explain is None else {"explain": explain}),
        },
        "calibration": {"temperature": round(calibration.temperature, 5), "abstain_below": round(calibration.abstain_below, 5)},
        "padding_side": checkpoint.family.padding_side,
        "windows": None,
        **further,
        "golden": exported.golden.entries,
        "accuracy": {"dev": calibration.dev.rounded()} if calibration.dev else {},
        "provenance": provenance,
        "files": files,
    }


def _entry(file: str, precision: str, inputs: Sequence[str], outputs: Sequence[str], tolerance: float) -> dict[str, Json]:
    return {
        "file": file,
        "precision": precision,
        "providers": ["CPUExecutionProvider"],
        "inputs": list(inputs),
        "outputs": list(outputs),
        "invariance": EXACT,
        "tolerance": tolerance,
    }


def _provenance(checkpoint: Path, base: str | None, embeddings: Embeddings, exported: Exported) -> dict[str, Json]:
    training = without_folders(training_of(str(checkpoint)))
    return {
        "base": base or facts(facts(training).get("recipe")).get("base"),
        "training": training,
        "embeddings": embeddings,
        "weights_in_int8": exported.weights_in_int8,
        "left_out": dict(exported.left_out),
        "parity": {p: three_digits(asdict(measured)) for p, measured in exported.parity.items()},
        "explain_parity": None if exported.explain is None else three_digits(asdict(exported.explain)),
        "calibration": {
            "texts": exported.calibration.dev.rows if exported.calibration.dev else 0,
            "base_temperature": exported.base_temperature,
            "temperature_95": [round(one, 3) for one in exported.calibration.interval or ()],
            **({"mixed": asdict(exported.calibration.mixed)} if exported.calibration.mixed else {}),
        },
        "batch_mates": {p: three_digits(asdict(measured)) for p, measured in exported.movement.items()},
        "libraries": library_versions(),
    }
