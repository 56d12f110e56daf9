"""The tables of a bundle and its record as text: the stages of its training, its graphs, and everything that was measured.

Every figure comes from a measurement or the manifest; none is written by hand.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sentiment.model.bundle import GraphSpec, Manifest, load_bundle
from sentiment_models.export.manifest import CARD_FILE, MANIFEST_FILE, WEIGHTS_BESIDE, WEIGHTS_FILE, read_object
from sentiment_models.export.provenance import Facts, Json, facts, items, own_file, stages
from sentiment_models.reports import evaluation_page
from sentiment_models.reports.record import Record
from sentiment_tools.reports.html_report import plain

# Recipe settings that shape an untrained model and have no effect with a base.
UNTRAINED = {"layers", "heads", "width", "vocabulary"}


def tables(folder: Path, record: Record) -> str:
    """Lay out for a terminal what the manifest says of the making of a bundle, and everything that was measured on it.

    Raises:
        ModelsError: something was measured on another bundle; see ``Record.check_of``.
        sentiment.errors.BadBundle: the bundle is damaged.
    """
    bundle = load_bundle(folder)
    record.check_of(bundle.manifest)
    provenance = facts(read_object(folder / MANIFEST_FILE).get("provenance"))
    parts = [bundle.id, training_stages(provenance), *_long_texts(provenance), _graphs(bundle.manifest, provenance)]
    parts += [evaluation_page.as_text(one) for one in record.evaluations]
    # Only studies need the modules of their reports.
    if record.explanations is not None:
        from sentiment_models.explanations import page  # noqa: PLC0415

        parts.append(page.as_text(record.explanations))
    if record.attention_tests is not None:
        from sentiment_models.explanations import training_page  # noqa: PLC0415

        parts.append(training_page.as_text(record.attention_tests))
    return "\n\n".join(parts)


def _long_texts(provenance: Facts) -> Iterator[str]:
    """Yield the accuracies that the way of reading long texts was chosen by."""
    found = facts(provenance.get("long_texts"))
    if found:
        on = f"on {_number(found.get('texts'))} texts of {', '.join(facts(found.get('files')))}"
        yield f"Texts longer than the limit, {on}\n{plain(('truncation', 'accuracy'), list(facts(found.get('accuracy')).items()))}"


def training_stages(provenance: Facts) -> str:
    """Tell how the bundle was trained: one part for each stage, the first one first."""
    if own := own_file(provenance):
        return f"Made of the file {own.get('file')} (SHA-256 {own.get('sha256')}), which has no record of its training."
    known = stages(provenance.get("training"))
    if not known:
        return "The checkpoint has no record of its training."
    parts = [f"Stage {number} of {len(known)}\n{_stage(stage)}" for number, stage in enumerate(known, 1)]
    libraries = ", ".join(f"{name} {version}" for name, version in sorted(facts(provenance.get("libraries")).items()))
    return "\n\n".join([*parts, f"Exported with {libraries}."])


def _stage(training: Facts) -> str:
    resized = facts(training.get("resized"))
    if resized:
        size = f"{resized.get('layers')} layers of {resized.get('width')} dimensions"
        return f"Not trained: resized to {size} (seed {resized.get('seed')})."
    files = [_file(facts(file)) for file in items(training.get("files"))]
    lines = [plain(("file", "texts", "times per epoch", "SHA-256"), files)] if files else []
    others = items(training.get("averaged_with"))
    if others:
        # Earlier versions recorded the others' training instead of their names.
        names = ", ".join(other if isinstance(other, str) else "an earlier stage" for other in others)
        lines.append(f"The bundle's weights are the mean of those of this stage and of: {names}.")
    settings = facts(training.get("recipe"))
    idle = UNTRAINED if settings.get("base") else set()
    said = {name: value for name, value in sorted(settings.items()) if name not in idle and value != "" and not isinstance(value, list)}
    recipe = ", ".join(f"{name} {value}" for name, value in said.items())
    return "\n".join([*lines, _course(training), f"Recipe: {recipe}."])


def _file(row: Facts) -> tuple[object, ...]:
    teachers = ", ".join(str(teacher) for teacher in items(row.get("teachers")))
    more = ", last sentences" * bool(row.get("tails")) + f", probabilities of {teachers}" * bool(teachers)
    texts = _number(row.get("rows", row.get("documents")))
    return f"{row.get('file')}{more}", texts, str(row.get("times")), str(row.get("sha256"))[:16]


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
    looks = [facts(look) for look in items(training.get("history"))]
    accuracy = f"{_share(training.get('dev_accuracy'))} in training precision"
    if len(looks) == 1:
        return f"It was looked at once, after {_number(looks[0].get('step'))} steps, and chose nothing: accuracy {accuracy}."
    figures = ("dev_accuracy", "dev_macro_f1")
    best = next((look for look in looks if all(look.get(name) == training.get(name) for name in figures)), None)
    if best is None:
        return f"Accuracy on it: {accuracy}."
    return f"The best of {len(looks)} looks at it was kept, after {_number(best.get('step'))} steps: accuracy {accuracy}."


def _graphs(manifest: Manifest, provenance: Facts) -> str:
    header = ("graph", "size", "logit error, max", "probability error, mean", "batch mates, max", "bound", "tolerance at loading")
    rows = [_graph(manifest, graph, provenance) for graph in manifest.graphs.classify]
    total = sum(file.bytes for name, file in manifest.files.items() if name != CARD_FILE) / 1e6
    left_out = facts(provenance.get("left_out"))
    embeddings = "" if "int8" in left_out or own_file(provenance) else f" Embeddings in int8.onnx: {provenance.get('embeddings')}."
    said = (
        f"{_stored(manifest, provenance)}{embeddings} Batch mates: the largest change of a probability between a row alone and the row in "
        f"shuffled, longer padded batches. All files together: {total:.1f} MB."
    )
    said += "".join(f" There is no {name} graph: {reason}." for name, reason in left_out.items())
    return "\n".join(["Graphs", plain(header, rows), said, *_spellings(provenance)])


def _stored(manifest: Manifest, provenance: Facts) -> str:
    if own := own_file(provenance):
        changes = "; ".join(map(str, items(own.get("changes")))) or "nothing"
        beside = WEIGHTS_BESIDE in manifest.files
        outside = f" Its weights are in {WEIGHTS_BESIDE} ({_megabytes(manifest, WEIGHTS_BESIDE)})." if beside else ""
        return f"The graph is the file's own; changed: {changes}.{outside} There are no weights in torch to measure errors by."
    size, in_int8 = _megabytes(manifest, WEIGHTS_FILE), provenance.get("weights_in_int8")
    if "int8" in facts(provenance.get("left_out")):
        return (
            f"{WEIGHTS_FILE} has the weights in fp16 ({size}); fp32.onnx reads them from there. Errors are relative to torch with the same "
            "weights."
        )
    if in_int8 is None:  # made by 0.1.0
        return (
            f"{WEIGHTS_FILE} has the weights in fp16 ({size}); fp32.onnx reads them from there. int8.onnx has its own weights with one "
            "scale per column, and one activation scale per row. Errors are relative to torch with the same fp16 weights."
        )
    return (
        f"{WEIGHTS_FILE} has the weights ({size}), {in_int8} of them in int8 with a scale for each output of a layer or entry of a "
        "table, the others in fp16; the graphs read them from there. int8.onnx multiplies in int8, with one activation scale per row; "
        "fp32.onnx computes with what the int8 weights stand for. Errors of fp32.onnx are relative to torch with the stored weights, those "
        "of int8.onnx to torch with the weights before they were rounded to int8."
    )


def _spellings(provenance: Facts) -> Iterator[str]:
    found: Any = provenance.get("spellings")  # plain JSON; absent in bundles of earlier versions
    if found:
        files = ", ".join(f"{file['file']} ({file['sha256'][:16]})" for file in found["files"]) or f"the files of {found['base']}"
        yield (
            f"The tokenizer corrects {found['count']:,} misspelled words, each with one swapped or omitted letter. They were chosen by "
            f"word counts in {files}."
        )


def _graph(manifest: Manifest, graph: GraphSpec, provenance: Facts) -> tuple[object, ...]:
    parity = facts(facts(provenance.get("parity")).get(graph.precision))
    moved = facts(facts(provenance.get("batch_mates")).get(graph.precision))
    errors = (parity.get("logit_error_max"), parity.get("probability_error_mean"), moved.get("probability_max"))
    measured = ("-" if error is None else str(error) for error in errors)
    return graph.file, _megabytes(manifest, graph.file), *measured, str(graph.invariance), str(graph.tolerance)


def _megabytes(manifest: Manifest, file: str) -> str:
    size = manifest.files[file].bytes
    return f"{size / 1e6:.1f} MB"


def _number(value: Json) -> str:
    return f"{value:,}" if isinstance(value, int) else "an unknown number of"


def _share(value: Json) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "unknown"
