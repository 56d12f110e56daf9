"""Save SVG and Save PNG: pictures of the shown view, without scripts."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page

from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import saved_svg

pytestmark = pytest.mark.needs_tool("chromium")

SVG = "{http://www.w3.org/2000/svg}"
ELEMENTS = {f"{SVG}{name}" for name in ("svg", "title", "rect", "path", "text", "image")}
PICTURES = {
    "text": {"without": "9"},
    "heads": {},
    "heads-locked": {"lock": 3},
    "model": {},
    "model-map": {"map": "2,3"},
    "neuron": {},
    "geometry": {},
}


def saved_png(page: Page, folder: Path) -> Image.Image:
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save PNG").click()
    path = folder / saving.value.suggested_filename
    saving.value.save_as(path)
    return Image.open(path)


@pytest.mark.parametrize("picture", PICTURES)
def test_pictures_can_be_saved(visit: Visit, recorded: str, tmp_path: Path, picture: str) -> None:
    view = picture.partition("-")[0]
    page = visit.settled(address(recorded, view, **PICTURES[picture]), color_scheme="dark")

    svg = saved_svg(page, tmp_path)
    png = saved_png(page, tmp_path)

    assert {node.tag for node in svg.iter()} <= ELEMENTS
    for node in svg.iter():
        for name, value in node.attrib.items():
            assert not name.startswith("on")
            assert not re.search(r"NaN|undefined|Infinity|javascript:", value)
            assert "href" not in name or value.startswith("data:image/png;base64,")
    size = int(svg.get("width")), int(svg.get("height"))
    assert min(size) > 100
    assert max(abs(2 * side - found) for side, found in zip(size, png.size, strict=True)) <= 2
    assert np.asarray(png.convert("L"), np.float64).std() > 5
    assert svg.find(f"{SVG}title").text
    texts = " ".join(node.text or "" for node in svg.iter(f"{SVG}text"))
    assert "superb" in texts or view == "model"
    # Drawn in the theme in force.
    assert np.asarray(png.convert("L"))[2:12, 2:12].mean() < 60
