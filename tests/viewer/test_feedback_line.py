"""Right and wrong under an answer: they reach the journal of a server that keeps one, and are not offered by others."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.core.grpc.gate import Start
from tests.core.observability.test_journal import rows
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import ask, field, until

pytestmark = pytest.mark.needs_tool("chromium")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def page(visit: Visit, start: Start, folder: Path) -> Page:
    """An answer of a server that keeps a journal."""
    return visit.settled(address(start(journal=str(folder)).url, text="a good film"), refused=True)


def told(folder: Path) -> list[dict[str, Any]]:
    return [row for row in rows(folder) if row["journal"] == "feedback"]


def test_a_server_without_a_journal_gets_no_feedback(visit: Visit, start: Start) -> None:
    page = visit.settled(address(start().url, text="a good film"))

    expect(page.get_by_role("button", name="Right")).to_have_count(0)


def test_the_label_goes_to_the_journal_with_the_answers_request_id(page: Page, folder: Path) -> None:
    page.get_by_role("button", name="Wrong: it is negative").click()
    expect(page.locator(".feedback")).to_contain_text("Noted: the answer is wrong, it is negative.")
    page.get_by_role("button", name="Right").press("Enter")
    expect(page.locator("#live")).to_have_text("Noted: the answer is right.")
    expect(page.get_by_role("button", name="Right")).to_be_focused()

    until(page, lambda: len(told(folder)) == 2, "both labels are in the journal")
    (answer,) = [row for row in rows(folder) if row["journal"] == "answer"]
    assert [(row["label"], row["predicted"], row["request_id"]) for row in told(folder)] == [
        ("negative", "positive", answer["request_id"]),
        ("positive", "positive", answer["request_id"]),
    ]


def test_no_label_is_right_goes_to_the_journal_as_none(page: Page, folder: Path) -> None:
    page.get_by_role("button", name="None of these").click()

    expect(page.locator(".feedback")).to_contain_text("Noted: the answer is wrong, no label is right.")
    until(page, lambda: [row["label"] for row in told(folder)] == [None], "it is in the journal")


def test_a_label_that_is_under_way_outlives_the_text_and_takes_no_focus(page: Page, folder: Path) -> None:
    held: list[Route] = []
    page.route("**/v1/feedback", lambda route: held.append(route))  # noqa: PLW0108  # Playwright marks the function

    page.get_by_role("button", name="Right").click()
    until(page, lambda: len(held) == 1, "the label is under way")
    field(page).focus()
    held[0].continue_()
    expect(page.locator(".feedback")).to_contain_text("Noted: the answer is right.")
    expect(field(page)).to_be_focused()

    page.get_by_role("button", name="Wrong: it is negative").click()
    until(page, lambda: len(held) == 2, "the label is under way")
    ask(page, "awful")
    expect(page.get_by_role("button", name="Wrong: it is positive")).to_be_visible()
    held[1].continue_()
    expect(page.locator("#live")).to_have_text("Noted: the answer is wrong, it is negative.")
    expect(page.locator(".feedback")).not_to_contain_text("Noted")
    until(page, lambda: [row["label"] for row in told(folder)] == ["positive", "negative"], "both labels are in the journal")


def test_feedback_for_an_unsampled_answer_names_its_text(visit: Visit, start: Start, folder: Path) -> None:
    server = start(journal=str(folder), journal_share=0.0, journal_texts=True)
    page = visit.settled(address(server.url, text="a good film"), refused=True)

    page.get_by_role("button", name="Right").click()

    expect(page.locator(".feedback")).to_contain_text("Noted: the answer is right.")
    until(page, lambda: len(told(folder)) == 1, "the label is in the journal")
    assert told(folder)[0]["text"] == "a good film"


def test_a_refusal_is_said_and_forgotten_with_the_next_text(page: Page) -> None:
    body = json.dumps({"error": {"status": "UNAVAILABLE", "code": 14, "message": "the journal cannot be read"}})
    page.route("**/v1/feedback", lambda route: route.fulfill(status=503, content_type="application/json", body=body))

    page.get_by_role("button", name="Right").click()
    expect(page.locator(".feedback")).to_contain_text("Not noted.")
    expect(page.locator(".feedback")).to_contain_text("the journal cannot be read")
    ask(page, "awful")

    expect(page.get_by_role("button", name="Wrong: it is positive")).to_be_visible()
    expect(page.locator(".feedback")).not_to_contain_text("Not noted.")
