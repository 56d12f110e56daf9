"""The head view: weights, patterns and effects match the Python client."""

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from sentiment.client import Client, Explanation
from tests.conftest import RunningServer
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import number, painted, settled
from tests.viewer.texts import PAIR, SHORT

pytestmark = pytest.mark.needs_tool("chromium")

# A step of a byte, of a row whose largest weight is 1, and half of the last digit.
U8 = 1 / 255
DIGIT = 0.000501


def column(page: Page, side: str = "looks") -> Locator:
    return page.get_by_role("listbox", name={"looks": "Tokens that look", "looked at": "Tokens looked at"}[side])


def names(column: Locator) -> list[str]:
    return [text.strip() for text in column.get_by_role("option").all_inner_texts()]


def table(page: Page) -> tuple[list[str], dict[int, list[float]]]:
    """The heads, and the weights by the index of the other token, of the locked token."""
    shown = page.locator(".heads-locked table")
    heads = shown.locator("thead th").all_inner_texts()[1:]
    rows = [row.split("\t") for row in shown.locator("tbody tr").all_inner_texts()]
    return heads, {int(row[0].split()[0]): [float(cell) for cell in row[1:]] for row in rows}


def test_heads_show_pattern_and_effect_and_are_sorted_by_effect(visit: Visit, english: RunningServer, mapped: Explanation) -> None:
    page = visit.settled(address(english.url, "heads", text=SHORT, layer=2))

    chips = [chip.get_attribute("aria-label") or "" for chip in page.locator(".heads-toggle").all()]
    entries = [entry.get_attribute("aria-label") or "" for entry in page.locator(".heads-entry").all()]

    assert len(chips) == 12
    assert len(entries) == 72
    for chip in chips:
        head = int(number(chip))
        assert number(chip.rpartition(":")[2]) == pytest.approx(mapped.heads.gated[2, head], abs=0.0051)
    shown = [number(entry.rpartition(":")[2]) for entry in entries]
    gated = mapped.heads.gated.ravel()
    assert shown == pytest.approx(gated[np.argsort(-np.abs(gated), kind="stable")], abs=0.0051)
    expect(page.locator(".heads-aside")).to_contain_text(f"changes by {mapped.heads.all_uniform:+.2f}".replace("-", "\u2212"))


def test_a_locked_words_weights_match_the_server(visit: Visit, english: RunningServer, mapped: Explanation) -> None:
    page = visit.settled(address(english.url, "heads", text=SHORT, layer=1))
    assert names(column(page)) == [text for text, _, _ in mapped.units]
    row = names(column(page)).index("dull")

    column(page).get_by_role("option").nth(row).click()

    heads, weights = table(page)
    assert len(heads) == 12
    assert len(weights) == 10
    for other, values in weights.items():
        assert values == pytest.approx([mapped.attention.maps[1, head][row, other] for head in range(12)], abs=U8 + DIGIT)
    assert "lock=" in page.url
    page.keyboard.press("Escape")
    expect(page.locator(".heads-locked")).to_be_hidden()


def test_a_token_locked_on_the_right_shows_a_column_of_the_map(visit: Visit, english: RunningServer, mapped: Explanation) -> None:
    page = visit.settled(address(english.url, "heads", text=SHORT, layer=5, heads="0,7"))
    row = names(column(page, "looked at")).index("superb")

    column(page, "looked at").get_by_role("option").nth(row).click()

    heads, weights = table(page)
    assert heads == ["head 0", "head 7"]
    for other, values in weights.items():
        assert values == pytest.approx([mapped.attention.maps[5, head][other, row] for head in (0, 7)], abs=U8 + DIGIT)


def test_hovering_shows_the_links_of_one_token(visit: Visit, recorded: str) -> None:
    page = visit.settled(address(recorded, "heads"))
    all_links, one_tokens = page.locator("canvas.heads-canvas").all()
    assert painted(all_links) > 2000

    column(page).get_by_role("option").nth(2).hover()

    expect(one_tokens).to_be_visible()
    expect(all_links).to_be_hidden()
    assert painted(one_tokens) > 500
    page.get_by_role("tab", name="Heads").hover()
    expect(all_links).to_be_visible()


def test_pieces_and_special_tokens_can_be_chosen(visit: Visit, english: RunningServer, reader: Client) -> None:
    text = "an incomprehensibly overwrought melodrama"
    page = visit.settled(address(english.url, "heads", text=text))
    assert names(column(page)) == ["[CLS]", *text.split(), "[SEP]"]

    page.get_by_label("Tokens as").select_option("pieces")
    settled(page)
    assert names(column(page)) == [token.piece for token in reader.explain(text).tokens]
    page.get_by_label("special tokens").uncheck()
    settled(page)

    assert names(column(page)) == [token.piece for token in reader.explain(text).tokens if not token.special]


def test_heads_are_switched_on_and_off(visit: Visit, recorded: str) -> None:
    page = visit.settled(address(recorded, "heads"))
    canvas = page.locator("canvas.heads-canvas").first

    page.get_by_role("button", name="No head").click()
    settled(page)
    none = painted(canvas)
    page.get_by_role("button", name="head 4 only").click()
    settled(page)

    assert none == 0
    assert painted(canvas) > 100
    assert "heads=4" in page.url
    assert [chip.get_attribute("aria-label").split(",")[0] for chip in page.locator(".heads-toggle[aria-pressed=true]").all()] == ["head 4"]


def test_the_five_filters_of_a_pair_select_links(visit: Visit, paired: RunningServer) -> None:
    page = visit.settled(address(paired.url, "heads", text=PAIR[0], pair=PAIR[1], special=0))
    sides = {"a": PAIR[0].split(), "b": PAIR[1].split()}
    drawn = {}

    for chosen, (left, right) in {"all": ("ab", "ab"), "aa": "aa", "bb": "bb", "ab": "ab", "ba": "ba"}.items():
        page.get_by_label("Links", exact=True).select_option(chosen)
        settled(page)
        assert names(column(page)) == [word for side in left for word in sides[side]]
        assert names(column(page, "looked at")) == [word for side in right for word in sides[side]]
        drawn[chosen] = page.locator("canvas.heads-canvas").first.evaluate("(canvas) => canvas.toDataURL()")

    assert len(set(drawn.values())) == 5


def test_one_text_has_no_filters(visit: Visit, recorded: str) -> None:
    page = visit.settled(address(recorded, "heads"))

    expect(page.get_by_label("Links", exact=True)).to_be_hidden()
