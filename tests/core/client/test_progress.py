"""Progress of long work: what is shown, when, and what is said where tqdm is missing."""

import io
import sys

import pytest

from sentiment.client import AsyncClient, Client, progress
from tests.conftest import RunningServer


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def as_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error as a terminal, and no work too short to show. Not a fixture: pytest sets standard error after those."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    return stream


async def test_progress_counts_done_and_failed(client: Client, server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["good", "", None] * 100

    client.classify(texts, progress=True)
    shown = capsys.readouterr().err
    async with AsyncClient(server.target) as asyncio_client:
        await asyncio_client.classify(texts, progress=True)
    shown_later = capsys.readouterr().err
    list(client.classify_all(iter(texts), progress=True))
    shown_unknown = capsys.readouterr().err

    for said in (shown, shown_later):
        assert "300/300" in said
        assert "failed=200" in said
    assert "300 texts" in shown_unknown


def test_a_terminal_gets_progress_unasked_and_nothing_else_does(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)

    client.classify(["good"])
    assert "1/1" in terminal.getvalue()
    written = terminal.getvalue()

    client.classify(["good"], progress=False)
    list(client.classify_all(["good"]))
    assert terminal.getvalue() == written

    monkeypatch.setattr(terminal, "isatty", lambda: False)
    client.classify(["good"])
    monkeypatch.setattr(sys, "stderr", None)
    client.classify(["good"])
    assert terminal.getvalue() == written


def test_short_work_shows_nothing_unasked(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)
    monkeypatch.setattr(progress, "AFTER_S", 60.0)

    client.classify(["good"])

    assert terminal.getvalue() == ""


def test_without_tqdm_it_is_missed_only_if_asked_for(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "tqdm", None)

    assert len(client.classify(["good"])) == 1
    assert terminal.getvalue() == ""
    with pytest.raises(ModuleNotFoundError, match=r"progress=True needs tqdm, which is not installed: pip install tqdm$"):
        client.classify(["good"], progress=True)
