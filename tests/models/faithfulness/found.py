"""The made-up findings, as if they were of a bundle that exists."""

from pathlib import Path

from sentiment.model.bundle import load_bundle
from sentiment_models.explanations.findings import Findings
from tests.models.faithfulness import made_up


def findings(bundle: Path, default: str = made_up.DEFAULT, better: float | None = 0.85) -> Findings:
    """Two data sets; ``default`` is compared with the others; ``better``: the share of tested texts better than random."""
    loaded = load_bundle(bundle)
    graph = loaded.manifest.graphs.classify[0].file
    found = made_up.findings(("made/dev", "made/other"), default=default, better=better)
    of_bundle = {"bundle": loaded.id, "digest": loaded.digest, "graph": graph, "graph_sha256": loaded.manifest.files[graph].sha256}
    return found.model_copy(update=of_bundle)
