"""Explainers of a tiny random BERT with its real explain graph."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sentiment.explain.engine import Explainer
from sentiment.model.classifier import Classifier, load_classifier
from sentiment_models.export.export import export
from tests.models.tiny_families import MAX_TOKENS, TINY, save_tiny


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explained")
    export(save_tiny(folder / "checkpoint", TINY["bert"]), folder / "bundle", name="tiny", version=1, pairs=True, max_tokens=MAX_TOKENS)
    return folder / "bundle"


@pytest.fixture(scope="session")
def classifier(bundle: Path) -> Classifier:
    """Serves fp32."""
    return load_classifier(bundle, "fp32")


@pytest.fixture(scope="session")
def plain(classifier: Classifier) -> Explainer:
    """Of the fp32 graph alone, for what does not depend on the graph."""
    return Explainer(classifier)


@pytest.fixture(scope="session", params=["fp32", "int8"])
def explainer(request: pytest.FixtureRequest, bundle: Path) -> Iterator[Explainer]:
    yield Explainer(load_classifier(bundle, request.param))
