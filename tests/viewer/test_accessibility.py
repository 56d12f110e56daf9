"""Accessibility: axe-core finds nothing in any state of the pages, in both themes, at a desk and on a phone."""

from collections.abc import Callable
from pathlib import Path

import axe_playwright_python
import pytest
from playwright.sync_api import Page, expect

from tests.conftest import RunningServer
from tests.viewer.browser import DESK, PHONE, address
from tests.viewer.conftest import Visit
from tests.viewer.reading import ASKING, VIEWS, settled, sideways
from tests.viewer.test_docs_page import sent
from tests.viewer.test_file_view import classify, says
from tests.viewer.test_parts import TEXT
from tests.viewer.texts import MIXED, SHORT, review

pytestmark = pytest.mark.needs_tool("chromium")

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
RUN = """async () => {
  const {violations} = await axe.run({runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]});
  return violations.map(({id, help, nodes}) => `${id}: ${help}: ${nodes.slice(0, 3).map(({html}) => html.slice(0, 200)).join(" | ")}`);
}"""


def press(button: str) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        settled(page)
        page.get_by_role("button", name=button).click()
        settled(page)

    return act


def drawn(selector: str) -> Callable[[Page], None]:
    return lambda page: expect(page.locator(selector).first).to_be_visible()


def a_file(page: Page) -> None:
    texts = "".join(f"{place},{text}\n" for place, text in enumerate(["good", "bad", "a film", " "] * 9))
    classify(page, {"name": "texts.csv", "mimeType": "", "buffer": b"id,review\n" + texts.encode()})
    says(page, "Done")


def a_file_with_parts(page: Page) -> None:
    page.get_by_label("A file of texts").set_input_files({"name": "x.txt", "mimeType": "", "buffer": b"a great film. awful film!\n"})
    page.get_by_role("tabpanel").get_by_role("checkbox", name="Answer each sentence").check()
    page.get_by_label("Targets of all texts").fill("film, price")
    page.get_by_role("button", name="Classify the file").click()
    says(page, "Done")


def a_study(page: Page) -> None:
    # Before the study is there, there is nothing to unfold.
    page.locator(".card-view canvas").wait_for(state="attached")
    for summary in page.locator(".card-view > details > summary").all():
        summary.click()
    expect(page.locator(".card-view canvas")).to_be_visible()


def a_request(page: Page) -> None:
    sent(page, "classify")
    for details in page.locator("section#classify summary").all():
        details.click()


COMPARED = {"text": "a good film", "other": "a bad film", "terms": 1}
PARTS = {"text": TEXT, "sentences": 1, "targets": "film,price,a great,W1", "terms": 1}
# By name: the fixture of the server or page, the rest of the address, and what is done there.
STATES: dict[str, tuple[str, str, Callable[[Page], None]]] = {
    **{view: ("english", address("", view, text=SHORT, without="9", lock="4"), settled) for view in VIEWS},
    **{f"{view} without a text": ("english", address("", view), drawn("#panel")) for view in VIEWS | ASKING},
    "an unknown model": ("english", address("", text="a good film", model="nosuch"), settled),
    "words from right to left": ("english", address("", text=MIXED), settled),
    "an unread part": ("paired", address("", text=review(200)), settled),
    "an enlarged map": ("recorded", address("", "model", map="1,2"), settled),
    "tables of a neuron": ("recorded", address("", "neuron"), press("As a table")),
    "counterfactuals": ("recorded", "", press("What alone is enough?")),
    "two texts, feedback and terms": ("journalled", address("", "compare", **COMPARED), drawn(".compare-body")),
    "a file": ("journalled", address("", "file"), a_file),
    "parts": ("three", address("", **PARTS), settled),
    "a file with parts": ("three", address("", "file"), a_file_with_parts),
    "a study": ("measured", address("", "card", text="not good"), a_study),
    "requests": ("paired", "/docs", a_request),
}


@pytest.mark.parametrize(("scheme", "size"), [("light", DESK), ("dark", PHONE)], ids=["desk", "phone"])
@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing_in_any_state(
    visit: Visit, request: pytest.FixtureRequest, state: str, scheme: str, size: dict[str, int]
) -> None:
    fixture, place, act = STATES[state]
    served: RunningServer | str = request.getfixturevalue(fixture)
    url = served if isinstance(served, str) else served.url
    # A blank text of the file, and an unknown model, are refused.
    page = visit(url + place, refused=True, color_scheme=scheme, viewport=size, has_touch=size is PHONE)

    act(page)

    page.evaluate(AXE)
    assert page.evaluate(RUN) == []
    assert sideways(page) == 0
