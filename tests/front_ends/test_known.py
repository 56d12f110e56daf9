"""Known answers with front ends: the executor keeps them for all front ends, and for each caller on its own."""

from collections.abc import Callable
from pathlib import Path

from sentiment.client import Client, Credentials
from tests.conftest import NO_RETRIES
from tests.core.servers import Server, until


def test_front_ends_share_known_answers_but_callers_do_not(serve: Callable[..., Server], tmp_path: Path) -> None:
    tokens = ["first-token-0123456789", "other-token-0123456789"]
    (tmp_path / "tokens").mkdir()
    for number, token in enumerate(tokens):
        (tmp_path / "tokens" / f"caller-{number}").write_text(token)
    server = serve("--answer-cache-bytes", "1000000", "--auth-tokens", str(tmp_path / "tokens"))

    answers = []
    for token in tokens:
        for _ in range(4):
            # Each connection may reach another front end.
            with Client(server.target, credentials=Credentials(token=token), options=NO_RETRIES) as client:
                answers.append(client.classify("good"))
    with Client(server.target, credentials=Credentials(token=tokens[0]), options=NO_RETRIES) as client:
        own = client.classify("good", no_cache=True)

    assert [answer.timing.batch_rows for answer in answers] == [1, 0, 0, 0] * 2
    assert own.timing.batch_rows == 1
    assert {tuple(answer.scores.items()) for answer in answers} == {tuple(own.scores.items())}
    until(lambda: server.total("predictions_total", label="positive") == 9, "each answer is counted")
    assert (server.total("known_rows_total", how="kept"), server.total("known_rows_total", how="shared")) == (6, 0)
