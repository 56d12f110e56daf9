"""The model view: all maps, drawn from the weights that the Python client returns."""

import io
import re
from base64 import b64decode

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from sentiment.client import Explanation
from tests.conftest import RunningServer
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import field, number, painted, settled
from tests.viewer.texts import SHORT

pytestmark = pytest.mark.needs_tool("chromium")

LAYERS, HEADS = 6, 12


def test_each_thumbnail_shows_its_heads_map(visit: Visit, english: RunningServer, mapped: Explanation) -> None:
    page = visit.settled(address(english.url, "model", text=SHORT))

    names = [cell.get_attribute("aria-label") or "" for cell in page.locator(".model-cell").all()]
    thumbs = page.locator("canvas.model-thumb")
    pixels = thumbs.evaluate_all("(all) => all.map((canvas) => canvas.toDataURL())")

    assert len(names) == LAYERS * HEADS
    for place, name in enumerate(names):
        layer, head = divmod(place, HEADS)
        assert name.startswith(f"layer {layer} head {head}, ")
        assert number(name.rpartition(":")[2]) == pytest.approx(mapped.heads.gated[layer, head], abs=0.0051)
        weights = mapped.attention.maps[layer, head]
        shades = np.asarray(Image.open(io.BytesIO(b64decode(pixels[place].partition(",")[2]))).convert("L"), np.float64)
        assert shades.shape == weights.shape
        assert np.corrcoef(shades.ravel(), np.sqrt(weights).ravel())[0, 1] < -0.98
    assert page.locator(".model-cell.marked").count() == 5


def test_an_enlarged_map_shows_the_weight_of_each_cell(visit: Visit, english: RunningServer, mapped: Explanation) -> None:
    page = visit.settled(address(english.url, "model", text=SHORT))

    page.get_by_role("button", name="layer 3 head 5").click()

    expect(page.get_by_role("heading", name="layer 3 head 5")).to_be_visible()
    enlarged = page.get_by_role("application", name="layer 3 head 5")
    expect(enlarged).to_be_focused()
    assert painted(enlarged.locator("canvas")) > 10_000
    for key, row, column in (("ArrowDown", 1, 0), ("End", 1, len(mapped.units) - 1), ("ArrowUp", 0, len(mapped.units) - 1)):
        page.keyboard.press(key)
        weight = mapped.attention.maps[3, 5][row, column]
        says = page.locator(".map-readout").inner_text()
        assert mapped.units[row][0] in says
        assert mapped.units[column][0] in says
        assert float(says.rpartition(": ")[2]) == pytest.approx(weight, abs=1 / 255 + 0.00051)
    assert "map=3%2C5" in page.url
    page.keyboard.press("Escape")
    expect(page.locator(".model-cell:focus")).to_have_attribute("aria-label", re.compile("^layer 3 head 5,"))


def test_going_back_returns_the_focus_to_the_thumbnail(visit: Visit, english: RunningServer) -> None:
    page = visit.settled(address(english.url, "model", text="a good film"))

    for back in (page.get_by_role("button", name="Back to all maps").click, page.go_back):
        page.get_by_role("button", name="layer 3 head 5").click()
        expect(page.get_by_role("application")).to_be_focused()
        back()
        expect(page.locator(".model-cell:focus")).to_have_attribute("aria-label", re.compile("^layer 3 head 5,"))


def test_a_new_text_keeps_the_focus_in_the_text_field(visit: Visit, english: RunningServer) -> None:
    page = visit.settled(address(english.url, "model", text="a good film", map="3,5"))

    field(page).fill("a bad film")
    page.keyboard.press("Control+Enter")
    settled(page)

    expect(page.locator(".answer .label")).to_have_text("negative")
    expect(field(page)).to_be_focused()


def test_the_chosen_cell_is_forgotten_for_another_text(visit: Visit, english: RunningServer) -> None:
    page = visit.settled(address(english.url, "model", text="a good film", map="3,5"))
    page.get_by_role("application").press("ArrowDown")
    expect(page.locator(".map-readout")).to_contain_text("→")

    page.goto(address(english.url, "model", text="a bad film", map="3,5"))
    settled(page)

    expect(page.get_by_role("application")).to_be_visible()
    expect(page.locator(".map-readout")).to_have_text("Point at the map, or choose with the arrow keys.")


def test_a_map_links_to_the_same_head_in_other_views(visit: Visit, english: RunningServer) -> None:
    page = visit.settled(address(english.url, "model", text="a good film", map="3,5"))

    page.get_by_role("button", name="In the head view").click()
    settled(page)
    pressed = page.locator(".heads-toggle[aria-pressed=true]")
    expect(pressed).to_have_count(1)
    expect(pressed).to_have_attribute("aria-label", re.compile("^head 5,"))
    expect(page.get_by_label("Layer", exact=True)).to_have_value("3")
    page.go_back()
    page.get_by_role("button", name="In the neuron view").click()
    settled(page)

    expect(page.locator(".neuron-summary")).to_contain_text("In layer 3, head 5")
