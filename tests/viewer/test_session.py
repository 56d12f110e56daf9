"""Late, incomplete or contradictory answers, and changes of text and model."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.conftest import RunningServer
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import ask, change, field, settled, show, words
from tests.viewer.texts import SHORT

pytestmark = pytest.mark.needs_tool("chromium")

MAPS = 72


def test_the_skip_link_moves_the_focus_to_the_view(visit: Visit, english: RunningServer) -> None:
    page = visit.settled(address(english.url, "heads", text=SHORT))
    before = page.url

    page.get_by_role("link", name="Skip to the explanation").press("Enter")

    expect(page.locator("#panel")).to_be_focused()
    expect(field(page)).to_have_value(SHORT)
    assert page.url == before


def test_a_text_sent_before_the_models_are_known_is_explained(visit: Visit, english: RunningServer) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page = visit.blank(english.url)
    page.route("**/v1/models", hold)
    page.goto(address(english.url, how=1))
    ask(page, SHORT)
    expect(page.locator(".answer .label")).to_be_visible()
    field(page).fill("typed meanwhile")

    held[0].continue_()
    settled(page)

    expect(field(page)).to_have_value("typed meanwhile")
    expect(page.get_by_label("Method")).to_have_value("shapley")
    assert any(word["value"] for word in words(page)), "no word has a value"


def test_a_page_opened_while_the_server_starts_retries_by_itself(visit: Visit, english: RunningServer) -> None:
    starting = json.dumps({"error": {"status": "UNAVAILABLE", "code": 14, "message": "the server is starting"}})
    page = visit.blank(english.url, refused=True)
    page.route("**/v1/models", lambda route: route.fulfill(status=503, content_type="application/json", body=starting), times=1)

    page.goto(address(english.url, text=SHORT))

    expect(page.locator("#failure")).to_contain_text("the server is starting")
    expect(page.locator(".answer .label")).to_be_visible()
    expect(page.locator("#failure")).not_to_contain_text("the server is starting")


def test_incomplete_attention_is_complete_after_a_retry(visit: Visit, english: RunningServer) -> None:
    page = visit.blank(english.url)
    change(page, "attention", lambda messages: messages[: len(messages) // 2])
    page.goto(address(english.url, "model", text=SHORT))
    broken = page.locator(".failed:visible").filter(has_text="The connection ended in the middle of the explanation.")
    expect(broken).to_be_visible()

    page.unroute("**/v1/explain")
    broken.get_by_role("button", name="Try again").click()
    settled(page)

    drawn = page.locator(".model-thumb").evaluate_all("(maps) => maps.filter(({width}) => width > 1).length")
    assert drawn == MAPS
    expect(page.locator(".model-progress")).to_have_text("")
    # One that had come whole before the end of the first stream.
    page.get_by_role("button", name="layer 0 head 0,").click()
    expect(page.get_by_role("application", name="layer 0 head 0")).to_be_visible()


def test_a_changed_model_is_reported_and_a_retry_starts_over(visit: Visit, english: RunningServer) -> None:
    def of_another(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return json.loads(re.sub(r'"digest": "[0-9a-f]{64}"', f'"digest": "{"0" * 64}"', json.dumps(messages)))

    page = visit.blank(english.url)
    change(page, "attention", of_another)
    page.goto(address(english.url, "model", text=SHORT))
    changed = page.locator(".failed:visible").filter(has_text="The model of the server has changed.")
    expect(changed).to_be_visible()

    page.unroute("**/v1/explain")
    changed.get_by_role("button", name="Try again").click()

    expect(page.locator(".model-cell")).to_have_count(MAPS)
    expect(changed).to_have_count(0)


def test_words_left_out_are_forgotten_with_a_new_request(visit: Visit, english: RunningServer) -> None:
    page = visit.settled(address(english.url, text=SHORT, without="2"))
    expect(page.locator(".text-word.struck")).to_have_count(1)

    page.get_by_label("Long text").select_option("head_tail")
    page.get_by_role("button", name="Explain", exact=True).click()
    settled(page)

    expect(page.locator(".text-word.struck")).to_have_count(0)
    assert "without" not in page.url


def test_a_changed_text_is_marked_as_not_explained_yet(visit: Visit, english: RunningServer) -> None:
    page = visit.settled(address(english.url, text="I hated it."))
    told = page.get_by_text("Not explained yet")

    field(page).fill("Wonderful!")
    expect(told).to_be_visible()
    field(page).fill("I hated it.")
    expect(told).to_be_hidden()


def test_white_space_is_not_sent(visit: Visit, english: RunningServer) -> None:
    page = visit.settled(address(english.url, text="I hated it."))

    ask(page, "   ")

    expect(page.locator("#toast")).to_have_text("Type a text first.")
    expect(page.locator(".answer .label")).to_have_text("negative")


def test_title_legend_and_announcement_describe_the_shown_text(visit: Visit, english: RunningServer) -> None:
    page = visit.settled(address(english.url, text="a good film"))
    first = legend(page)
    expect(page.locator("#live")).to_contain_text("positive, probability 0.")

    ask(page, "a wonderful, moving, gorgeous film")
    settled(page)

    expect(page.locator(".answer .label")).to_have_text("positive")
    assert legend(page) != first
    assert re.fullmatch(r"positive, probability 0\.\d{3}: a wonderful, moving, gorgeous film", page.title())


def legend(page: Page) -> str:
    return page.locator(".text-numbers").get_by_text("explained: the logit of positive").text_content()


def test_a_final_failure_has_no_retry_button(visit: Visit, english: RunningServer) -> None:
    page = visit(address(english.url, text="a good film", model="nosuch"), refused=True)

    expect(page.locator(".failed:visible").filter(has_text="There is no such model").first).to_be_visible()

    expect(page.get_by_role("button", name="Try again")).to_have_count(0)


def test_lists_of_heads_are_one_tab_stop_each(visit: Visit, english: RunningServer) -> None:
    page = visit.settled(address(english.url, text=SHORT))
    show(page, "heads")
    settled(page)
    chips, ranking = page.locator(".heads-chips"), page.locator(".heads-ranking")

    for part in (chips, ranking):
        expect(part.locator('button[tabindex="0"]')).to_have_count(1)
    ranking.locator('button[tabindex="0"]').focus()
    page.keyboard.press("ArrowDown")

    expect(ranking.locator("button").nth(1)).to_be_focused()
    page.keyboard.press("End")
    expect(ranking.locator("button").last).to_be_focused()
    expect(ranking.locator('button[tabindex="0"]')).to_have_count(1)
