"""Two texts side by side: what differs, and the numbers of both."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Page, expect

from sentiment.client import ExplainOptions
from tests.conftest import RunningServer
from tests.core.grpc.gate import Start
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import number, settled
from tests.viewer.texts import ATTACK

pytestmark = pytest.mark.needs_tool("chromium")

FIRST, OTHER = "a good film and the great end", "a bad film and the end today"


ALIGNED = """async ([first, second]) => (await import("/viewer/word_diff.js")).alignedWords(first, second)"""
WORDS = st.lists(st.sampled_from("abcd"), max_size=8)


def common(first: list[str], second: list[str]) -> int:
    """The length of a longest common subsequence, by its definition."""
    row = [0] * (len(second) + 1)
    for one in first:
        before = row[:]
        for place, other in enumerate(second):
            row[place + 1] = before[place] + 1 if one == other else max(row[place], before[place + 1])
    return row[-1]


@settings(max_examples=150)
@given(first=WORDS, second=WORDS)
def test_each_word_appears_once_in_order_and_most_words_stay(modules: Page, first: list[str], second: list[str]) -> None:
    aligned = modules.evaluate(ALIGNED, [first, second])

    for side, words in enumerate((first, second)):
        assert [pair["at"][side] for pair in aligned if pair["at"][side] >= 0] == list(range(len(words)))
    same = [pair["at"] for pair in aligned if pair["same"]]
    assert all(first[one] == second[other] for one, other in same)
    assert len(same) == common(first, second)


def test_texts_too_long_to_align_keep_their_common_ends(modules: Page) -> None:
    first, second = (["x", *(f"{name}{place}" for place in range(5000)), "y"] for name in "ab")

    aligned = modules.evaluate(ALIGNED, [first, second])

    assert [pair["at"] for pair in aligned if pair["same"]] == [[0, 0], [5001, 5001]]


def test_both_texts_have_the_numbers_of_the_python_client(visit: Visit, server: RunningServer) -> None:
    page = visit(address(server.url, "compare", text=FIRST, other=OTHER, method="occlusion"))
    body = page.locator(".compare-body")
    expect(body).to_contain_text("The answer changes: positive")
    settled(page)

    with server.client() as client:
        options = ExplainOptions(methods=("occlusion",))
        values = [client.explain(text, label="positive", options=options).attributions["occlusion"].words for text in (FIRST, OTHER)]
        scores = [client.classify(text).scores["positive"] for text in (FIRST, OTHER)]
    assert body.locator("del.text-word > span").all_inner_texts() == ["good", "great"]
    assert body.locator("ins.text-word > span").all_inner_texts() == ["bad", "today"]
    said = body.locator("p.note").first.inner_text().replace("\u2068", "").replace("\u2069", "")
    assert said == 'removed: "good" "great"; added: "bad" "today"'
    rows = {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts()
        for row in page.get_by_role("region", name="the answers beside each other").locator("tbody tr").all()
    }
    assert [number(text) for text in rows["probability of positive"]] == pytest.approx([*scores, scores[1] - scores[0]], abs=1e-4)
    assert rows["tokens"] == ["9", "9", "0"]
    table = page.get_by_role("region", name="words beside each other").locator("tbody tr")
    first = table.first.locator("td").all_inner_texts()
    # "good" is replaced by "bad": the largest change.
    assert first[0:3:2] == ["good", "bad"]
    assert [number(first[place]) for place in (1, 3, 4)] == pytest.approx(
        [values[0][1], values[1][1], values[1][1] - values[0][1]], abs=2e-3
    )


def test_another_text_is_typed_compared_and_in_the_address(visit: Visit, server: RunningServer) -> None:
    page = visit(address(server.url, "compare", text="a good film"))
    other = page.get_by_label("Another text")
    expect(other).to_have_value("a good film")

    other.fill(ATTACK)
    page.get_by_role("button", name="Compare", exact=True).click()

    expect(page.locator(".compare-body")).to_be_visible()
    settled(page)
    assert page.locator("script:not([src]), img, [onerror]").count() == 0
    page.reload()
    expect(other).to_have_value(ATTACK)
    expect(page.locator(".compare-sides .text-words-side").nth(1)).to_contain_text("onerror=alert(1)")


def test_a_refusal_of_the_other_text_is_said(visit: Visit, start: Start) -> None:
    page = visit(address(start(text_bytes_max=100).url, "compare", text="good", other="bad " * 40), refused=True)

    expect(page.locator(".compare-view .failed")).to_contain_text("100")
