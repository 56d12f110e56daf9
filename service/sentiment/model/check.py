"""Checks of a bundle before it is served: its files, and each graph on the golden set."""

from collections.abc import Iterator
from pathlib import Path

from sentiment.errors import BadBundle
from sentiment.model.bundle import load_bundle
from sentiment.model.classifier import Classifier, batch_mates, golden_error, load_session, mates_failure
from sentiment.model.session import RUNTIME_VERSION
from sentiment.model.tokenizer import Tokenizer


def check_bundle(path: Path) -> Iterator[str]:
    """Check the files, then every graph on the golden set. Yields one line per finding.

    Raises:
        BadBundle: the files differ from the manifest, or no graph passes on this machine.
    """
    bundle = load_bundle(path)
    manifest = bundle.manifest
    size = sum(spec.bytes for spec in manifest.files.values())
    yield f"{bundle.id}  {manifest.architecture}, {', '.join(manifest.labels)}, {manifest.max_tokens} tokens, digest {bundle.digest}"
    yield f"ok    {len(manifest.files)} files, {size / 1e6:.1f} MB: size and SHA-256 match the manifest"
    tokenizer = Tokenizer(path / "tokenizer.json", manifest.max_tokens)
    bundle.check("tokenizer.json")
    served = None
    for graph in manifest.graphs.classify:
        try:
            classifier = Classifier(bundle, graph, tokenizer, load_session(bundle, graph))
            moved = batch_mates(classifier)
            results = [(golden, *golden_error(classifier, golden)) for golden in manifest.golden]
        except BadBundle as error:
            yield f"BAD   {graph.file}: {error}"
            continue
        wrong = [golden.label for golden, label, _ in results if label != golden.label]
        largest = max(error for _, _, error in results)
        # By default rows of an inexact graph have no batch mates.
        failure = mates_failure(graph, moved) if graph.exact else ""
        good = not wrong and largest <= graph.tolerance and not failure
        served = served or (graph.file if good else None)
        yield (
            f"{'ok   ' if good else 'BAD  '} {graph.file}: {len(results) - len(wrong)} of {len(results)} golden labels match, "
            f"largest logit error {largest:.4f} (tolerance {graph.tolerance}), ONNX Runtime {RUNTIME_VERSION}"
        )
        yield (
            f"{'BAD  ' if failure else 'ok   '} {graph.file}: "
            + (failure or f"batch mates change a probability by {moved.probability:.1g} at most (in the manifest: {graph.invariance:.2g})")
            + f"; {moved.rows} rows, {moved.seconds:.2f} s"
        )
    if served is None:
        raise BadBundle(f"{path}: no graph passes the golden set on this machine")
    yield f"serves {served}"
