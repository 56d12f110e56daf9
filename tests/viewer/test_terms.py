"""Terms of each view on demand, examples at the start, and links without the text."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import RunningServer
from tests.core.grpc.gate import Start
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import ASKING, VIEWS, ask, field, settled, show

pytestmark = pytest.mark.needs_tool("chromium")

# Of each view, a term that it cannot be read without.
NEEDED = {
    "text": ("undecided", "logit", "Shapley value", "evidence"),
    "heads": ("attention", "effect of a head"),
    "model": ("layer",),
    "neuron": ("softmax",),
    "geometry": ("embedding", "layer", "principal component", "cosine"),
    "compare": ("added, removed",),
    "file": ("sent again",),
    "card": ("calibration error", "rollout"),
}


def test_each_view_says_its_terms_in_a_line_each_by_keyboard(visit: Visit, server: RunningServer) -> None:
    # The model has no graph for heads.
    page = visit(server.url, refused=True)
    button = page.get_by_role("button", name="Terms")
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(page.locator("#terms-list")).to_be_hidden()

    button.press("Enter")

    expect(button).to_have_attribute("aria-expanded", "true")
    for view in VIEWS | ASKING:
        terms = show(page, view).locator("#terms-list")
        names = terms.locator("dt").all_inner_texts()
        assert set(NEEDED[view]) <= set(names)
        assert len(names) == len(set(names)) == terms.locator("dd").count()
        # A line of a wide screen.
        assert max(map(len, terms.locator("dd").all_inner_texts())) <= 140
    button.press("Escape")
    expect(page.locator("#terms-list")).to_be_hidden()


def test_an_example_is_explained_by_one_click(visit: Visit, server: RunningServer) -> None:
    page = visit(server.url)
    examples = page.get_by_role("list", name="Examples").get_by_role("button")
    kinds = examples.all_inner_texts()
    assert [kind.split("\n")[0] for kind in kinds] == ["Negation", "Contrast", "Irony", "Dry irony", "No opinion", "Long review"]

    examples.nth(1).click()

    expect(field(page)).to_have_value(re.compile("^The acting was not good at all, but"))
    expect(page.locator(".answer .label")).to_be_visible()
    expect(examples.first).to_be_hidden()


def test_a_model_of_pairs_has_an_example_of_a_pair(visit: Visit, start: Start) -> None:
    page = visit(start(model="paired").url)

    page.get_by_role("button", name="Pair").click()

    expect(page.get_by_role("textbox", name="Second text")).to_have_value("But I liked the end.")
    expect(page.locator(".text-words-side")).to_have_count(2)


def copied(page: Page, button: str) -> dict[str, str]:
    """What a button copies: the state in the address."""
    page.get_by_role("button", name="Share").click()
    page.get_by_role("button", name=button).click()
    expect(page.locator("#toast")).to_contain_text("copied")
    address = urlsplit(page.evaluate("() => navigator.clipboard.readText()"))
    return {key: value for key, (value,) in parse_qs(address.fragment).items()}


def test_a_link_without_the_text_has_the_settings_and_nothing_of_the_text(visit: Visit, server: RunningServer) -> None:
    settings = {"view": "compare", "method": "occlusion", "label": "negative", "numbers": "1", "theme": "dark"}
    of_text = {"text": "a good film", "other": "a bad film", "without": "1", "lock": "2", "token": "2"}
    page = visit.settled(address(server.url, **settings, **of_text), permissions=["clipboard-read", "clipboard-write"])

    assert copied(page, "Copy without text") == settings
    assert copied(page, "Copy address") == settings | of_text


def test_a_link_without_the_text_waits_for_one_and_keeps_its_settings(visit: Visit, server: RunningServer) -> None:
    page = visit(address(server.url, method="occlusion", label="negative", how=1))

    ask(page, "a good film")
    settled(page)

    expect(page.get_by_label("Method")).to_have_value("occlusion")
    expect(page.get_by_label("Label that is explained")).to_have_value("negative")
