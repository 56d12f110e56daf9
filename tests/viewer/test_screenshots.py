"""Each view matches its approved picture. ``make screenshots`` takes the pictures again.

The page is one that was recorded (record.py), so that no other machine's kernels draw other numbers.
"""

import io
import os
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page

from tests.viewer.browser import DESK, PHONE, address
from tests.viewer.conftest import Visit
from tests.viewer.pictures import compared, save_small
from tests.viewer.reading import settled

pytestmark = pytest.mark.needs_tool("chromium")

APPROVED = Path(__file__).parent / "approved"
BYTES_MAX = 1_500_000
LIGHT, DARK = {"color_scheme": "light"}, {"color_scheme": "dark"}
SMALL = {"viewport": PHONE}
# By name: the view, its state, the settings of the browser.
PICTURES = {
    "text": ("text", {}, LIGHT),
    "text-dark": ("text", {}, DARK),
    "text-phone": ("text", {}, SMALL),
    "text-without": ("text", {"without": "9"}, LIGHT),
    "heads": ("heads", {"layer": 2}, LIGHT),
    "heads-dark": ("heads", {"layer": 2}, DARK),
    "heads-phone": ("heads", {"layer": 2, "heads": "1,3"}, SMALL),
    "heads-locked": ("heads", {"layer": 2, "lock": 11}, LIGHT),
    "model": ("model", {}, LIGHT),
    "model-dark": ("model", {}, DARK),
    "model-map": ("model", {"map": "2,7"}, LIGHT),
    "model-phone": ("model", {}, SMALL),
    "neuron": ("neuron", {}, LIGHT),
    "neuron-dark": ("neuron", {}, DARK),
    "neuron-phone": ("neuron", {}, SMALL),
    "card": ("card", {}, LIGHT),
    "card-dark": ("card", {}, DARK),
    "card-phone": ("card", {}, SMALL),
}


def still(page: Page) -> Image.Image:
    """A picture of the page once it does not change any more: lines are drawn some a frame."""
    last = b""
    for _ in range(50):
        found = page.screenshot(animations="disabled", caret="hide")
        if found == last:
            return Image.open(io.BytesIO(found))
        last = found
        page.wait_for_timeout(100)
    raise AssertionError("the page never stands still")


@pytest.mark.parametrize("name", PICTURES)
def test_a_view_matches_its_approved_picture(visit: Visit, recorded: str, tmp_path: Path, name: str) -> None:
    view, state, settings = PICTURES[name]
    page = visit(address(recorded, view, **state), **{"viewport": DESK, **settings})
    settled(page)
    # Below the answer, which is the same on all of them.
    page.locator("#tabs" if view != "text" else "#answer").evaluate("(node) => node.scrollIntoView()")
    page.mouse.move(0, 0)
    settled(page)
    found = still(page)
    path = APPROVED / f"{name}.png"
    if os.environ.get("APPROVE"):
        save_small(found, path)
        return

    difference = compared(Image.open(path), found)

    seen = tmp_path / f"{name}.png"
    found.save(seen)
    assert difference.same, f"{difference}: compare {path} with {seen}"


def test_the_approved_pictures_are_complete_and_small() -> None:
    files = {path.stem: path.stat().st_size for path in APPROVED.glob("*.png")}

    assert set(files) == set(PICTURES)
    assert sum(files.values()) < BYTES_MAX
