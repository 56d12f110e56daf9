"""Messages when the server refuses, drains or is unreachable; the page stays usable."""

import re
from typing import Never

import pytest
from playwright.sync_api import Page, expect

from sentiment.explain.turns import NoRoom, Turns
from tests.conftest import RunningServer
from tests.core.grpc.gate import Gate, Start, in_loop, total
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import VIEWS, ask, field, settled, show, until
from tests.viewer.texts import ATTACK, SHORT

pytestmark = [pytest.mark.needs_tool("chromium"), pytest.mark.usefixtures("awake")]


def says(page: Page, text: str) -> None:
    """A message with these words stands on the page."""
    expect(page.locator(".failed:visible").filter(has_text=text).first).to_be_visible()


def answers(page: Page, text: str = "good") -> None:
    """The page is usable: it answers another text."""
    ask(page, text)
    expect(page.locator(".answer .label")).to_have_text("positive")


def test_without_explanations_the_answer_is_shown_and_each_view_says_why_it_is_empty(visit: Visit, start: Start) -> None:
    server = start(explain=False)
    page = visit(address(server.url, text="a good film"), refused=True)

    expect(page.locator(".answer .label")).to_have_text("positive")

    for view in ("text", "heads", "model", "neuron", "geometry"):
        panel = show(page, view)
        expect(panel.locator(".failed:visible").filter(has_text="explain").first).to_be_visible()
    answers(page)


def test_a_model_without_an_explain_graph_shows_words_and_says_what_it_lacks(visit: Visit, start: Start) -> None:
    server = start()
    page = visit(address(server.url, text="a good film and the awful end"), refused=True)

    settled(page)

    expect(page.locator(".text-word").nth(1)).to_have_attribute("aria-label", re.compile("^good, "))
    for view in ("heads", "model", "neuron", "geometry"):
        panel = show(page, view)
        expect(panel.locator(".failed:visible").filter(has_text="graph").first).to_be_visible()
    answers(page)


def test_a_full_queue_says_when_to_retry_and_the_button_retries(visit: Visit, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()

    def full(*_: object) -> Never:
        raise NoRoom("16 explanations are waiting; the limit is 16", 2.0)

    monkeypatch.setattr(Turns, "admit", full)
    page = visit(address(server.url, text="a good film"), refused=True)

    says(page, "Try again in")
    says(page, "The server has too much to do")
    expect(page.locator(".answer .label")).to_have_text("positive")
    monkeypatch.undo()
    page.get_by_role("button", name="Try again").first.click()

    expect(page.locator(".text-word").first).to_be_visible()
    expect(page.locator(".failed:visible")).to_have_count(0)


def test_a_text_over_the_limit_is_refused_with_the_limit(visit: Visit, start: Start) -> None:
    server = start(text_bytes_max=100)
    page = visit(address(server.url, text="a " * 60), refused=True)

    says(page, "100")
    answers(page)


def test_an_unreachable_server_is_reported_and_can_come_back(visit: Visit, start: Start) -> None:
    server = start()
    page = visit.settled(address(server.url, text="bad"), refused=True)
    server.stop()

    ask(page, "good")
    says(page, "The server cannot be reached")
    expect(field(page)).to_have_value("good")
    for view in VIEWS:
        show(page, view)
    start(http_listen=server.url.removeprefix("http://"))

    page.get_by_role("button", name="Try again").first.click()
    answers(page, "great")


def test_an_expired_deadline_is_reported(visit: Visit, start: Start) -> None:
    server = start(deadline_max_s=0.0001, deadline_default_s=0.0001)
    page = visit(address(server.url, text="a good film"), refused=True)

    says(page, "There was not enough time")


def test_a_draining_server_is_reported(visit: Visit, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(drain_grace_s=20)
    page = visit(server.url, refused=True)
    gate = Gate(server, monkeypatch)
    try:
        ask(page, "bad")
        until(page, lambda: bool(gate.batches), "the first text is being classified")
        in_loop(server, server.app.stop)
        until(page, lambda: not server.app._ready, "the server drains")

        ask(page, "good")

        expect(page.locator(".failed").filter(has_text=re.compile("stopping|cannot be reached")).first).to_be_visible()
    finally:
        gate.open()


def test_a_second_text_cancels_the_first(visit: Visit, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    page = visit.settled(address(server.url, text="good and bad"))
    gate = Gate(server, monkeypatch)
    try:
        ask(page, "bad")
        until(page, lambda: bool(gate.batches), "the first text is being classified")
        ask(page, "good")
        until(page, lambda: total(server, "requests", code="CANCELLED") == 2, "answer and explanation of the first are withdrawn")
    finally:
        gate.open()

    expect(page.locator(".answer .label")).to_have_text("positive")
    settled(page)
    expect(page.locator(".text-words")).to_have_text("good")
    until(page, lambda: server.calls.open == 0, "no call is open")
    assert server.metric("sentiment_explanations", model="tiny/1") == 0


def test_markup_in_a_refusal_stays_text(visit: Visit, english: RunningServer) -> None:
    page = visit(english.url, refused=True)
    body = {"error": {"status": "INTERNAL", "message": ATTACK}}
    for path in ("classify", "explain"):
        page.route(f"**/v1/{path}", lambda route: route.fulfill(status=500, json=body))

    ask(page, SHORT)

    says(page, ATTACK)
