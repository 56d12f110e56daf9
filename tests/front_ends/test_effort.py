"""Adaptive effort with front ends: they ask for it, and the executor decides what suffices and audits it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.core.grpc.test_effort import CLEAR, READ
from tests.core.servers import Server, serving, until
from tests.tiny import EFFORT, make_bundle


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    make_bundle(tmp_path, effort=EFFORT)
    with serving(tmp_path, "--front-ends", "2", "--effort-audit-share", "1") as begin:
        yield begin


def test_front_ends_answer_from_a_part_as_one_process_does(serve: Callable[..., Server]) -> None:
    server = serve()
    with server.client() as client:
        singles = [client.classify(text, effort="adaptive") for text in READ]
        batch = client.classify_batch(list(READ), effort="adaptive")
        full = client.classify(CLEAR)

    for answers in (singles, batch):
        assert [(answer.tokens, answer.early) for answer in answers] == list(READ.values())  # type: ignore[union-attr]  # all are answered
    assert not full.early
    assert server.total("early_texts_total") == 2
    # The middle of both turned the answer.
    until(lambda: server.total("effort_audits_total", differs="true") == 2, "both early answers are audited")
    assert server.total("effort_audits_total") == 2
