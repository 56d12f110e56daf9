"""What the page shows and asks before a user does anything, and what each view asks when it is opened."""

import json
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import RunningServer
from tests.viewer.browser import PHONE_LARGE, address
from tests.viewer.conftest import Visit
from tests.viewer.reading import ask, field, settled, show, sideways
from tests.viewer.texts import SHORT

pytestmark = pytest.mark.needs_tool("chromium")

EXAMPLE = "The acting was not good at all, but I loved the soundtrack."


def asks(page: Page) -> list[dict[str, Any]]:
    """What the page asks an explanation for, from now on: the text, and the options."""
    found: list[dict[str, Any]] = []

    def note(request: Any) -> None:  # Playwright's
        if request.url.endswith("/v1/explain"):
            body = json.loads(request.post_data)
            found.append({"text": body["text"], **body["options"]})

    page.on("request", note)
    return found


def test_a_page_without_a_text_explains_an_example(visit: Visit, server: RunningServer) -> None:
    page = visit.settled(server.url)

    expect(field(page)).to_have_value(EXAMPLE)
    expect(page.get_by_text("An example.")).to_be_visible()
    expect(page.locator(".text-reason")).not_to_be_empty()
    assert "text=" not in page.url
    ask(page, "a good film")
    settled(page)
    expect(page.get_by_text("An example.")).to_be_hidden()


def test_what_is_typed_replaces_the_example(visit: Visit, server: RunningServer) -> None:
    page = visit.settled(server.url)

    field(page).click()
    page.keyboard.type("a good film")

    expect(field(page)).to_have_value("a good film")


def test_the_view_of_files_asks_for_no_example(visit: Visit, server: RunningServer) -> None:
    page = visit(address(server.url, "file"))
    expect(page.locator("#model-said")).not_to_be_empty()
    expect(page.locator("#answer")).to_be_hidden()

    show(page, "text")
    settled(page)

    expect(page.locator(".text-reason")).not_to_be_empty()


def test_a_text_in_the_address_is_all_that_is_explained(visit: Visit, server: RunningServer) -> None:
    page = visit.blank(server.url)
    found = asks(page)

    page.goto(address(server.url, text="a good film"))
    settled(page)

    assert found == [{"text": "a good film", "methods": [], "estimates": True}]


def test_an_example_that_is_refused_is_said_to_be(visit: Visit, server: RunningServer) -> None:
    page = visit.blank(server.url, refused=True)
    refused = json.dumps({"error": {"status": "RESOURCE_EXHAUSTED", "code": 8, "message": "explanations wait"}})
    page.route("**/v1/explain", lambda route: route.fulfill(status=429, content_type="application/json", body=refused))

    page.goto(server.url)

    expect(page.locator("#panel .failed").first).to_contain_text("The server has too much to do: explanations wait.")
    expect(page.locator(".text-word")).to_have_count(0)


@pytest.mark.parametrize(
    ("view", "wanted"),
    [("heads", {"attention", "heads"}), ("neuron", {"neuron"}), ("file", set()), ("card", set())],
)
def test_the_view_that_is_open_is_asked_first(visit: Visit, english: RunningServer, view: str, wanted: set[str]) -> None:
    page = visit.blank(english.url)
    found = asks(page)

    page.goto(address(english.url, view, text=SHORT))
    settled(page)

    assert {name for one in found for name in one if name not in ("text", "against")} == wanted
    show(page, "text")
    settled(page)
    assert "methods" in found[-1]
    expect(page.locator(".text-reason")).not_to_be_empty()


def test_a_later_attribution_takes_the_place_of_an_estimate(modules: Page) -> None:
    script = """async ([header, found]) => {
      const {Explanation} = await import("/viewer/explanation.js");
      const explanation = new Explanation("good film", null);
      explanation.take({header});
      for (const [first, second] of found) {
        const words = [first, second].map(([value, standard_error]) => ({value, standard_error}));
        explanation.take({attribution: {method: "shapley", words, token_embedding: [1, 2]}}, "attribution");
      }
      const {words, told, byEmbedding} = explanation.attributions.get("shapley");
      return [[...words], [...told], [...byEmbedding.token]];
    }"""
    header = {"prediction": {}, "model": {"digest": ""}, "tokens": [], "words": []}
    estimate, final = [[3.0, None], [1.0, None]], [[2.0, 0.5], [1.0, 0.5]]

    words, told, split = modules.evaluate(script, [header, [estimate, final]])

    assert (words, told, split) == ([2.0, 1.0], [2.0, 0.0], [1.0, 2.0])


def test_the_button_says_what_it_does(visit: Visit, server: RunningServer) -> None:
    page = visit(address(server.url, text="a good film"))
    button = page.locator("#question button[type=submit]")

    expect(button).to_have_text("Explain")
    show(page, "card")

    expect(button).to_have_text("Classify")


def test_the_page_says_what_it_is_which_model_answers_and_where_the_docs_are(visit: Visit, server: RunningServer) -> None:
    page = visit.settled(server.url, viewport=PHONE_LARGE)
    header = page.locator("header")

    expect(header).to_contain_text("tiny/1")
    expect(header.get_by_role("link", name="HTTP API")).to_have_attribute("href", "docs")
    # The name and the buttons in one row, and one line below.
    tops = header.locator("h1, button:visible").evaluate_all("(all) => all.map((node) => node.getBoundingClientRect().bottom)")
    assert max(tops) < 60
    assert header.bounding_box()["height"] < 85
    assert sideways(page) == 0
