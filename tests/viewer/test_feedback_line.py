"""Right and wrong under an answer: they reach the journal of a server that keeps one, and are not offered by others."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.conftest import RunningServer
from tests.core.observability.test_journal import rows
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import ask, field, settled, until

pytestmark = pytest.mark.needs_tool("chromium")

Start = Callable[..., RunningServer]


def told(folder: Path) -> list[dict[str, Any]]:
    return [row for row in rows(folder) if row["journal"] == "feedback"]


def test_a_server_without_a_journal_gets_no_feedback(visit: Visit, start: Start) -> None:
    page = visit(address(start().url, text="a good film"))
    settled(page)

    expect(page.get_by_role("button", name="Right")).to_have_count(0)


def test_the_label_goes_to_the_journal_with_the_answers_request_id(visit: Visit, start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    page = visit(address(start(journal=str(folder)).url, text="a good film"))
    settled(page)

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


def test_no_label_is_right_goes_to_the_journal_as_none(visit: Visit, start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    page = visit(address(start(journal=str(folder)).url, text="a good film"))
    settled(page)

    page.get_by_role("button", name="None of these").click()

    expect(page.locator(".feedback")).to_contain_text("Noted: the answer is wrong, no label is right.")
    until(page, lambda: [row["label"] for row in told(folder)] == [None], "it is in the journal")


def test_a_label_that_is_under_way_outlives_the_text_and_takes_no_focus(visit: Visit, start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    page = visit(address(start(journal=str(folder)).url, text="a good film"))
    settled(page)
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


def test_feedback_for_an_unsampled_answer_names_its_text(visit: Visit, start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    server = start(journal=str(folder), journal_share=0.0, journal_texts=True)
    page = visit(address(server.url, text="a good film"), refused=True)
    settled(page)

    page.get_by_role("button", name="Right").click()

    expect(page.locator(".feedback")).to_contain_text("Noted: the answer is right.")
    until(page, lambda: len(told(folder)) == 1, "the label is in the journal")
    assert told(folder)[0]["text"] == "a good film"


def test_a_refusal_is_said_and_forgotten_with_the_next_text(visit: Visit, start: Start, tmp_path: Path) -> None:
    server = start(journal=str(tmp_path / "journal"))
    page = visit(address(server.url, text="a good film"), refused=True)
    settled(page)
    body = json.dumps({"error": {"status": "UNAVAILABLE", "code": 14, "message": "the journal cannot be read"}})
    page.route("**/v1/feedback", lambda route: route.fulfill(status=503, content_type="application/json", body=body))

    page.get_by_role("button", name="Right").click()
    expect(page.locator(".feedback")).to_contain_text("Not noted.")
    expect(page.locator(".feedback")).to_contain_text("the journal cannot be read")
    ask(page, "awful")

    expect(page.get_by_role("button", name="Wrong: it is positive")).to_be_visible()
    expect(page.locator(".feedback")).not_to_contain_text("Not noted.")
