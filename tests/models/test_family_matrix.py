"""The table of families in the documentation is what bundles of tiny models can do."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sentiment.explain.engine.explainer import Explainer
from sentiment.explain.methods.registry import ERASURE_METHODS, METHODS
from sentiment.model.classifier import load_classifier
from sentiment.model.session import ExplainSession
from sentiment_models.export.families import FAMILIES
from tests.core.model.test_gpu_graphs import LAYERS, PACKED, UNFUSED
from tests.models import test_train_families
from tests.models.tiny_families import Made

PAGE = Path(__file__).parents[2] / "docs/models/families.md"
KINDS = {frozenset(METHODS): "all", frozenset(ERASURE_METHODS): "erasure"}


def _cells() -> dict[str, list[str]]:
    rows = [line.strip("| \n").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells[1:] for cells in rows}


def test_each_family_has_one_row() -> None:
    assert list(_cells()) == list(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_row_says_what_a_bundle_of_the_family_can_do(name: str, make_family: Callable[[str], Made]) -> None:
    made = make_family(name)
    classifier = load_classifier(made.bundle)
    manifest = classifier.manifest
    explain = ExplainSession(made.bundle / "explain.onnx") if manifest.graphs.explain else None
    windows = classifier.tokenizer.encode_windows("a good film. " * 40, 16, 8, 4)

    assert _cells()[name] == [
        "yes" if name in test_train_families.NAMES else "no",
        ", ".join(graph.precision for graph in manifest.graphs.classify),
        "first token" if made.tiny.flattened else "all tokens",
        "packed" if name in PACKED else "fused" if name in LAYERS else "plain" if name in UNFUSED else "none",
        "yes" if manifest.pairs else "no",
        "yes" if len(classifier.run(windows.rows)) == 4 else "no",
        KINDS[frozenset(Explainer(classifier).methods)],
        "yes" if explain and explain.layers and explain.hidden else "no",
    ]
