"""Accessibility: axe-core finds nothing on any view, in both themes, with opened details, and after failures."""

from collections.abc import Callable
from pathlib import Path

import axe_playwright_python
import pytest
from playwright.sync_api import Page, expect

from tests.conftest import RunningServer
from tests.viewer.browser import DESK, PHONE, PHONE_LARGE, address
from tests.viewer.conftest import Visit
from tests.viewer.reading import ASKING, VIEWS, settled, show, sideways
from tests.viewer.texts import MIXED, SHORT, review

pytestmark = pytest.mark.needs_tool("chromium")

Start = Callable[..., RunningServer]
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
RUN = """async () => {
  const {violations} = await axe.run({runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]});
  return violations.map(({id, help, nodes}) => `${id}: ${help}: ${nodes.slice(0, 3).map(({html}) => html.slice(0, 200)).join(" | ")}`);
}"""


def violations(page: Page, where: str) -> list[str]:
    if not page.evaluate("() => Boolean(window.axe)"):
        page.evaluate(AXE)
    return [f"{where}: {found}" for found in page.evaluate(RUN)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_view(visit: Visit, english: RunningServer, scheme: str) -> None:
    page = visit(address(english.url, text=SHORT, without="9", lock="4"), color_scheme=scheme)
    found = []

    for view in VIEWS:
        show(page, view)
        settled(page)
        found += violations(page, view)

    assert found == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_opened_details(visit: Visit, recorded: str, scheme: str) -> None:
    page = visit(address(recorded, "model", map="1,2"), color_scheme=scheme, viewport=PHONE)
    settled(page)
    found = violations(page, "an enlarged map")

    show(page, "neuron")
    page.get_by_role("button", name="As a table").click()
    settled(page)
    found += violations(page, "the neuron view's tables")
    show(page, "text")
    page.get_by_role("button", name="What alone is enough?").click()
    settled(page)
    found += violations(page, "counterfactuals")

    assert found == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE_LARGE], ids=["desk", "phone"])
def test_axe_finds_nothing_on_two_texts_a_file_feedback_or_terms(
    visit: Visit, start: Start, tmp_path: Path, scheme: str, size: dict[str, int]
) -> None:
    server = start(journal=str(tmp_path / "journal"))
    state = {"text": "a good film", "other": "a bad film", "terms": 1}
    # A blank text of the file is refused.
    page = visit(address(server.url, "compare", **state), refused=True, color_scheme=scheme, viewport=size, has_touch=size is PHONE_LARGE)
    expect(page.locator(".compare-body")).to_be_visible()
    settled(page)
    found = violations(page, "compare, feedback and terms")
    assert sideways(page) == 0

    show(page, "file")
    file = tmp_path / "texts.csv"
    file.write_text("id,review\n" + "".join(f"{place},{text}\n" for place, text in enumerate(["good", "bad", "a film", " "] * 9)))
    page.get_by_label("A file of texts").set_input_files(file)
    page.get_by_role("button", name="Classify").click()
    expect(page.locator(".file-progress")).to_contain_text("Done")
    found += violations(page, "file")

    assert found == []
    assert sideways(page) == 0


def test_axe_finds_nothing_on_an_empty_page_a_refusal_or_an_unread_part(
    visit: Visit, english: RunningServer, paired: RunningServer
) -> None:
    page = visit(english.url, refused=True)
    found = []
    for view in VIEWS | ASKING:
        show(page, view)
        found += violations(page, f"no text: {view}")
    for server, state in (
        (english, {"text": "a good film", "model": "nosuch"}),
        (english, {"text": MIXED}),
        (paired, {"text": review(200)}),
    ):
        page = visit(address(server.url, **state), refused=True)
        settled(page)
        found += violations(page, str(state)[:40])

    assert found == []
