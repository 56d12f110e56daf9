"""The comparison of pictures: it accepts other font rendering, and rejects visible changes."""

import io
from collections.abc import Iterator

import pytest
from PIL import Image
from playwright.sync_api import Playwright

from tests.viewer.browser import DESK, start
from tests.viewer.pictures import compared, save_small

pytestmark = pytest.mark.needs_tool("chromium")

ROWS = "".join(
    f"<tr><td>word {row}</td><td class=n>{(row * 37 % 23 - 11) / 7:+.2f}</td><td class=s>{'pattern ' * (row % 3 + 1)}</td></tr>"
    for row in range(18)
)
STYLE = "body {font: 15px 'DejaVu Sans'; background: #fff; color: #222} td {padding: 3px 16px}"
BLOCK = ".b {background: #f4a259; width: 160px; height: 40px}"
PAGE = (
    f"<style>{STYLE} {BLOCK} %s</style><h1>A page</h1><p class=b>coloured</p><p>Some words that stand in a line.</p><table>{ROWS}</table>"
)

CHANGES = {
    "a column is missing": ".n {display: none}",
    "a column is empty": ".n {visibility: hidden}",
    "a column moved": ".n {position: relative; left: 14px}",
    "all moved down": "body {padding-top: 12px}",
    "another colour": ".b {background: #5982f4}",
    "letters of another size": "body {font-size: 16px}",
    "dark": "body {background: #16181d; color: #eee}",
}


# Full hinting by another method, as other machines' settings of fonts may have it.
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig><include>/etc/fonts/fonts.conf</include>
<match target="font"><edit name="autohint" mode="assign"><bool>true</bool></edit>
<edit name="hintstyle" mode="assign"><const>hintfull</const></edit></match></fontconfig>"""
DRAWINGS = {"unhinted": "body {text-rendering: geometricPrecision}", "between pixels": "body {position: relative; left: 0.4px; top: 0.4px}"}


@pytest.fixture(scope="module")
def drawn(playwright: Playwright, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Image.Image]]:
    """The page, as other settings of fonts draw it, and with each change."""
    fonts = tmp_path_factory.mktemp("fonts") / "fonts.conf"
    fonts.write_text(FONTS)
    pictures = {}
    for env, styles in (({}, {"": "", **DRAWINGS, **CHANGES}), ({"FONTCONFIG_FILE": str(fonts)}, {"hinted": ""})):
        browser = start(playwright, env=env)
        page = browser.new_page(viewport=DESK)
        for change, style in styles.items():
            page.set_content(PAGE % style)
            pictures[change] = Image.open(io.BytesIO(page.screenshot()))
        browser.close()
    yield pictures


def test_other_font_rendering_is_the_same_picture_and_a_visible_change_another(drawn: dict[str, Image.Image]) -> None:
    found = {name: compared(drawn[""], picture) for name, picture in drawn.items() if picture.tobytes() != drawn[""].tobytes()}

    assert {name for name, difference in found.items() if difference.same} == {"hinted", *DRAWINGS}, found
    assert {name for name, difference in found.items() if not difference.same} == {*CHANGES}, found


def test_another_size_is_another_picture(drawn: dict[str, Image.Image]) -> None:
    assert not compared(drawn[""], drawn[""].crop((0, 0, 1100, 792))).same


def test_fewer_colours_in_the_file_are_the_same_picture(drawn: dict[str, Image.Image], tmp_path) -> None:
    save_small(drawn[""], tmp_path / "small.png")

    assert compared(drawn[""], Image.open(tmp_path / "small.png")).same
