"""Keyboard use: everything can be reached and used, and the focus is visible."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import RunningServer
from tests.english import NAME
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import VIEWS, settled, show

pytestmark = pytest.mark.needs_tool("chromium")

# How the focused element is marked: its outline, or that of what stands for it.
FOCUSED = """() => {
  const node = document.activeElement;
  if (node === document.body) return null;
  const style = getComputedStyle(node);
  const box = node.getBoundingClientRect();
  return {tag: node.tagName, id: node.id, name: node.getAttribute("aria-label") ?? node.textContent.trim().slice(0, 40),
    marked: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    seen: box.width > 0 && box.bottom > 0 && box.top < innerHeight};
}"""
TABS_MAX = 120


def walk(page: Page) -> list[dict]:
    """Everything that the Tab key reaches, from the top of the page to its end."""
    # Without the focus on the body, Tab goes on from where the focus was last.
    page.evaluate("() => { document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex'); }")
    found = []
    while len(found) < TABS_MAX:
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if focused is None or (found and focused == found[0]):
            break
        found.append(focused)
    return found


# Everything that the Tab key should reach.
STOPS = """() => [...document.querySelectorAll("button, select, textarea, input, a[href], summary, [tabindex='0']")]
  .filter((node) => node.tabIndex >= 0 && !node.disabled && node.checkVisibility({visibilityProperty: true})).length"""


def reaches_all(page: Page) -> None:
    found = walk(page)

    assert len(found) < TABS_MAX, "the Tab key must pass long lists in one step"
    assert len(found) == page.evaluate(STOPS)
    assert [one for one in found if not one["marked"]] == []
    assert [one for one in found if not one["seen"]] == []


@pytest.mark.parametrize("view", VIEWS)
def test_the_tab_key_reaches_everything_and_the_focus_is_visible(visit: Visit, recorded: str, view: str) -> None:
    page = visit.settled(address(recorded, view))

    reaches_all(page)


def test_the_tab_key_reaches_everything_of_two_texts_and_a_file(visit: Visit, start: Callable[..., RunningServer], tmp_path: Path) -> None:
    server = start(journal=str(tmp_path / "journal"))
    page = visit(address(server.url, "compare", text="a good film", other="a bad film"))
    expect(page.locator(".compare-body")).to_be_visible()
    settled(page)
    reaches_all(page)

    show(page, "file")
    file = tmp_path / "texts.txt"
    file.write_text("good\nbad\n" * 20)
    page.get_by_label("A file of texts").set_input_files(file)
    # A key on a button that waits for the file does nothing.
    expect(page.get_by_role("button", name="Classify the file")).to_be_enabled()
    page.get_by_role("button", name="Classify the file").press("Enter")
    expect(page.locator(".file-progress")).to_contain_text("Done")
    reaches_all(page)


def tab_to(page: Page, condition: str) -> None:
    """Press the Tab key until the focused element meets a condition."""
    while not page.evaluate(f"() => (({{activeElement: node}}) => {condition})(document)"):
        page.keyboard.press("Tab")


def test_every_view_can_be_used_without_a_mouse(visit: Visit, english: RunningServer) -> None:
    page = visit(english.url)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the explanation")).to_be_focused()
    tab_to(page, "node.id === 'text'")
    page.keyboard.type("not a good film")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".answer .label")).to_have_text("negative")
    tab_to(page, "node.matches('[role=tab]')")
    settled(page)

    # A word: reached, moved along, left out.
    tab_to(page, "node.matches('.text-word')")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(page.locator(".text-without")).to_contain_text("The answer")
    expect(page.locator("#live")).to_contain_text("without")

    # The heads: a token is locked and let go.
    page.locator("#tab-text").focus()
    page.keyboard.press("ArrowRight")
    settled(page)
    expect(page.locator("#tab-heads")).to_be_focused()
    tab_to(page, "node.matches('[role=option]')")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".heads-locked table")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".heads-locked")).to_be_hidden()

    # The model: a map is enlarged, read, and left; the focus comes back to where it was.
    page.locator("#tab-heads").focus()
    page.keyboard.press("ArrowRight")
    settled(page)
    tab_to(page, "node.matches('.model-cell')")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("application")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".map-readout")).to_contain_text("→")
    page.keyboard.press("Escape")
    expect(page.locator(".model-cell:focus")).to_have_count(1)

    # The neuron view: rows, and a look from another token.
    page.locator("#tab-model").focus()
    page.keyboard.press("ArrowRight")
    settled(page)
    tab_to(page, "node.matches('.neuron-scroll')")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    settled(page)
    expect(page.locator(".neuron-summary")).to_contain_text("token 5")

    # The geometry: a word and its nearest golden words, in the last layer.
    page.locator("#tab-neuron").focus()
    page.keyboard.press("ArrowRight")
    settled(page)
    tab_to(page, "node.id === 'geometry-layer'")
    page.keyboard.press("End")
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    settled(page)
    expect(page.get_by_role("listbox", name="Words of the text").get_by_role("option")).to_contain_text("film, nearest ")
    expect(page.get_by_role("region", name="The chosen word")).to_contain_text("after 6 of 6 layers")

    # Another text is typed and compared.
    page.locator("#tab-geometry").focus()
    page.keyboard.press("ArrowRight")
    tab_to(page, "node.id === 'other'")
    page.keyboard.press("Control+a")
    page.keyboard.type("a good film")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".compare-body")).to_contain_text("The answer changes")

    page.locator("#tab-file").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tabpanel")).to_contain_text(NAME)
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-text")).to_be_focused()


def test_reduced_motion_is_respected(visit: Visit, recorded: str) -> None:
    page = visit.settled(recorded)

    moving = page.evaluate("""() => [...document.querySelectorAll("*")].filter((node) => {
      const style = getComputedStyle(node);
      return parseFloat(style.transitionDuration) > 0.01 || (style.animationName !== "none" && parseFloat(style.animationDuration) > 0.01);
    }).map((node) => node.className)""")

    assert moving == []
