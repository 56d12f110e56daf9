"""Tiny random classifiers with their real explain graphs, under study."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sentiment_models.explanations.subject import Subject
from sentiment_models.export.export import export
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
