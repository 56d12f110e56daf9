"""Count how a bundle answers texts that it knows: a reference with which its server compares the texts of today."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError
from tqdm import tqdm

from sentiment.explain.engine import Explainer
from sentiment.explain.engine.projections import layer_of, project
from sentiment.model.bundle import HiddenStates, Histogram, Manifest, Reference
from sentiment.model.classifier import Classifier
from sentiment.model.cores import cores_granted
from sentiment.model.session import ExplainSession
from sentiment.model.tokenizer import Row
from sentiment.observability.drift import SHARE_EDGES
from sentiment.observability.metrics import SCORE_EDGES, TEXT_TOKENS_EDGES
from sentiment_models.data.labelled import LabelledReading, TextOrPair, read_texts
from sentiment_models.errors import ModelsError
from sentiment_models.export.inference import serve
from sentiment_models.export.manifest import MANIFEST_FILE, read_object, sha256, write_manifest
from sentiment_models.export.provenance import Json, distinct_names, facts
from sentiment_models.stored import problem

BAR_CHARACTERS = 40
# Edges of the projections of hidden states, in standard deviations from their mean over the first reference. Those of its tenths detected
# less, and would leave other references a few bins.
HIDDEN_EDGES = tuple(half / 2 for half in range(-6, 7))
# The name of the reference that the makers of bundles count. A window of the server has as many texts.
OF_MAKING = "training"
TEXTS_MAX = 2000


def measure_reference(
    classifier: Classifier, texts: Sequence[TextOrPair], files: Sequence[Path] = (), threads: int = 0, like: HiddenStates | None = None
) -> Reference:
    """Answer texts as the service would, by the bundle's default truncation, and count the answers, and the hidden states if it has them.

    Args:
        classifier: of the bundle, with the graph that is served.
        texts: at least one.
        files: that hold them, for the record.
        threads: number of threads that share the session; 0: the available cores.
        like: of another reference of the bundle, whose layer and edges this one must have; None: there is none.
    """
    served = serve(classifier, texts, "reference", threads)
    labels, abstained, scores, tokens, unknown, fragments = zip(*served.signals, strict=True)
    by_label = Counter(labels)
    return Reference(
        texts=len(texts),
        files=dict(zip(distinct_names(files), map(sha256, files), strict=True)),
        label={name: by_label[name] for name in classifier.manifest.labels},
        abstained=sum(abstained),
        score=_histogram(scores, SCORE_EDGES),
        tokens=_histogram(tokens, TEXT_TOKENS_EDGES),
        unknown=_histogram(unknown, SHARE_EDGES),
        fragments=_histogram(fragments, SHARE_EDGES) if classifier.tokenizer.has_fragments else None,
        hidden=_hidden(classifier, served.rows, threads, like),
    )


def drawn_texts(files: Sequence[Path], *, pairs: bool, reading: LabelledReading) -> list[TextOrPair]:
    """Read files of texts, with labels or without, and draw TEXTS_MAX of them if there are more.

    Raises:
        BadData: a file cannot be used.
    """
    texts = [text for file in files for text in read_texts(file, pairs=pairs, reading=reading)]
    return texts if len(texts) <= TEXTS_MAX else random.Random(1).sample(texts, TEXTS_MAX)  # noqa: S311 - a sample


def record_texts(
    bundle: Path, classifier: Classifier, texts: Sequence[TextOrPair], files: Sequence[Path], say: Callable[[str], object]
) -> None:
    """Record the reference OF_MAKING in a bundle that is being made.

    Args:
        bundle: the bundle's directory.
        classifier: of the bundle, with the graph that is served.
        texts: the ``drawn_texts``.
        files: that hold them.
        say: called with a line of progress.
    """
    say("counting the answers to the texts, as the drift reference")
    record_reference(bundle, OF_MAKING, measure_reference(classifier, texts, files))


def hidden_of_others(manifest: Manifest, name: str | None) -> HiddenStates | None:
    """The hidden states of a reference of another name; None if there are none."""
    return next((one.hidden for other, one in manifest.references.items() if other != name and one.hidden is not None), None)


def _hidden(classifier: Classifier, rows: Sequence[Row], threads: int, like: HiddenStates | None) -> HiddenStates | None:
    """The projections of rows by bin, with the edges of ``like`` or else those of HIDDEN_EDGES; None without hidden states."""
    graph = Explainer(classifier).load()
    if graph is None or not graph.session.hidden:
        return None
    layer = like.layer if like is not None else layer_of(graph.session.layers)
    values = projections(classifier, graph.session, rows, layer, threads)
    edges = [one.edges for one in like.projections] if like is not None else [_edges(column) for column in values.T]
    return HiddenStates(layer=layer, projections=tuple(map(_histogram, values.T.tolist(), edges)))


def projections(
    classifier: Classifier, session: ExplainSession, rows: Sequence[Row], layer: int, threads: int = 0
) -> npt.NDArray[np.float64]:
    """The projections of many rows, [rows, projections], with a progress bar. ``threads`` share the session; 0: the available cores."""
    with ThreadPoolExecutor(threads or cores_granted()) as pool:
        work = pool.map(lambda row: project(classifier, session, row, layer), rows)
        return np.array(list(tqdm(work, total=len(rows), desc="hidden states", unit="row", mininterval=1)))


def _edges(values: npt.NDArray[np.float64]) -> tuple[float, ...]:
    """To six digits; a single one if all values are equal."""
    return tuple(sorted({float(f"{values.mean() + values.std() * deviations:.6g}") for deviations in HIDDEN_EDGES}))


def record_reference(bundle: Path, name: str, reference: Reference) -> None:
    """Write a reference into a bundle's manifest, in the place of that of the same name. The manifest's digest changes.

    Raises:
        ModelsError: the manifest would not be valid, and is left as it was: too many references, or others with other edges.
    """
    path = bundle / MANIFEST_FILE
    manifest = read_object(path)
    manifest["references"] = {**facts(manifest.get("references")), name: reference.model_dump(mode="json")}
    try:
        Manifest.model_validate(manifest)
    except ValidationError as error:
        alone = {**manifest, "references": {name: reference.model_dump(mode="json")}}
        advice = "; --remove others first" if _is_valid(alone) else ""
        raise ModelsError(f"reference {name!r} cannot be recorded: {problem(error)}{advice}") from error
    write_manifest(bundle, manifest)


def _is_valid(manifest: Mapping[str, Json]) -> bool:
    try:
        Manifest.model_validate(manifest)
    except ValidationError:
        return False
    return True


def remove_reference(bundle: Path, name: str) -> None:
    """Take a reference out of a bundle's manifest, whose digest changes.

    Raises:
        ModelsError: there is none of this name.
    """
    path = bundle / MANIFEST_FILE
    manifest = read_object(path)
    recorded = facts(manifest.get("references"))
    if name not in recorded:
        raise ModelsError(f"{path}: has no reference {name!r}; it has {', '.join(sorted(recorded)) or 'none'}")
    manifest["references"] = {other: reference for other, reference in recorded.items() if other != name}
    write_manifest(bundle, manifest)


def table(reference: Reference) -> str:
    """Format a reference for a terminal: the share of the texts in each bin."""
    lines = [f"{reference.texts:,} texts"]
    abstained = {"false": reference.texts - reference.abstained, "true": reference.abstained}
    for name, counts in (("label", reference.label), ("abstained", abstained)):
        lines += [name, *(_line(value, count, reference.texts) for value, count in counts.items())]
    hidden = reference.hidden.histograms if reference.hidden is not None else {}
    for name, one in {**reference.histograms, **hidden}.items():
        bins = [*(f"<= {edge:g}" for edge in one.edges), f" > {one.edges[-1]:g}"]
        lines += [name, *(_line(value, count, reference.texts) for value, count in zip(bins, one.counts, strict=True) if count)]
    return "\n".join(lines)


def _histogram(values: Sequence[float], edges: Sequence[float]) -> Histogram:
    counts = np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)
    return Histogram(edges=tuple(map(float, edges)), counts=tuple(counts.tolist()))


def _line(name: str, count: int, texts: int) -> str:
    return f"  {name:12} {count:9,} {count / texts:7.2%} {'#' * round(BAR_CHARACTERS * count / texts)}".rstrip()
