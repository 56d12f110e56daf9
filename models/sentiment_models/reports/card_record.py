"""The record of a bundle beside its card: how each stage was trained, every table of its evaluations, graphs and explanations.

Every figure comes from a measurement or the manifest; none is written by hand.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sentiment.model.bundle import Bundle, GraphSpec, Manifest
from sentiment_models.evaluation.findings import Evaluation
from sentiment_models.explanations.findings import Findings
from sentiment_models.explanations.training_findings import TrainingFindings
from sentiment_models.export.manifest import CARD_FILE, WEIGHTS_FILE
from sentiment_models.export.provenance import Json
from sentiment_models.reports import card_figures
from sentiment_models.reports.card_explanations import explanations
from sentiment_tools.reports.html_report import markdown

Facts = Mapping[str, Json]
# Recipe settings that shape an untrained model and have no effect with a base.
UNTRAINED = {"layers", "heads", "width", "vocabulary"}


def record(
    bundle: Bundle,
    digest: str,
    provenance: Facts,
    evaluations: Sequence[Evaluation],
    findings: Findings | None,
    training: TrainingFindings | None,
) -> str:
    """Compose the record's text. ``digest``: of the manifest without the card."""
    manifest = bundle.manifest
    measured = manifest.explanations
    default = measured.default_method if measured else findings.default_method if findings else ""
    sections = (
        f"# Record of {bundle.id}\n\nOf the manifest whose SHA-256 without the card is `{digest}`. The model card says what the model is "
        "for and how good it is; this file has how it was trained, and every table that was measured. `sentiment-models card` writes both.",
        training_stages(provenance),
        card_figures.figures(manifest, evaluations),
        *_long_texts(provenance),
        _calibration(manifest),
        _graphs(manifest, provenance),
        explanations(findings, default, training, measured),
    )
    return "\n\n".join(sections) + "\n"


def _long_texts(provenance: Facts) -> list[str]:
    """Return the section on long texts: the accuracies that the way of reading them was chosen by."""
    found = _facts(provenance.get("long_texts"))
    if not found:
        return []
    rows = [(way, accuracy) for way, accuracy in _facts(found.get("accuracy")).items()]
    note = f"Accuracy by way of reading, on {_number(found.get('texts'))} texts of {', '.join(_facts(found.get('files')))}."
    return [f"## Texts longer than the limit\n\n{note}\n\n{markdown(('truncation', 'accuracy'), rows)}"]


def training_stages(provenance: Facts) -> str:
    """Compose the section of training: one part for each stage, the first one first."""
    stages = _stages(provenance.get("training"))
    lines = ["## Training", ""]
    if not stages:
        return "\n".join([*lines, "The checkpoint has no record of its training."])
    for number, stage in enumerate(stages, 1):
        if len(stages) > 1:
            lines += [f"### Stage {number} of {len(stages)}", ""]
        lines += [*_stage(stage), ""]
    libraries = ", ".join(f"{name} {version}" for name, version in sorted(_facts(provenance.get("libraries")).items()))
    return "\n".join([*lines, f"Exported with {libraries}."])


def _stages(training: Json) -> list[Facts]:
    """Return the stages of training, the first one first: a model may be fine-tuned from one with a record of its own."""
    facts = _facts(training)
    return [*_stages(facts.get("base_training")), facts] if facts else []


def _stage(training: Facts) -> list[str]:
    lines = []
    resized = _facts(training.get("resized"))
    if resized:
        size = f"{resized.get('layers')} layers of {resized.get('width')} dimensions"
        return [f"Not trained: resized to {size} (seed {resized.get('seed')})."]
    rows = [_facts(file) for file in _items(training.get("files"))]
    if rows:
        lines += ["| file | texts | times per epoch | SHA-256 |", "|---|---:|---:|---|"]
        for row in rows:
            teachers = ", ".join(f"`{teacher}`" for teacher in _items(row.get("teachers")))
            more = ", last sentences" * bool(row.get("tails")) + f", probabilities of {teachers}" * bool(teachers)
            texts = _number(row.get("rows", row.get("documents")))
            lines.append(f"| {row.get('file')}{more} | {texts} | {row.get('times')} | `{str(row.get('sha256'))[:16]}` |")
        lines.append("")
    others = _items(training.get("averaged_with"))
    if others:
        # Earlier versions recorded the others' training instead of their names.
        names = ", ".join(other if isinstance(other, str) else "an earlier stage" for other in others)
        lines += [f"The bundle's weights are the mean of those of this stage and of: {names}.", ""]
    settings = _facts(training.get("recipe"))
    idle = UNTRAINED if settings.get("base") else set()
    said = {name: value for name, value in sorted(settings.items()) if name not in idle and value != "" and not isinstance(value, list)}
    recipe = ", ".join(f"{name} {value}" for name, value in said.items())
    return [*lines, _course(training), "", f"Recipe: {recipe}."]


def _course(training: Facts) -> str:
    steps = f"{_number(training.get('steps'))} optimizer steps"
    if "train_documents" in training:
        return (
            f"Pre-training on {_number(training.get('train_documents'))} documents without labels, {steps}; "
            f"{_number(training.get('dev_documents'))} held-out documents selected the checkpoint."
        )
    of_base = training.get("dev_of_base")
    seen = f" {_number(of_base)} of them are in files that the base was trained on." if of_base else ""
    return (
        f"{_number(training.get('train_examples'))} examples, {steps}. The stage's development set has "
        f"{_number(training.get('dev_examples'))} texts; no text of it, nor a copy of one, is in its training set."
        f"{seen} {_chosen(training)}"
    )


def _chosen(training: Facts) -> str:
    """Say what the development set of a stage chose: nothing, if it was looked at once."""
    looks = [_facts(look) for look in _items(training.get("history"))]
    accuracy = f"{_share(training.get('dev_accuracy'))} in training precision"
    if len(looks) == 1:
        return f"It was looked at once, after {_number(looks[0].get('step'))} steps, and chose nothing: accuracy {accuracy}."
    best = next((look for look in looks if look.get("dev_accuracy") == training.get("dev_accuracy")), None)
    if best is None:
        return f"Accuracy on it: {accuracy}."
    return f"The best of {len(looks)} looks at it was kept, after {_number(best.get('step'))} steps: accuracy {accuracy}."


def _calibration(manifest: Manifest) -> str:
    calibration = manifest.calibration
    dev = manifest.accuracy.get("dev")
    held = f" On that set: accuracy {dev.accuracy:.4f}, ECE {dev.ece:.4f} ({dev.rows:,} texts)." if dev else ""
    how = "is fitted on the development set with the served graph" if dev else "is not fitted: there was no development set"
    return (
        "## Calibration\n\n"
        f"Probability is softmax(logits / {calibration.temperature}). The temperature {how}.{held} Answers with a probability below "
        f"{calibration.abstain_below} are marked `abstain`."
    )


def _graphs(manifest: Manifest, provenance: Facts) -> str:
    lines = [
        "## Graphs",
        "",
        _stored(manifest, provenance) + f" Embeddings in int8.onnx: {provenance.get('embeddings')}. It uses operators that only ONNX "
        "Runtime has. *Batch mates* is the largest change of a probability between a row alone and the row in shuffled, longer padded "
        "batches.",
        "",
        "| graph | size | largest logit error | mean probability error | batch mates, largest move | bound | tolerance at loading |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [_graph_row(manifest, graph, provenance) for graph in manifest.graphs.classify]
    total = sum(file.bytes for name, file in manifest.files.items() if name != CARD_FILE) / 1e6
    return "\n".join([*lines, "", f"All files together: {total:.1f} MB.", *_spellings(provenance)])


def _stored(manifest: Manifest, provenance: Facts) -> str:
    size, in_int8 = _megabytes(manifest, WEIGHTS_FILE), provenance.get("weights_in_int8")
    if in_int8 is None:  # made by 0.1.0
        return (
            f"`{WEIGHTS_FILE}` has the weights in fp16 ({size}); fp32.onnx reads them from there. int8.onnx has its own weights with one "
            "scale per column, and one activation scale per row. Errors are relative to torch with the same fp16 weights."
        )
    return (
        f"`{WEIGHTS_FILE}` has the weights ({size}), {in_int8} of them in int8 with a scale for each output of a layer or entry of a "
        "table, the others in fp16; the graphs read them from there. int8.onnx multiplies in int8, with one activation scale per row; "
        "fp32.onnx computes with what the int8 weights stand for. Errors of fp32.onnx are relative to torch with the stored weights, those "
        "of int8.onnx to torch with the weights before they were rounded to int8."
    )


def _spellings(provenance: Facts) -> list[str]:
    found: Any = provenance.get("spellings")  # plain JSON; absent in bundles of earlier versions
    if not found:
        return []
    files = ", ".join(f"{file['file']} (`{file['sha256'][:16]}`)" for file in found["files"]) or f"the files of {found['base']}"
    return [
        "",
        f"The tokenizer corrects {found['count']:,} misspelled words, each with one swapped or omitted letter. "
        f"They were chosen by word counts in {files}.",
    ]


def _graph_row(manifest: Manifest, graph: GraphSpec, provenance: Facts) -> str:
    parity = _facts(_facts(provenance.get("parity")).get(graph.precision))
    moved = _facts(_facts(provenance.get("batch_mates")).get(graph.precision))
    return (
        f"| {graph.file} | {_megabytes(manifest, graph.file)} | {parity.get('logit_error_max')} | {parity.get('probability_error_mean')} "
        f"| {moved.get('probability_max')} | {graph.invariance} | {graph.tolerance} |"
    )


def _megabytes(manifest: Manifest, file: str) -> str:
    size = manifest.files[file].bytes
    return f"{size / 1e6:.1f} MB"


def _number(value: Json) -> str:
    return f"{value:,}" if isinstance(value, int) else "an unknown number of"


def _share(value: Json) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "unknown"


def _facts(value: Json) -> Facts:
    return value if isinstance(value, Mapping) else {}


def _items(value: Json) -> Sequence[Json]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()
