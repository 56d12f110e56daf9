"""Tiny random classifiers with their real explain graphs, under study."""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sentiment.model.tokenizer import Row
from sentiment_models.explanations import pictures
from sentiment_models.explanations.subject import Subject
from sentiment_models.study.last_layer import LastLayer
from tests.models.faithfulness.layers import tiny_layer
from tests.models.tiny_families import Made

MakeSubject = Callable[[str], Subject]


@pytest.fixture(scope="session")
def make_bundle(make_family: Callable[[str], Made]) -> Callable[[str], Path]:
    """A family's bundle."""
    return lambda family: make_family(family).bundle


@pytest.fixture(scope="session")
def make_subject(make_bundle: Callable[[str], Path]) -> MakeSubject:
    """A family's bundle under study, fp32, loaded once."""
    return functools.cache(lambda family: Subject(make_bundle(family), "fp32"))


@pytest.fixture(scope="session")
def subject(make_subject: MakeSubject) -> Subject:
    """A tiny BERT."""
    return make_subject("bert")


@pytest.fixture
def bundle(make_bundle: Callable[[str], Path], tmp_path: Path) -> Path:
    """A tiny BERT's bundle that a test may change."""
    return Path(shutil.copytree(make_bundle("bert"), tmp_path / "bert" / "1"))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendering takes most of a page's time; test_page looks at the pictures."""
    monkeypatch.setattr(pictures, "as_png", lambda figure: b"\x89PNG\r\n\x1a\n")


@pytest.fixture(scope="session")
def tiny_bert_layer(tmp_path_factory: pytest.TempPathFactory) -> tuple[LastLayer, list[Row]]:
    """A tiny BERT's last layer, and rows for it."""
    return tiny_layer(tmp_path_factory.mktemp("layer"), "bert")
