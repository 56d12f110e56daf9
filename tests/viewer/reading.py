"""Helpers that use the page as a user does: by labels, roles and names."""

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, Route, expect

from tests.viewer.browser import STEP_MS

# Of every page; ASKING: of those from a server alone.
VIEWS = {"text": "Text", "heads": "Heads", "model": "Model", "neuron": "Neuron", "geometry": "Geometry", "card": "Scorecard"}
ASKING = {"compare": "Compare", "file": "File"}
# Where each word's button begins and ends in its text, in UTF-16 units, and what it says.
_BUTTONS = """(side) => {
  const found = [];
  const walk = document.createTreeWalker(side, NodeFilter.SHOW_TEXT);
  let place = 0;
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    if (node.parentElement.closest(".text-unseen-note, summary")) continue;
    const button = node.parentElement.closest("button.text-word");
    const end = place + node.data.length;
    if (button && found.at(-1)?.word === Number(button.dataset.word)) found.at(-1).end = end;
    else if (button) found.push({word: Number(button.dataset.word), start: place, end, value: button.dataset.value ?? "",
      name: button.getAttribute("aria-label"), direction: getComputedStyle(button.parentElement).direction});
    place = end;
  }
  return {buttons: found, length: place};
}"""
# Nothing is being asked, or will be by a short timer, and no frame is to be drawn; for three frames in a row. On a page whose work is
# not counted (see browser.py), for a third of a second, after which views have asked.
_QUIET = """(limit) => new Promise((done) => {
  const begun = performance.now();
  const frame = window.uncountedFrame ?? requestAnimationFrame;
  const enough = window.pendingWork ? 3 : 22;
  let quiet = 0;
  const look = () => {
    quiet = window.pendingWork?.size || document.querySelector(".asking, [aria-busy=true]") ? 0 : quiet + 1;
    if (quiet > enough || performance.now() - begun > limit) done(quiet > enough);
    else frame(look);
  };
  frame(look);
})"""
# How many pixels of a canvas are not clear. By a copy: one that is read is moved out of the graphics memory.
_PAINTED = """(canvas) => {
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
  copy.drawImage(canvas, 0, 0);
  const {data} = copy.getImageData(0, 0, canvas.width, canvas.height);
  let painted = 0;
  for (let place = 3; place < data.length; place += 4) painted += data[place] > 8;
  return painted;
}"""


def number(text: str) -> float:
    """A number as the page writes it, with a true minus."""
    found = re.search(r"[+\u2212-]?\d[\d,]*(?:\.\d+)?", text)
    assert found, text
    return float(found[0].replace("\u2212", "-").replace(",", ""))


def field(page: Page) -> Locator:
    """Where the text is typed."""
    return page.get_by_role("textbox", name="Text", exact=True)


def ask(page: Page, text: str, pair: str | None = None) -> None:
    """Type a text and send it."""
    field(page).fill(text)
    if pair is not None:
        page.get_by_label("Second text").fill(pair)
    page.get_by_role("region", name="Text", exact=True).get_by_role("button", name=re.compile("^(Explain|Classify)$")).click()


def show(page: Page, view: str) -> Locator:
    """Choose a view by its tab; returns its panel."""
    page.get_by_role("tab", name=(VIEWS | ASKING)[view]).click()
    panel = page.get_by_role("tabpanel")
    expect(panel).to_have_attribute("aria-labelledby", f"tab-{view}")
    return panel


def settled(page: Page, limit_ms: float = STEP_MS) -> None:
    """Wait until the text is answered or refused, nothing more is being asked, and what has come is drawn."""
    expect(page.locator("#answer").locator(".label, .failed").first).to_be_visible()
    assert page.evaluate(_QUIET, limit_ms), f"after {limit_ms} ms the page is still asking"


def painted(canvas: Locator) -> int:
    """How many pixels of a canvas have been drawn."""
    pixels: int = canvas.evaluate(_PAINTED)
    return pixels


def words(page: Page, pair: bool = False) -> list[dict[str, Any]]:
    """Each word's button of one text: word, start, end, value, name, direction."""
    side = page.locator(".text-words-side").nth(int(pair))
    expect(side).to_be_visible()
    buttons: list[dict[str, Any]] = side.evaluate(_BUTTONS)["buttons"]
    return buttons


def change(page: Page, option: str, changed: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Let the messages with which the server answers what is asked with an option be changed."""

    def answer(route: Route) -> None:
        asked = route.request.post_data_json
        if not asked or option not in asked["options"]:
            route.continue_()
            return
        response = route.fetch()
        messages = changed([json.loads(line) for line in response.text().splitlines()])
        route.fulfill(response=response, body="".join(f"{json.dumps(message)}\n" for message in messages))

    page.route("**/v1/explain", answer)


def saved_svg(page: Page, folder: Path) -> ElementTree.Element:
    """The picture of the view that is shown, by its button."""
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save SVG").click()
    path = folder / saving.value.suggested_filename
    saving.value.save_as(path)
    return ElementTree.parse(path).getroot()


def sideways(page: Page) -> int:
    """By how many pixels the page can be scrolled sideways."""
    beyond: int = page.evaluate("() => Math.max(0, document.scrollingElement.scrollWidth - innerWidth)")
    return beyond


def until(page: Page, true: Callable[[], bool], what: str) -> None:
    """Wait for what happens outside of the page, such as a number in the server."""
    for _ in range(400):
        if true():
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"never: {what}")


def signed(value: float) -> str:
    """A number as the viewer writes it, with three decimals; what rounds to nothing has no sign."""
    written = f"{value:+.3f}"
    return written.replace("-", "\u2212") if float(written) else "0.000"
