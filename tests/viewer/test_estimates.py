"""The text view while values come: an estimate that says so, better ones in its place, and what sentences and deciding words show."""

import json
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import RunningServer
from tests.viewer.browser import DESK, PHONE, address
from tests.viewer.conftest import Visit
from tests.viewer.reading import settled

pytestmark = pytest.mark.needs_tool("chromium")

TEXT = "The film was good. It was great fun. The end was bad."
WORDS = ["The", "film", "was", "good", ".", "It", "was", "great", "fun", ".", "The", "end", "was", "bad", "."]
# Answers with what the test tells, a message at a time.
HELD = """() => {
  const fetched = window.fetch;
  let stream = null;
  window.asking = Promise.withResolvers();
  window.tell = (message) => (message ? stream.enqueue(new TextEncoder().encode(JSON.stringify(message) + "\\n")) : stream.close());
  window.fetch = (url, options) => {
    if (!String(url).endsWith("v1/explain")) return fetched(url, options);
    window.asked = JSON.parse(options.body);
    window.asking.resolve();
    return Promise.resolve(new Response(new ReadableStream({start: (given) => { stream = given; }})));
  };
}"""


def places() -> list[dict[str, int]]:
    found, end = [], 0
    for word in WORDS:
        start = TEXT.index(word, end)
        end = start + len(word)
        found.append({"utf16_start": start, "utf16_end": end})
    return found


def header() -> dict[str, Any]:
    scores = [{"label": "negative", "score": 0.1}, {"label": "positive", "score": 0.9}]
    return {
        "header": {
            "prediction": {"label": "positive", "score": 0.9, "scores": scores},
            "model": {"name": "tiny", "version": 1, "digest": "ab"},
            "label": "positive",
            "labels_agree": True,
            "logit": 1.0,
            "tokens": [],
            "words": [{"span": span, "sentence": 0} for span in places()],
        }
    }


def attribution(left_s: float | None = None, steps: int = 0, method: str = "shapley", **more: Any) -> dict[str, Any]:
    """Each word of the first sentence has 0.5, of the second 0.25, of the third -0.4; errors as in the first estimate or half as large."""
    values = [0.5] * 5 + [0.25] * 5 + [-0.4] * 5
    values[3] = 1.0
    error = {} if left_s is not None and not steps else {"standard_error": 0.15}
    estimate = {} if left_s is None else {"estimate": {"left_s": left_s}}
    words = [{"span": span, "value": value, **error} for span, value in zip(places(), values, strict=True)]
    part = {"method": method, "words": words, "steps": steps, "steps_asked": 20, "special_total": 0, "unknown_total": 0, "unseen_total": 0}
    return {"attribution": {**part, **estimate, **more}}


def sentences() -> list[dict[str, Any]]:
    """The first has words of their own, the second is within two standard errors, the third has words in equal parts."""
    spans, found = places(), []
    for first, (value, valued) in zip((0, 5, 10), ((3.0, True), (1.0, True), (-2.0, False)), strict=True):
        span = {"utf16_start": spans[first]["utf16_start"], "utf16_end": spans[first + 4]["utf16_end"]}
        found.append({"span": span, "value": value, "standard_error": 0.6, "words_valued": valued})
    return found


EVIDENCE = {
    "method": "shapley", "verdict": "VERDICT_BETTER_THAN_RANDOM", "comprehensiveness": 0.5, "sufficiency": 0.1, "random_sets": 19,
    "p_value": 0.05, "words": 3, "rank": 1, "random_median": 0.1, "random_max": 0.2,
}  # fmt: skip
DECIDING = {
    "words": [3, 7], "verdict": "VERDICT_BETTER_THAN_RANDOM", "random_sets": 19, "p_value": 0.05, "rank": 1, "changing_words": [3],
    "label": "negative", "score": 0.83,
}  # fmt: skip


def held(visit: Visit, server: RunningServer, **options: Any) -> Page:
    """A page whose explanation waits for the test."""
    page = visit.blank(server.url, **options)
    page.add_init_script(f"({HELD})()")
    page.goto(address(server.url, text=TEXT, method="shapley", how=1))
    page.evaluate("() => window.asking.promise")
    return page


def tell(page: Page, *messages: dict[str, Any] | None) -> None:
    for message in messages:
        page.evaluate(f"() => tell({json.dumps(message)})")


def colours(page: Page) -> list[str]:
    return [str(button.evaluate("(node) => node.style.backgroundColor")) for button in page.locator(".text-word").all()]


@pytest.mark.parametrize("viewport", [DESK, PHONE])
def test_a_better_estimate_takes_its_place_and_the_text_stays_where_it_is(visit: Visit, server: RunningServer, viewport: Any) -> None:
    page = held(visit, server, viewport=viewport)
    trust, reason, text = (page.locator(name) for name in (".text-trust", ".text-reason", ".text-words-side"))
    assert page.evaluate("asked.options.estimates") is True

    tell(page, header(), attribution(left_s=3.2))
    expect(trust).to_have_text("First estimate; better values in about 3 s.")
    expect(reason).to_have_text("Positive; explaining \u2026")
    assert all(colours(page))
    place = text.bounding_box()
    tell(page, attribution(left_s=1.1, steps=10))
    expect(trust).to_have_text("Estimate after 10 of 20 orders; better values in about 1 s.")
    assert page.locator(".text-trust progress").evaluate("(bar) => bar.value") == 0.5
    tell(page, attribution(steps=20))
    expect(trust).to_contain_text("Testing the colours")
    assert colours(page)[3] and not colours(page)[5]
    said = "Positive, mostly because of \u201cgood\u201d and \u201cgreat fun\u201d; \u201cbad\u201d speaks against it."
    tell(page, {"evidence": EVIDENCE}, {"reason": {"method": "shapley", "text": said}}, {"summary": {}}, None)
    settled(page)

    expect(reason).to_have_text(said)
    expect(trust).to_contain_text("Tested on this text")
    expect(page.locator(".text-trust progress")).to_be_hidden()
    assert text.bounding_box() == pytest.approx(place, abs=1)


def test_an_estimate_that_nothing_follows_stays_marked(visit: Visit, server: RunningServer) -> None:
    page = held(visit, server)

    tell(page, header(), attribution(left_s=3.2), None)
    settled(page)

    expect(page.locator(".text-trust")).to_have_text("Only an estimate: no better values came.")
    expect(page.locator("#panel .failed").first).to_contain_text("The connection ended in the middle of the explanation.")
    expect(page.locator(".text-reason")).to_be_hidden()


def test_sentences_are_the_picture_and_words_stand_out_of_those_that_count(visit: Visit, server: RunningServer) -> None:
    page = held(visit, server)

    tell(page, header(), attribution(sentences=sentences()), {"evidence": EVIDENCE}, {"summary": {}}, None)
    settled(page)

    found = colours(page)
    # A sentence, its words of more than a third of a logit, and the largest.
    assert len({*found[:5]}) == 2 and found[3] != found[0]
    assert found[5:10] == [""] * 5
    assert len({*found[10:]}) == 1 and found[10] and found[10] not in found[:5]
    gaps = page.locator(".text-gap").evaluate_all("(all) => all.map((gap) => gap.style.backgroundColor)")
    assert [bool(gap) for gap in gaps] == [True] * 3 + [False] * 4 + [False] + [True] * 3
    names = [button.get_attribute("aria-label") or "" for button in page.locator(".text-word").all()]
    assert names[3] == "good, +1.00 \u00b10.15 logits towards positive"
    assert names[5].endswith("within two standard errors of zero")
    assert names[13].endswith("an equal part of its sentence")
    rows = page.get_by_role("region", name="sentences by size").locator("tbody tr").all_inner_texts()
    assert [row.split("\t")[1:3] for row in rows] == [["+3.00", "\u00b10.600"], ["\u22122.00", "\u00b10.600"], ["+1.00", "\u00b10.600"]]
    assert "good +1.00" in rows[0]


def test_deciding_words_have_a_verdict_and_say_what_changes_the_answer(visit: Visit, server: RunningServer) -> None:
    page = held(visit, server)

    tell(page, header(), attribution(), {"evidence": EVIDENCE}, {"deciding": DECIDING}, {"summary": {}}, None)
    settled(page)

    expect(page.locator(".text-changing")).to_have_text('Without "\u2068good\u2069" it would be negative 0.83.')
    expect(page.locator(".text-deciding")).to_contain_text("they move the answer more than any of 19 random sets of as many (p = 0.05).")
