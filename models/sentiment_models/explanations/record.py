"""Record a study in the manifest of its bundle: the default attribution and the trust in each method."""

from pathlib import Path

from pydantic import ValidationError

from sentiment.explain.methods.registry import METHODS
from sentiment.model.bundle import Manifest, load_bundle
from sentiment.model.trust import ExplanationsMeasured, MethodTrust, OverRandom
from sentiment_models.errors import ModelsError
from sentiment_models.explanations.conclusions import status
from sentiment_models.explanations.findings import ATTENTION, ATTRIBUTION, BASELINE, DatasetFound, Findings, MethodFound
from sentiment_models.export.manifest import MANIFEST_FILE, read_object, write_manifest
from sentiment_models.stored import problem, refuse_other


def record_findings(bundle: Path, findings: Findings) -> None:
    """Write the study of the first data set into the bundle's manifest, with its default attribution. The bundle's digest changes.

    Raises:
        ModelsError: the findings belong to another bundle or to a graph that is not served first, or lack the default method.
        sentiment.errors.BadBundle: the bundle is damaged.
    """
    manifest = load_bundle(bundle).manifest
    check_of(findings, manifest)
    served = manifest.graphs.classify[0].file
    if findings.graph != served:
        raise ModelsError(f"the findings were measured on {findings.graph}; the manifest records only those of the served graph, {served}")
    measured = measured_of(findings)
    written = {**read_object(bundle / MANIFEST_FILE), "explanations": measured.model_dump(mode="json", exclude_none=True)}
    write_manifest(bundle, written)


def check_of(findings: Findings, manifest: Manifest) -> None:
    """Check that findings belong to this export of this bundle, or of another version of it with the same graph.

    Raises:
        ModelsError: the bundle or the graph differs.
    """
    if findings.bundle.rpartition("/")[0] != manifest.name:
        raise ModelsError(f"the findings belong to bundle {findings.bundle}; this bundle is {manifest.name}/{manifest.version}")
    refuse_other(manifest, findings.graph, findings.graph_sha256, "the findings were measured on")


def measured_of(findings: Findings) -> ExplanationsMeasured:
    """Convert the study of the first data set to the manifest's form: the default first, without random orders, bounds and controls.

    Raises:
        ModelsError: the default is not a measured attribution of the service, or a figure is out of range.
    """
    default, (name, found) = findings.default_method, next(iter(findings.datasets.items()))
    if default not in METHODS:
        raise ModelsError(f"unknown default method {default!r}; the service has {', '.join(METHODS)}")
    try:
        return ExplanationsMeasured(
            default_method=default,
            dataset=name,
            texts=found.texts,
            words_max=found.words_max,
            operators=findings.operators,
            trust=tuple(
                _trust(method, found.methods[method], findings.operators) for method in _methods(found, default, findings.operators)
            ),
        )
    except ValidationError as error:
        raise ModelsError(f"the findings of {name} cannot be recorded: {problem(error)}") from error


def _methods(found: DatasetFound, default: str, operators: tuple[str, ...]) -> list[str]:
    """Return the methods that were compared with random orders with every operator."""
    compared = [
        name
        for name, one in found.methods.items()
        if one.kind in (ATTRIBUTION, ATTENTION, BASELINE)
        and all(operator in one.operators and one.operators[operator].over_random for operator in operators)
    ]
    return sorted(compared, key=lambda name: name != default)


def _trust(method: str, found: MethodFound, operators: tuple[str, ...]) -> MethodTrust:
    over = {
        operator: OverRandom(mean=one.over_random.mean, low=one.over_random.low, high=one.over_random.high)
        for operator, one in found.operators.items()
        if operator in operators and one.over_random is not None
    }
    first = found.operators[operators[0]]
    evidence = found.evidence
    return MethodTrust(
        method=method,
        kind=found.kind,
        over_random=over,
        better_than_random=status([found.operators[operator].over_random for operator in operators]) == "better",
        comprehensiveness=first.comprehensiveness,
        sufficiency=first.sufficiency,
        tested=evidence.tested if evidence else 0,
        better_of_tested=evidence.better_of_tested if evidence else None,
        stability=found.stability or {},
        rows=found.rows,
        ms=found.ms,
    )
