"""Tiny random classifiers with their real explain graphs, under study."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sentiment.model.tokenizer import Row
from sentiment_models.explanations import pictures
from sentiment_models.explanations.subject import Subject
from sentiment_models.export.export import export
from sentiment_models.study.last_layer import LastLayer
from tests.models.faithfulness.layers import tiny_layer
from tests.models.tiny_families import MAX_TOKENS, TINY, save_tiny

MakeSubject = Callable[[str], Subject]


@pytest.fixture(scope="session")
def make_bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The bundle of a family, made once."""
    folder = tmp_path_factory.mktemp("studied")

    def make(family: str) -> Path:
        bundle = folder / family / "bundle"
        if not bundle.exists():
            tiny = TINY[family]
            checkpoint = save_tiny(folder / family / "checkpoint", tiny)
            export(checkpoint, bundle, name="tiny", version=1, pairs=tiny.pairs, max_tokens=MAX_TOKENS)
        return bundle

    return make


@pytest.fixture(scope="session")
def make_subject(make_bundle: Callable[[str], Path]) -> MakeSubject:
    """A family's bundle under study, fp32, loaded once."""
    subjects: dict[str, Subject] = {}

    def make(family: str) -> Subject:
        if family not in subjects:
            subjects[family] = Subject(make_bundle(family), "fp32")
        return subjects[family]

    return make


@pytest.fixture(scope="session")
def subject(make_subject: MakeSubject) -> Subject:
    """A tiny BERT."""
    return make_subject("bert")


@pytest.fixture
def bundle(make_bundle: Callable[[str], Path], tmp_path: Path) -> Path:
    """A tiny BERT's bundle that a test may change."""
    return Path(shutil.copytree(make_bundle("bert"), tmp_path / "tiny" / "1"))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendering takes most of a page's time; test_page looks at the pictures."""
    monkeypatch.setattr(pictures, "as_png", lambda figure: b"\x89PNG\r\n\x1a\n")


@pytest.fixture(scope="session")
def tiny_bert_layer(tmp_path_factory: pytest.TempPathFactory) -> tuple[LastLayer, list[Row]]:
    """A tiny BERT's last layer, and rows for it."""
    return tiny_layer(tmp_path_factory.mktemp("layer"), "bert")
