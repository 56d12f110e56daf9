"""The picture at the top of README can be taken again by its command."""

from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser

from tests.conftest import RunningServer
from tests.viewer.overview import FILE, MARGIN, TERMINAL_WIDTH, overview, save, terminal_page

pytestmark = pytest.mark.needs_tool("chromium")

BYTES_MAX = 150_000
# The strongest orange of the terminal and of the page: "loved" is coloured in both.
ORANGE = ((255, 135, 0), (234, 130, 16))


def test_the_picture_has_a_coloured_explanation_in_the_terminal_and_on_the_page(
    browser: Browser, english: RunningServer, tmp_path: Path
) -> None:
    picture = overview(browser, english)
    path = tmp_path / "overview.png"
    save(picture, path)

    assert path.stat().st_size < BYTES_MAX
    assert picture.size == Image.open(FILE).size
    middle = TERMINAL_WIDTH + MARGIN + MARGIN // 2
    sides = [picture.crop((0, 0, middle, picture.height)), picture.crop((middle, 0, *picture.size))]
    for side, colour in zip(sides, ORANGE, strict=True):
        counts = {found: count for count, found in side.getcolors(side.width * side.height) or []}
        assert counts.get(colour, 0) > 300


def test_an_unknown_code_of_the_terminal_is_not_drawn_in_silence() -> None:
    assert "font-weight:bold" in terminal_page("\x1b[1mx\x1b[0m")
    with pytest.raises(ValueError, match="no picture"):
        terminal_page("\x1b[7mx")
