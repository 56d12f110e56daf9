"""The text view: values match the Python client, word by word."""

import pytest
from playwright.sync_api import Page, expect

from sentiment.cli.explanation_text import _sentences, _told, _written
from sentiment.client import Client, ExplainOptions
from sentiment.client.explanations import Explanation
from tests.conftest import RunningServer
from tests.models.tiny_families import MAX_TOKENS
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import number, settled, signed, words
from tests.viewer.texts import MIXED, PAIR, SHORT, review

pytestmark = pytest.mark.needs_tool("chromium")

LEAST = "What is the least that changes the answer?"
ENOUGH = "What alone is enough?"
# Longer than any text of the default bundle's study, which has 47 words at most.
LONGER = review(60)


def spans(found: Explanation, pair: bool = False) -> list[tuple[int, int]]:
    return [word.span.utf16 for word in found.words if word.pair == pair]


def shows(page: Page, found: Explanation, method: str) -> None:
    """Each word carries its value: as its number, in its name, and in the table in the order of their sizes."""
    values = found.attributions[method].words
    told = _told(found, found.attributions[method])
    buttons = words(page)
    assert len(buttons) == len(values)
    for button, word, value, shown in zip(buttons, found.words, values, told, strict=True):
        assert (button["start"], button["end"]) == word.span.utf16
        assert button["name"].startswith(word.text)
        assert number(button["name"].rpartition(f"{word.text}, ")[2]) == pytest.approx(value, abs=0.00501)
        if not shown:
            assert button["value"] == ""
        elif abs(shown) >= 0.0501:
            assert number(button["value"]) == pytest.approx(shown, abs=0.00501)
        if shown != value:
            assert button["name"].endswith(("logits, within two standard errors of zero", "logits, an equal part of its sentence"))
        elif abs(value) >= 0.00501:
            other = found.against or next(label for label in found.scores if label != found.explained)
            assert button["name"].endswith(f"logits towards {found.explained if value > 0 else other}")
    rows = page.locator(".text-table tbody").first.locator("tr").all_inner_texts()
    shown = [abs(number(row.split("\t")[1])) for row in rows]
    assert shown == pytest.approx(sorted(map(abs, values), reverse=True)[: len(rows)], abs=0.000501)
    assert found.reason
    expect(page.locator(".text-reason")).to_have_text(found.reason)
    evidence = found.evidence[method]
    expect(page.locator(".text-verdict")).to_contain_text(evidence.verdict)
    expect(page.get_by_role("region", name="the evidence in numbers")).to_contain_text(signed(evidence.comprehensiveness))


@pytest.mark.parametrize("method", ["integrated_gradients", "gradient_x_input", "occlusion", "shapley", "two_step_shapley"])
def test_word_values_match_the_python_client(visit: Visit, english: RunningServer, reader: Client, method: str) -> None:
    page = visit.settled(address(english.url, text=SHORT, how=1))

    page.get_by_label("Method").select_option(method)
    settled(page)

    shows(page, reader.explain(SHORT, options=ExplainOptions(methods=(method,))), method)
    assert (f"method={method}" in page.url) == (method != "shapley")


def test_a_text_longer_than_any_studied_shows_the_replaced_method(visit: Visit, english: RunningServer, reader: Client) -> None:
    page = visit.settled(address(english.url, text=LONGER, how=1))
    method = page.get_by_label("Method")

    expect(method).to_have_value("two_step_shapley")
    expect(page.locator("#notes")).to_contain_text("the method is two_step_shapley: shapley was studied on texts of up to")
    shows(page, reader.explain(LONGER), "two_step_shapley")

    method.select_option("occlusion")
    settled(page)
    method.select_option("two_step_shapley")
    settled(page)

    expect(method).to_have_value("two_step_shapley")
    assert "method=" not in page.url


@pytest.mark.parametrize(("words", "sampled"), [(60, False), (150, True)])
def test_a_long_text_has_a_table_of_sentences_that_matches_the_terminal(
    visit: Visit, english: RunningServer, reader: Client, words: int, sampled: bool
) -> None:
    page = visit.settled(address(english.url, text=review(words), how=1))
    found = reader.explain(review(words), timeout_s=240)
    sentences = _sentences(found, found.attributions["two_step_shapley"])
    # Values of few sentences are exact.
    assert any(one.standard_error for one, _ in sentences) == sampled

    table = page.get_by_role("region", name="sentences by size")
    rows = table.locator("tbody").first.locator("tr")
    shown = [row.locator("th, td").all_inner_texts() for row in rows.all()]

    assert len(shown) == min(5, len(sentences)) > 1
    for (title, logits, *error, _), (one, _) in zip(shown, sentences, strict=False):
        assert title.startswith(_written(found, one))
        assert number(logits) == pytest.approx(one.value, abs=0.0051)
        assert error == ([f"\u00b1{one.standard_error:.3f}"] if sampled else [])

    page.get_by_label("Method").select_option("occlusion")
    settled(page)
    expect(table).to_be_hidden()


def test_the_other_label_can_be_explained(visit: Visit, english: RunningServer, reader: Client) -> None:
    page = visit.settled(address(english.url, text=SHORT, how=1))

    page.get_by_label("Label that is explained").select_option("positive")
    settled(page)

    expect(page.locator(".text-numbers")).to_contain_text("the logit of positive")
    shows(page, reader.explain(SHORT, label="positive"), "shapley")
    expect(page.locator(".answer .label")).to_have_text("negative")


def test_equal_values_towards_a_label_have_equal_colours_in_every_text(visit: Visit, english: RunningServer) -> None:
    colours: dict[tuple[float, str], set[str]] = {}
    for text in (SHORT, "a good film", "it is a film", "truly the worst, most horrible film ever made"):
        page = visit(address(english.url, text=text))
        settled(page)
        for button in page.locator(".text-word").all():
            value = number(button.get_attribute("data-value") or "0")
            towards = (button.get_attribute("aria-label") or "").rpartition("towards ")[2]
            colours.setdefault((value, towards), set()).add(button.evaluate("(node) => getComputedStyle(node).backgroundColor"))

    assert {place for place, found in colours.items() if len(found) > 1 and place[0]} == set()
    assert len(set.union(*colours.values())) > 3


def test_the_answer_without_a_word_matches_the_python_client(visit: Visit, english: RunningServer, reader: Client) -> None:
    page = visit.settled(address(english.url, text=SHORT, how=1))
    dull = next(index for index, button in enumerate(words(page)) if button["name"].startswith("dull"))

    page.get_by_role("button", name="dull").click()

    (found,) = reader.explain(SHORT, options=ExplainOptions(without=((dull,),))).counterfactuals
    says = page.locator(".text-without")
    expect(says).to_contain_text(f"{found.label} {found.score:.2f} (was")
    expect(says).to_contain_text("The answer changes" if found.label != "negative" else "The answer stays")
    expect(page.get_by_role("button", name="dull")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="dull").click()
    expect(says).to_be_hidden()


def test_several_words_are_left_out_at_once(visit: Visit, english: RunningServer, reader: Client) -> None:
    page = visit(address(english.url, text=SHORT, without="3,9"))

    (found,) = reader.explain(SHORT, options=ExplainOptions(without=((3, 9),))).counterfactuals
    expect(page.locator(".text-without")).to_contain_text(f"{found.label} {found.score:.2f} (was")
    assert page.locator(".text-word.struck").count() == 2


def test_counterfactuals_match_the_python_client(visit: Visit, english: RunningServer, reader: Client) -> None:
    page = visit.settled(address(english.url, text=SHORT, how=1))
    found = reader.explain(SHORT, options=ExplainOptions(counterfactuals=True)).counterfactuals
    flip, keep = (next(one for one in found if one.kind == kind) for kind in ("flip", "keep"))

    page.get_by_role("button", name=LEAST).click()

    expect(page.locator(".text-found")).to_contain_text(f": {flip.label} {flip.score:.2f}")
    expect(page.locator(".text-without")).to_contain_text("The answer changes: without")
    assert [int(word.get_attribute("data-word") or -1) for word in page.locator(".text-word.struck").all()] == [*flip.words]
    page.get_by_role("button", name=ENOUGH).click()
    expect(page.locator(".text-found")).to_contain_text(f" alone: {keep.label} {keep.score:.2f}")
    # Both sentences stand there since the first click: only the marks wait for the next frame.
    expect(page.locator(".text-word.kept")).to_have_count(len(keep.words))
    assert [int(word.get_attribute("data-word") or -1) for word in page.locator(".text-word.kept").all()] == [*keep.words]


def test_emoji_and_right_to_left_words_keep_their_places(visit: Visit, english: RunningServer, reader: Client) -> None:
    page = visit.settled(address(english.url, text=MIXED))

    found = reader.explain(MIXED)

    buttons = words(page)
    assert [(button["start"], button["end"]) for button in buttons] == spans(found)
    side = page.locator(".text-words-side")
    assert side.evaluate("(node) => getComputedStyle(node).direction") == "rtl"
    assert side.evaluate("(node) => node.textContent") == MIXED
    by_text = {MIXED.encode("utf-16-le")[2 * one["start"] : 2 * one["end"]].decode("utf-16-le"): one for one in buttons}
    assert by_text["was"]["direction"] == "ltr"
    assert by_text["הסרט"]["direction"] == "rtl"
    # In a line from right to left, a later word stands further left; English within it runs to the right.
    left = {word: page.locator(f".text-word[data-word='{one['word']}']").bounding_box()["x"] for word, one in by_text.items()}
    assert left["הסרט"] > left["הזה"] > left["היה"]
    assert left["was"] < left["not"] < left["good"]


def test_a_pair_shows_both_texts(visit: Visit, paired: RunningServer) -> None:
    page = visit.settled(address(paired.url, text=PAIR[0], pair=PAIR[1]))

    with paired.client(timeout_s=60) as client:
        found = client.explain(*PAIR)

    for pair in (False, True):
        assert [(button["start"], button["end"]) for button in words(page, pair)] == spans(found, pair)
    values = [number(one["name"].split(", ")[1]) for pair in (False, True) for one in words(page, pair)]
    assert values == pytest.approx(found.attributions[next(iter(found.attributions))].words, abs=0.00501)


def test_the_unread_part_of_a_long_text_is_shown_and_marked(visit: Visit, paired: RunningServer) -> None:
    text = review(3 * MAX_TOKENS)
    page = visit.settled(address(paired.url, text=text))

    with paired.client(timeout_s=60) as client:
        found = client.explain(text)

    (unseen,) = found.unseen
    expect(page.locator("#answer")).to_contain_text("a part of the text was not read")
    part = page.locator("details.text-unseen")
    expect(part).to_contain_text(f"not read, {len(unseen.text):,} characters")
    part.locator("summary").click()
    assert part.locator("div").inner_text().strip() == unseen.text.strip()
    assert [(button["start"], button["end"]) for button in words(page)] == spans(found)
    assert len(found.tokens) == MAX_TOKENS
