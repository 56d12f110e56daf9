"""``sentiment-models evaluate --explanations``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from sentiment.explain.methods.registry import METHODS
from sentiment.model.bundle import Manifest, load_bundle
from sentiment_models.commands.arguments import write_figures
from sentiment_models.commands.explanation_arguments import DOCUMENTS, TEXTS
from sentiment_models.errors import ModelsError
from sentiment_models.evaluation.evaluate import Dataset
from sentiment_models.explanations.page import as_page, as_text
from sentiment_models.explanations.plausibility import open_journal, plausibility_found, read_documents
from sentiment_models.explanations.record import record_findings
from sentiment_models.explanations.study import study
from sentiment_models.explanations.subject import Subject
from sentiment_models.explanations.training_findings import TrainingFindings
from sentiment_models.export.manifest import graph_file
from sentiment_models.stored import stored


def run(arguments: argparse.Namespace, datasets: Sequence[Dataset]) -> None:
    """Run the study, print it, and write and record what the flags ask for."""
    bundle, precision, resume, threads = arguments.bundle, arguments.precision, arguments.resume, arguments.threads
    manifest = load_bundle(bundle).manifest
    _check(arguments, manifest)
    if arguments.rationales:
        # Before the study, so that a journal of another run is refused at once.
        open_journal(Subject(bundle, precision), *_rationales(arguments))
    training = stored(arguments.attention_tests, TrainingFindings, "attention-tests") if arguments.attention_tests else None
    texts, seed, train, default = arguments.texts or TEXTS, arguments.seed, arguments.train, arguments.default
    findings = study(bundle, datasets, texts, seed, train, resume, threads, precision, default, arguments.methods)
    if arguments.rationales:
        found = plausibility_found(Subject(bundle, precision), *_rationales(arguments), threads)
        findings = findings.model_copy(update={"plausibility": found})
    write_figures(arguments, findings, as_text(findings, training), lambda: as_page(findings, training))
    if arguments.record:
        record_findings(bundle, findings)


def _rationales(arguments: argparse.Namespace) -> tuple[Path, int, int, list[Path], Path | None, list[str]]:
    resume = arguments.resume.with_name(f"{arguments.resume.name}.rationales") if arguments.resume else None
    return arguments.rationales, arguments.documents or DOCUMENTS, arguments.seed, arguments.train, resume, arguments.methods


def _check(arguments: argparse.Namespace, manifest: Manifest) -> None:
    """Check before the study what would otherwise fail after it."""
    served = manifest.graphs.classify[0].file
    if arguments.record and arguments.precision and graph_file(arguments.precision) != served:
        raise ModelsError(f"--record cannot be used with --precision: only the served graph, {served}, is recorded")
    if arguments.default and arguments.default not in METHODS:
        raise ModelsError(f"--default must be one of {', '.join(METHODS)}, got {arguments.default}")
    if arguments.rationales:
        read_documents(arguments.rationales, manifest.labels)
