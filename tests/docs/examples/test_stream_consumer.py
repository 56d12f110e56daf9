"""The consumer of a Redis stream, killed again and again: each text is answered once."""

import json
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.conftest import RunningServer
from tests.docs.examples.conftest import running
from tests.programs import free_port, until

TEXTS = 6000


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Of a Redis that keeps what it confirms."""
    port = free_port()
    options = f"--port {port} --bind 127.0.0.1 --dir {tmp_path} --appendonly yes --save '' --loglevel warning"
    with running(["redis-server", *shlex.split(options)], port):
        yield port


def ask(port: int, *words: str, given: str = "") -> str:
    command = ["redis-cli", "-p", str(port), *words]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True, timeout=60).stdout


def answers(port: int) -> list[str]:
    """Key, "id", id, "answer" and answer of each, one after the other."""
    return ask(port, "XRANGE", "answers", "-", "+").splitlines()


def count(port: int) -> int:
    return int(ask(port, "XLEN", "answers"))


@pytest.mark.needs_tool("redis-server")
def test_each_text_is_answered_once_though_the_consumer_is_killed(server: RunningServer, python: Path, port: int) -> None:
    sent = [f"w{(place * 11) % 65 - 32}" for place in range(TEXTS)]
    ask(port, given="".join(f"XADD texts {place}-1 text {text}\n" for place, text in enumerate(['" "', *sent])))

    def consumer() -> "AbstractContextManager[subprocess.Popen[bytes]]":
        return running([python, "stream_consumer.py", "one"], REDIS_URL=f"redis://127.0.0.1:{port}", SENTIMENT_TARGET=server.target)

    left = []
    for _ in range(2):
        before = count(port)
        with consumer():
            until(lambda before=before: count(port) > before)
        left.append(TEXTS + 1 - count(port))
    # Two of one name at once.
    with consumer(), consumer():
        until(lambda: count(port) >= TEXTS + 1 and ask(port, "XPENDING", "texts", "sentiment").split()[0] == "0")

    assert min(left) > 0, "it was killed in the middle"
    found = answers(port)
    said = dict(zip(found[2::5], map(json.loads, found[4::5]), strict=True))
    assert len(said) == len(found) // 5 == TEXTS + 1, "no text twice"
    assert said.pop("0-1")["error"].startswith("INVALID_ARGUMENT")
    labels = {place: answer["label"] for place, answer in said.items()}
    assert labels == {f"{place}-1": "positive" if int(text[1:]) > 0 else "negative" for place, text in enumerate(sent, 1)}
