"""A version of another family is promoted and rolled back while callers ask: each answer is that of the version that it names."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sentiment.client import Classification
from sentiment.settings import Settings
from sentiment_models.export.export import export
from tests.conftest import PLAIN
from tests.core.lifecycle.conftest import Exchanging, with_admin_port
from tests.core.lifecycle.load import Load
from tests.models.tiny_families import MAX_TOKENS, TEXTS, TINY, Made


@pytest.fixture
def server(settings: Settings, make_family: Callable[[str], Made], tmp_path: Path) -> Iterator[Exchanging]:
    """A server of reviews/1, an MPNet, on whose disk is reviews/2, a DeBERTa: WordPiece and SentencePiece, with and without views."""
    root = tmp_path / "bundles"

    def make(version: int, family: str) -> None:
        bundle, pairs = root / "reviews" / str(version), TINY[family].pairs
        export(make_family(family).checkpoint, bundle, name="reviews", version=version, pairs=pairs, max_tokens=MAX_TOKENS)

    make(1, "mpnet")
    server = Exchanging(settings.model_copy(update={**with_admin_port(root, tmp_path), "model": "reviews"}))
    make(2, "deberta-v2")
    yield server
    server.stop()


def test_a_promotion_and_a_rollback_between_families_lose_no_call_and_mix_no_answers(server: Exchanging) -> None:
    with server.client() as client, server.admin() as admin:
        right = {1: {text: client.classify(text, model="reviews/1").scores for text in TEXTS}}
        admin.load("reviews/2", use=False)
        right[2] = {text: client.classify(text, model="reviews/2").scores for text in TEXTS}
        assert all(right[1][text] != right[2][text] for text in TEXTS)

        def answered(result: Classification, text: str) -> bool:
            return result.scores == right[result.model.version][text]

        with server.client(options=PLAIN) as caller, Load([caller], server.target, TEXTS, answered) as load:
            load.wait(200)
            admin.use("reviews/2")
            load.wait(200)
            assert client.classify("good").model.version == 2
            admin.use("reviews/1")
            load.wait(200)
            assert client.classify("good").model.version == 1
            admin.unload("reviews/2")
            load.wait(200)

        assert not load.failures
        assert set(load.seen) == {1, 2}
