"""What the answers to a file have in common, on the page: summed up as by the command line, in part, again, and saved."""

import csv
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Error, Page, Route, expect

from sentiment.cli.main import main
from tests.conftest import RunningServer
from tests.core.explain.test_column import CASES, approximately
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.test_file_view import classify, saved, says

pytestmark = pytest.mark.needs_tool("chromium")

TEXTS = [
    ("The battery died after a week.", "phones"),
    ("The battery is a joke, it died at once!", "phones"),
    ("A lovely screen, and the sound is great.", "phones"),
    ("The battery died again, and nobody answers.", "laptops"),
    ("Great sound, a lovely keyboard.", "laptops"),
    ("Lovely to type on; great value.", "laptops"),
    ("the battery is a joke, it DIED  at once!", "laptops"),
]
COLUMN = """async ([rows, labels, grouped]) => {
  const {columnOf} = await import("/viewer/column.js");
  return columnOf(rows, labels, grouped);
}"""


def snake(value: Any) -> Any:  # Any: JSON
    """The names of fields as Python has them."""
    if isinstance(value, dict):
        return {"".join(f"_{sign.lower()}" if sign.isupper() else sign for sign in name): snake(inner) for name, inner in value.items()}
    return [snake(inner) for inner in value] if isinstance(value, list) else value


def opened(visit: Visit, english: RunningServer, folder: Path, rows: Sequence[tuple[str, str]] = TEXTS) -> Page:
    """The page with the answers to a file of texts with a column that groups them."""
    path = folder / "reviews.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "none"), *rows])
    page = visit(address(english.url, "file"))
    classify(page, path)
    says(page, f"Done: {len(rows)} texts answered")
    return page


def explained(page: Page, count: int) -> None:
    page.get_by_role("button", name="Explain the rows").click()
    expect(page.locator(".reasons-progress")).to_contain_text(f"Explained: {count} of {count} texts")


def terms(page: Page, label: str) -> list[str]:
    """The words and phrases that the page has for a label, those that may be chance last, each with its rows."""
    block = page.locator(".file-labels > div").filter(has=page.get_by_role("heading", name=f"What makes answers {label}"))
    return [" ".join(line.split()) for line in block.locator(".score").all_text_contents()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_rows_are_summed_up_as_by_the_command_line(modules: Page, case: dict[str, Any]) -> None:
    rows = [{**row, "errors": [1e300 if error is None else error for error in row.get("errors", ())]} for row in case["rows"]]

    found = modules.evaluate(COLUMN, [rows, case["labels"], case["grouped"]])

    assert {**snake(found), "limited": False} == approximately(case["column"])


def test_the_page_and_the_command_line_say_the_same_of_a_file(
    visit: Visit, english: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = opened(visit, english, tmp_path)
    page.get_by_label("By group").select_option("=none")
    explained(page, 6)
    shown = {label: terms(page, label) for label in ("negative", "positive")}
    rows = saved(page, tmp_path)

    main(["explain", "--input", str(tmp_path / "reviews.csv"), "--by", "none", "--json", "--target", english.target])
    found = json.loads(capsys.readouterr().out)
    main(["explain", "--input", str(tmp_path / "reviews-answers.csv"), "--by", "none", "--json", "--summary"])
    again = json.loads(capsys.readouterr().out)

    for reasons in found["whole"]["reasons"][:2]:
        listed = [term for kind in ("words", "phrases") for term in sorted(reasons[kind], key=lambda term: (term["low"] or 0) <= 0)]
        assert listed
        assert shown[reasons["label"]] == [f"{term['text']}{term['rows']} rows" for term in listed]
    assert again == approximately_to(found, 2e-3)
    assert [row["explained"] for row in rows] == [row["label"] for row in rows[:6]] + [""]
    assert all(row["reason"].lower().startswith(row["explained"]) for row in rows[:6])
    groups = page.get_by_role("region", name="answers by group")
    expect(groups).to_contain_text("laptops")
    expect(groups).to_contain_text("phones")


def approximately_to(value: Any, most: float) -> Any:  # Any: JSON
    if isinstance(value, dict):
        return {name: approximately_to(inner, most) for name, inner in value.items()}
    if isinstance(value, list):
        return [approximately_to(inner, most) for inner in value]
    return pytest.approx(value, abs=most) if isinstance(value, float) else value


def test_a_word_opens_to_its_interval_and_to_rows_that_can_be_explained(visit: Visit, english: RunningServer, tmp_path: Path) -> None:
    page = opened(visit, english, tmp_path)
    explained(page, 6)

    for folded in page.get_by_text("that may be chance", exact=False).all():
        if folded.is_visible():
            folded.click()
    page.get_by_role("button", name="battery", exact=True).click()
    more = page.locator(".file-term-more")
    expect(more).to_contain_text("a row on average, interval")
    expect(more.locator("li")).to_have_count(3)
    more.get_by_role("button", name="Explain row").first.click()

    expect(page.get_by_role("tab", name="Text")).to_have_attribute("aria-selected", "true")
    assert "battery" in page.locator("#text").input_value()


def test_what_is_explained_before_it_is_cancelled_stays_and_the_others_follow(visit: Visit, english: RunningServer, tmp_path: Path) -> None:
    page = opened(visit, english, tmp_path)
    asked: list[str] = []
    held: list[Route] = []

    def answer(route: Route) -> None:
        asked.append(route.request.post_data_json["text"])
        if len(asked) == 3:
            held.append(route)
        else:
            route.fallback()

    page.route("**/v1/explain", answer)
    page.get_by_role("button", name="Explain the rows").click()
    progress = page.locator(".reasons-progress")
    expect(progress).to_contain_text("Explaining: 2 of 6 texts, about")
    page.get_by_role("button", name="Cancel explaining").click()
    expect(progress).to_contain_text("Cancelled: 2 of 6 texts.")
    # The page has given it up.
    with suppress(Error):
        held[0].abort()

    page.get_by_role("button", name="Explain the others").click()
    expect(progress).to_contain_text("Explained: 6 of 6 texts.")

    assert len(asked) == 7
    assert asked[2] == asked[3]
    assert set(asked) == {text for text, _ in TEXTS[:6]}
    expect(page.get_by_role("button", name="Explain the others")).to_be_hidden()


def test_a_text_without_an_explanation_says_so_and_can_be_asked_for_again(visit: Visit, english: RunningServer, tmp_path: Path) -> None:
    page = opened(visit, english, tmp_path, TEXTS[:2])
    refused = {"status": "INTERNAL", "code": 13, "message": "the explanation failed"}
    page.route("**/v1/explain", lambda route: route.fulfill(status=200, body=json.dumps({"error": refused}) + "\n"))
    progress = page.locator(".reasons-progress")

    page.get_by_role("button", name="Explain the rows").click()
    expect(progress).to_contain_text("Explained: 0 of 2 texts, 2 without an explanation.")
    page.unroute("**/v1/explain")
    page.get_by_role("button", name="Explain the rows").click()

    expect(progress).to_contain_text("Explained: 2 of 2 texts.")


def test_another_model_ends_the_explanations(visit: Visit, english: RunningServer, tmp_path: Path) -> None:
    page = opened(visit, english, tmp_path, TEXTS[:2])

    def other(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, body=re.sub(r'"digest": ?"', '"digest":"0', response.text()))

    page.route("**/v1/explain", other)
    page.get_by_role("button", name="Explain the rows").click()

    progress = page.locator(".reasons-progress")
    expect(progress).to_contain_text("Ended early: 0 of 2 texts", timeout=60_000)
    expect(progress).to_contain_text("classify the file again")
