"""Each view matches its approved picture. ``make screenshots`` takes the pictures again.

The page is one that was recorded (record.py), so that no other machine's kernels draw other numbers. Views that ask a server are of the
tiny bundle, whose sums are the same on all machines.
"""

import io
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tests.approved import APPROVING
from tests.conftest import RunningServer, leave_out
from tests.viewer.browser import DESK, PHONE, address
from tests.viewer.conftest import Visit
from tests.viewer.pictures import FONTS, compared, missing_fonts, save_small
from tests.viewer.reading import settled

pytestmark = pytest.mark.needs_tool("chromium")

APPROVED = Path(__file__).parent / "approved"
BYTES_MAX = 2_200_000
LIGHT, DARK = {"color_scheme": "light"}, {"color_scheme": "dark"}
SMALL = {"viewport": PHONE}
# By name: the view, its state, the settings of the browser.
PICTURES = {
    "text": ("text", {}, LIGHT),
    "text-dark": ("text", {}, DARK),
    "text-phone": ("text", {}, SMALL),
    "text-without": ("text", {"without": "9"}, LIGHT),
    "text-how": ("text", {"how": 1, "method": "integrated_gradients"}, LIGHT),
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
    "geometry": ("geometry", {"geometry_layer": 5}, LIGHT),
    "geometry-dark": ("geometry", {"geometry_layer": 5}, DARK),
    "geometry-phone": ("geometry", {"geometry_layer": 5}, SMALL),
    "card": ("card", {}, LIGHT),
    "card-dark": ("card", {}, DARK),
    "card-phone": ("card", {}, SMALL),
    "terms": ("neuron", {"terms": 1}, LIGHT),
}
# By name: where the picture begins, and the settings of the browser.
LONG = {"long": ("#tabs", LIGHT), "long-phone": (".stands-out >> nth=0", {**DARK, **SMALL})}
COMPARED = {"text": "a good film and the great end", "other": "a bad film and the end today", "method": "occlusion"}
ASKED = {
    "compare": ("compare", COMPARED, LIGHT),
    "compare-dark": ("compare", COMPARED, DARK),
    "compare-phone": ("compare", COMPARED, SMALL),
    "file": ("file", {}, LIGHT),
    "file-dark": ("file", {}, DARK),
    "file-phone": ("file", {}, SMALL),
}


@pytest.fixture
def fonts() -> None:
    """Other fonts draw other pictures."""
    if missing := missing_fonts():
        leave_out(", ".join(missing), "not installed")


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


def matches(page: Page, name: str, part: str, tmp_path: Path) -> None:
    """Compare a page from one of its parts on with its approved picture; write that where asked to."""
    page.locator(part).evaluate("(node) => node.scrollIntoView()")
    page.mouse.move(0, 0)
    settled(page)
    found = still(page)
    path = APPROVED / f"{name}.png"
    if APPROVING:
        save_small(found, path)
        return
    seen = tmp_path / f"{name}.png"
    found.save(seen)
    difference = compared(Image.open(path), found)
    assert difference.same, f"{difference}: compare {path} with {seen}"


@pytest.mark.usefixtures("fonts")
@pytest.mark.parametrize("name", PICTURES)
def test_a_view_matches_its_approved_picture(visit: Visit, recorded: str, tmp_path: Path, name: str) -> None:
    view, state, settings = PICTURES[name]
    page = visit.settled(address(recorded, view, **state), **{"viewport": DESK, **settings})

    # Header and answer are the same on all of them.
    matches(page, name, "header" if view == "text" and "how" not in state else "#tabs", tmp_path)


@pytest.mark.usefixtures("fonts")
@pytest.mark.parametrize("name", LONG)
def test_the_view_of_a_long_text_matches_its_approved_picture(visit: Visit, recorded_long: str, tmp_path: Path, name: str) -> None:
    part, settings = LONG[name]
    page = visit.settled(recorded_long, **{"viewport": DESK, **settings})

    matches(page, name, part, tmp_path)


@pytest.mark.usefixtures("fonts")
@pytest.mark.parametrize("name", ASKED)
def test_a_view_that_asks_a_server_matches_its_approved_picture(visit: Visit, server: RunningServer, tmp_path: Path, name: str) -> None:
    view, state, settings = ASKED[name]
    # An empty text of the file is refused.
    page = visit.settled(address(server.url, view, **{"text": "good", **state}), refused=view == "file", **{"viewport": DESK, **settings})
    if view == "file":
        file = tmp_path / "texts.csv"
        file.write_text("id,review\n1,a good film\n2,an awful end\n3,a film\n4,\n5,the great and the bad\n")
        page.get_by_label("A file of texts").set_input_files(file)
        page.get_by_role("button", name="Classify the file").click()
        expect(page.locator(".file-progress")).to_contain_text("Done")
        page.get_by_label("Sort by").select_option("file")
        page.evaluate("() => document.activeElement.blur()")
    else:
        expect(page.locator(".compare-body")).to_be_visible()

    matches(page, name, "#tabs", tmp_path)


@pytest.mark.parametrize(
    ("families", "missing"),
    [("DejaVu Sans", ["fonts-noto-color-emoji"]), ("DejaVu Sans Mono", [*FONTS.values()]), (None, [*FONTS.values()])],
)
def test_fonts_that_the_pictures_need_are_named_if_they_are_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, families: str | None, missing: list[str]
) -> None:
    if families is not None:
        (tmp_path / "fc-list").write_text(f"#!/bin/sh\necho '{families},{families} Bold'\n")
        (tmp_path / "fc-list").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert missing_fonts() == missing


def test_the_approved_pictures_are_complete_and_small() -> None:
    files = {path.stem: path.stat().st_size for path in APPROVED.glob("*.png")}

    assert set(files) == set(PICTURES | LONG | ASKED)
    assert sum(files.values()) < BYTES_MAX
