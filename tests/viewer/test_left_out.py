"""Parts that the server left out, for example for lack of time: the note, and the retry."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import RunningServer
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import change, settled, show
from tests.viewer.texts import SHORT

pytestmark = pytest.mark.needs_tool("chromium")

SAYS = "The server left it out; its notes say why."
# By the option that asks for it: the kind of message, the view, the button that asks, its name on the page, what shows that it is there.
PARTS = {
    "without": ("counterfactual", "text", "dull", 'Without "dull"', ".text-without strong"),
    "counterfactuals": ("counterfactual", "text", "What alone is enough?", "Words that change the answer", ".text-found"),
    "methods": ("evidence", "text", None, "Evidence", ".text-verdict"),
    "attention": ("tile", "heads", None, "Attention", ".heads-progress"),
    "heads": ("heads", "model", None, "What each head does", ".model-cell.marked"),
    "neuron": ("neuron", "neuron", None, "Layer 0, head 0, token 1", ".neuron-summary"),
    "geometry": ("geometry", "geometry", None, "Geometry", ".geometry-table"),
}


def leave_out(page: Page, option: str, kind: str, kept: int = 0) -> None:
    """Let the server's answers to what is asked with an option have a few messages of a kind only."""

    def few(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        left = [message for message in messages if kind in message][kept:]
        return [message for message in messages if message not in left]

    change(page, option, few)


@pytest.mark.parametrize("option", PARTS)
def test_a_part_that_the_server_left_out_has_a_note_and_a_retry(visit: Visit, english: RunningServer, option: str) -> None:
    kind, view, button, name, there = PARTS[option]
    page = visit.blank(english.url)
    leave_out(page, option, kind)

    page.goto(address(english.url, view, text=SHORT, how=1))
    if button:
        page.get_by_role("button", name=button).click()

    note = page.locator(".note:visible").filter(has_text=SAYS).filter(has=page.get_by_role("button", name="Try again"))
    expect(note).to_have_count(1)
    assert note.inner_text().replace("\u2068", "").replace("\u2069", "").startswith(f"{name}: {SAYS}")
    page.unroute("**/v1/explain")
    note.get_by_role("button", name="Try again").click()
    settled(page)
    expect(page.locator(there).first).to_be_visible()
    expect(note).to_have_count(0)


@pytest.mark.parametrize("side", ["The first text", "The other text"])
def test_a_comparison_says_whose_values_were_left_out(visit: Visit, english: RunningServer, side: str) -> None:
    page = visit.blank(english.url)
    if side == "The other text":
        # The first text comes whole.
        page.goto(address(english.url, text=SHORT))
        settled(page)
        show(page, "compare")
    leave_out(page, "methods", "attribution")
    if side == "The other text":
        page.get_by_label("Another text").fill("a fine film")
        page.get_by_role("button", name="Compare", exact=True).click()
    else:
        page.goto(address(english.url, "compare", text=SHORT, other="a fine film"))

    note = page.locator(".compare-view .note").filter(has_text=f"{side}: {SAYS}")
    expect(note).to_have_count(1)
    page.unroute("**/v1/explain")
    note.get_by_role("button", name="Try again").click()
    settled(page)
    expect(page.locator(".compare-body")).to_be_visible()
    expect(note).to_have_count(0)


def test_missing_maps_are_counted(visit: Visit, english: RunningServer) -> None:
    page = visit.blank(english.url)
    leave_out(page, "heads", "heads")
    leave_out(page, "attention", "tile", kept=31)

    page.goto(address(english.url, "model", text=SHORT))

    expect(page.locator(".model-progress")).to_have_text("31 of 72 maps are here.")
    expect(page.locator(".model-cell")).to_have_count(72)
