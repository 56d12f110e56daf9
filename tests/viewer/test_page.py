"""The page around the views: the form, the answer, the tabs, the address, the theme."""

import re

import pytest
from playwright.sync_api import Page, expect

from sentiment.client import Client
from tests.conftest import RunningServer
from tests.viewer.browser import PHONE, address
from tests.viewer.conftest import Visit
from tests.viewer.reading import VIEWS, ask, field, settled, show, sideways
from tests.viewer.texts import FOREIGN, SHORT

pytestmark = pytest.mark.needs_tool("chromium")


@pytest.mark.smoke
def test_the_answer_matches_the_python_client(visit: Visit, english: RunningServer, reader: Client) -> None:
    page = visit(english.url)

    ask(page, SHORT)

    answer = reader.classify(SHORT)
    expect(page.locator(".answer .label")).to_have_text(answer.label)
    expect(page.locator(".answer .number")).to_have_text(f"{answer.score:.4f}", use_inner_text=True)
    for label, score in answer.scores.items():
        row = page.get_by_role("listitem").filter(has_text=label)
        expect(row).to_contain_text(f"{score:.4f}")
    expect(page.locator("#answer")).to_contain_text(f"{answer.tokens} tokens")


def test_an_undecided_answer_says_so(visit: Visit, english: RunningServer, reader: Client) -> None:
    undecided = next(text for text in FOREIGN if reader.classify(text).abstain)

    page = visit(address(english.url, text=undecided))

    expect(page.locator("#answer")).to_contain_text("undecided")


def said(page: Page) -> str:
    """What the view says, but for what fields offer: a choice of heads names their patterns only where those were asked for."""
    return re.sub(r"^\d+( \u00b7 .*)?\n", "", page.get_by_role("tabpanel").inner_text(), flags=re.MULTILINE)


def test_the_address_restores_the_view_in_another_tab_and_after_a_reload(visit: Visit, english: RunningServer) -> None:
    page = visit(english.url)
    ask(page, "a good film")
    again = page.context.new_page()

    for view in VIEWS:
        # Chromium draws the page in front; it slows others down.
        page.bring_to_front()
        show(page, view)
        settled(page)
        shown = said(page)
        again.bring_to_front()
        again.goto(page.url)
        again.reload()
        settled(again)
        expect(again.locator(f"#tab-{view}")).to_have_attribute("aria-selected", "true")
        expect(field(again)).to_have_value("a good film")
        assert said(again) == shown


def test_back_and_forward_go_from_view_to_view_and_text_to_text(visit: Visit, english: RunningServer) -> None:
    page = visit(english.url)
    ask(page, "a good film")
    show(page, "heads")
    ask(page, "a bad film")
    expect(page.locator(".answer .label")).to_have_text("negative")

    page.go_back()
    expect(page.locator(".answer .label")).to_have_text("positive")
    expect(field(page)).to_have_value("a good film")
    expect(page.locator("#tab-heads")).to_have_attribute("aria-selected", "true")
    page.go_back()
    expect(page.locator("#tab-text")).to_have_attribute("aria-selected", "true")
    page.go_forward()
    page.go_forward()

    expect(page.locator(".answer .label")).to_have_text("negative")


def test_a_text_too_long_for_an_address_survives_going_back(visit: Visit, english: RunningServer, reader: Client) -> None:
    page = visit(english.url)
    text = "A good film. " * 600
    ask(page, text)
    label = reader.classify(text).label
    expect(page.locator(".answer .label")).to_have_text(label)
    assert len(page.url) < 500
    show(page, "card")

    page.go_back()

    expect(page.locator("#tab-text")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".answer .label")).to_have_text(label)


def test_only_classify_and_explain_requests_contain_the_text(visit: Visit, english: RunningServer) -> None:
    page = visit(address(english.url, text=SHORT))
    asked = []
    page.on("request", lambda request: asked.append((request.url, request.post_data or "")))

    page.reload()
    settled(page)

    assert [url for url, _ in asked if "acting" in url.partition("#")[0]] == []
    assert {url.rpartition("/")[2] for url, body in asked if "acting" in body} == {"classify", "explain"}


def test_the_theme_follows_the_system_until_chosen(visit: Visit, english: RunningServer) -> None:
    page = visit(english.url, color_scheme="dark")
    scheme = "() => getComputedStyle(document.documentElement).colorScheme"
    assert "dark" in page.evaluate(scheme)

    page.get_by_role("button", name="Use the light theme").click()

    assert page.evaluate(scheme) == "light"
    assert "theme=light" in page.url
    page.reload()
    assert page.evaluate(scheme) == "light"


def test_a_phone_never_scrolls_the_page_of_a_very_long_word_sideways(visit: Visit, english: RunningServer) -> None:
    page = visit(address(english.url, text="incomprehensibilities" * 40), viewport=PHONE)

    for view in VIEWS:
        show(page, view)
        settled(page)
        assert (view, sideways(page)) == (view, 0)
