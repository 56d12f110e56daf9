"""The scorecard: measured trust in each method, for bundles with and without a study."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import RunningServer
from tests.trusted import explanations
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import signed

pytestmark = pytest.mark.needs_tool("chromium")

TEXT = "the film was not good at all"
NONE = "This bundle has no such measurement."


def section(page: Page) -> Locator:
    """The section, opened."""
    part = page.locator("details").filter(has=page.get_by_role("heading", name="Measured trust in each attribution method"))
    if part.get_attribute("open") is None:
        part.locator("summary").click()
    return part


def test_every_method_has_a_row_and_the_best_of_each_kind_comes_first(visit: Visit, measured: RunningServer) -> None:
    page = visit(address(measured.url, "card", text=TEXT))

    rows = section(page).locator("tbody tr")
    wanted = explanations()["trust"]
    expect(rows.locator("th > span:first-child")).to_have_text([found["method"] for found in wanted])
    for row, found in zip(rows.all(), wanted, strict=True):
        cells = row.locator("td").all_inner_texts()
        assert cells[0] == found["kind"]
        for cell, one in zip(cells[1:3], found["over_random"].values(), strict=True):
            assert cell.split("\n") == [signed(one["mean"]), f"{signed(one['low'])} to {signed(one['high'])}"]
        assert cells[3] == ("yes" if found["better_than_random"] else "no")
        assert cells[4] == (f"{100 * found['better_of_tested']:.1f} % of {found['tested']}" if "tested" in found else "")
    assert rows.first.locator("td").last.inner_text().split("\n") == ["23 rows", "18 ms"]


def test_sentences_describe_the_trust_in_the_shown_method(visit: Visit, measured: RunningServer) -> None:
    page = visit(address(measured.url, "card", text=TEXT, how=1))
    said = section(page)

    expect(said).to_contain_text("Measured by the bundle's maker on 400 texts of made/up")
    expect(said).to_contain_text("words taken out of the attention mask; words replaced by [MASK]")
    expect(said).to_contain_text(
        "The text view shows occlusion. In the mean over these texts, the words it ranks first did move the answer"
    )
    expect(said).to_contain_text("Of 200 texts that could tell, its evidence called it better than random on 93.5 %")
    expect(said.locator("tr.card-shown th")).to_contain_text("occlusion")

    page.get_by_role("tab", name="Text", exact=True).click()
    page.get_by_label("Method", exact=True).select_option("gradient_x_input")
    page.get_by_role("tab", name="Scorecard").click()

    expect(said).to_contain_text("The text view shows gradient_x_input. Over these texts it was not shown that")
    expect(said).to_contain_text("do not rely on it")
    expect(said.locator("tr.card-shown th")).to_contain_text("gradient_x_input")


def test_the_text_view_starts_with_the_studys_default(visit: Visit, measured: RunningServer) -> None:
    page = visit(address(measured.url, text=TEXT, how=1))

    expect(page.get_by_label("Method", exact=True)).to_have_value("occlusion")
    expect(page.get_by_label("Method", exact=True).locator("option")).to_have_text(
        ["occlusion", "integrated_gradients", "gradient_x_input", "shapley", "two_step_shapley"]
    )


def test_a_bundle_without_a_study_says_so(visit: Visit, paired: RunningServer) -> None:
    page = visit(address(paired.url, "card", text=TEXT))

    expect(section(page)).to_contain_text(re.compile(re.escape(NONE)))
    expect(section(page).locator("canvas, table")).to_have_count(0)
