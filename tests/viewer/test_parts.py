"""Sentences and targets on the page: marked in the text, said in words, kept in the address, in files, saved pages and pictures."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from sentiment.client import Client
from tests.conftest import RunningServer
from tests.core.grpc.gate import Start
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import ask, saved_svg, settled, show
from tests.viewer.test_file_view import says

pytestmark = pytest.mark.needs_tool("chromium")

# Mixed by its sentences; a sign of two UTF-16 units stands before a mention.
TEXT = "A great, great film \U0001f600.  The awful, awful w1 and bad w2! A film."
TARGETS = ["film", "price", "W1"]
# The texts of an element's own nodes: without answers, which stand between, and without what is said to screen readers alone.
MARKED = """(node) => {
  const copy = node.cloneNode(true);
  for (const other of copy.querySelectorAll(".part-answer, .visually-hidden")) other.remove();
  return copy.textContent;
}"""


@pytest.fixture(scope="module")
def caller(three: RunningServer) -> Iterator[Client]:
    with three.client() as client:
        yield client


def targets(page: Page) -> list[list[str]]:
    """The rows of the table of targets."""
    rows = page.get_by_role("region", name="answers to targets").locator("tbody tr")
    return [[cell.replace("\u2068", "").replace("\u2069", "") for cell in row.locator("th, td").all_inner_texts()] for row in rows.all()]


def test_each_sentence_and_target_is_marked_in_the_text_with_its_answer(visit: Visit, three: RunningServer, caller: Client) -> None:
    page = visit.settled(address(three.url, text=TEXT, sentences=1, targets=",".join(TARGETS)))
    found = caller.classify(TEXT, sentences=True, targets=TARGETS)

    text = page.get_by_role("region", name="text with its answers")
    assert text.evaluate(MARKED) == TEXT
    sentences = text.locator(".part-sentence")
    assert [sentence.evaluate(MARKED) for sentence in sentences.all()] == [sentence.text for sentence in found.sentences]
    assert [sentence.get_attribute("data-hue") for sentence in sentences.all()] == [sentence.label for sentence in found.sentences]
    assert text.locator(".part-answer").all_inner_texts() == [
        f"{sentence.label} {sentence.score:.2f}{', undecided' if sentence.abstain else ''}" for sentence in found.sentences
    ]
    assert [mention.evaluate(MARKED) for mention in text.locator("mark").all()] == ["film", "w1"]
    assert targets(page) == [
        [
            target.target,
            f"{target.label} {target.score:.4f}{', undecided' if target.abstain else ''}",
            f'"{TEXT[target.start : target.end]}"' if target.named else "not named in the text, so neutral by rule",
        ]
        for target in found.targets.values()
    ]


def test_what_is_said_of_the_whole_and_of_its_parts_is_said_to_screen_readers(visit: Visit, three: RunningServer) -> None:
    page = visit.settled(address(three.url, text="good, great film. awful, bad film.", sentences=1, targets="film,price"))

    expect(page.locator("#answer")).to_contain_text("The text praises and blames, whatever its label.")
    expect(page.locator("#live")).to_contain_text("mixed; 2 sentences: 1 positive, 1 negative; film: ")
    expect(page.locator("#live")).to_contain_text("; price: not named")

    ask(page, "\u044d\u0442\u043e \u0444\u0438\u043b\u044c\u043c \u0438 \u043e\u043d \u043f\u043b\u043e\u0445\u043e\u0439")
    settled(page)
    expect(page.locator("#answer")).to_contain_text("The text seems to be in another language than the model's, so its answer is a guess.")
    expect(page.locator("#answer")).not_to_contain_text("praises")


def test_parts_are_asked_for_by_keyboard_without_another_explanation(visit: Visit, three: RunningServer) -> None:
    page = visit.settled(address(three.url, text=TEXT))
    asked: list[tuple[str, dict[str, Any]]] = []
    page.on("request", lambda request: asked.append((request.url.rpartition("/")[2], request.post_data_json)))

    page.get_by_role("checkbox", name="Answer each sentence").press("Space")
    expect(page.locator(".part-sentence")).to_have_count(3)
    field = page.get_by_role("textbox", name="Targets")
    field.fill(" film, price,film,")
    expect(page.get_by_text("Not asked for these targets yet.")).to_be_visible()
    field.press("Enter")
    settled(page)

    expect(page.get_by_text("Not asked for these targets yet.")).to_be_hidden()
    expect(field).to_have_value("film, price")
    assert [row[0] for row in targets(page)] == ["film", "price"]
    assert [(path, body.get("sentences"), body.get("targets")) for path, body in asked] == [
        ("classify", True, None),
        ("classify", True, ["film", "price"]),
    ]


def test_the_answer_towards_one_target_is_explained_and_the_whole_again(visit: Visit, three: RunningServer, caller: Client) -> None:
    page = visit.settled(address(three.url, text=TEXT, targets="film,price,W1"))
    asked: list[tuple[str, Any]] = []
    page.on("request", lambda request: asked.append((request.url.rpartition("/")[2], request.post_data_json.get("target"))))
    named = page.get_by_role("region", name="answers to targets").get_by_role("button")
    assert named.all_inner_texts() == ["film", "W1"]

    named.last.click()
    settled(page)

    reason = caller.explain(TEXT, target="W1").reason
    assert reason.startswith("Towards \u201cW1\u201d: ")
    expect(page.locator(".text-reason")).to_have_text(reason)
    expect(page.locator(".text-words mark")).to_have_text("w1")
    expect(named.last).to_have_attribute("aria-pressed", "true")
    assert "about=W1" in page.url
    assert ("explain", "W1") in asked

    # It is not asked for any more.
    page.get_by_role("textbox", name="Targets").fill("film")
    page.get_by_role("textbox", name="Targets").press("Enter")
    settled(page)
    expect(page.locator(".text-words mark")).to_have_count(0)
    expect(page.locator(".text-reason")).not_to_contain_text("Towards")


def test_a_saved_page_says_what_its_answer_is_towards(visit: Visit, caller: Client, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(caller.explain(TEXT, target="film").to_html(), encoding="utf-8")

    page = visit((tmp_path / "page.html").as_uri())

    expect(page.locator("#answer")).to_contain_text('Towards "\u2068film\u2069":')
    expect(page.locator(".text-words mark")).to_have_text("film")


def test_parts_stay_in_the_address_and_go_with_the_button_back(visit: Visit, three: RunningServer) -> None:
    page = visit.settled(address(three.url, text=TEXT, sentences=1, targets="film"), permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("checkbox", name="Answer each sentence").uncheck()
    expect(page.locator(".part-sentence")).to_have_count(0)
    assert "sentences=" not in page.url
    assert "targets=film" in page.url

    page.go_back()
    expect(page.locator(".part-sentence")).to_have_count(3)
    expect(page.get_by_role("checkbox", name="Answer each sentence")).to_be_checked()

    page.get_by_role("button", name="Share").click()
    page.get_by_role("button", name="Copy without text").click()
    expect(page.locator("#toast")).to_contain_text("copied")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert "sentences=1" in copied
    assert "film" not in copied


def test_sentences_beyond_the_limit_are_counted(visit: Visit, start: Start, three: RunningServer) -> None:
    server = start(bundles=three.settings.bundles, sentences_max=1)
    page = visit.settled(address(server.url, text=TEXT, sentences=1))

    expect(page.locator(".part-sentence")).to_have_count(1)
    expect(page.locator("#answer")).to_contain_text("The first 1 of 3 sentences have an answer; the others count in that of the whole.")


def test_targets_that_the_server_refuses_are_said_beside_the_explanation(visit: Visit, three: RunningServer) -> None:
    page = visit(address(three.url, text=TEXT, targets=",".join(f"name{number}" for number in range(17))), refused=True)
    expect(page.locator(".text-word").first).to_be_visible()

    expect(page.locator("#answer")).to_contain_text("Sentences and targets: The server refused the request:")
    expect(page.locator("#answer .label").first).to_be_visible()


def test_a_model_that_answers_no_targets_has_no_field_for_them(visit: Visit, start: Start) -> None:
    page = visit.settled(address(start().url, text="a good film. awful.", sentences=1, targets="film"))

    expect(page.get_by_role("textbox", name="Targets")).to_be_hidden()
    expect(page.get_by_text("This model answers no targets, so they are not asked for.")).to_be_visible()
    expect(page.locator(".part-sentence")).to_have_count(2)


def test_a_pair_is_answered_without_parts_and_says_so(visit: Visit, start: Start) -> None:
    page = visit.settled(address(start(model="paired").url, text="a good film", pair="awful", sentences=1))

    expect(page.locator(".answer .label")).to_be_visible()
    expect(page.get_by_text("A text with a second text has no answers to sentences and targets.")).to_be_visible()
    expect(page.get_by_role("checkbox", name="Answer each sentence")).to_be_disabled()


def test_a_picture_and_a_saved_page_hold_the_parts(visit: Visit, three: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    command = [sys.executable, "-m", "sentiment", "explain", TEXT, "--html", str(path), "--target", three.target]
    subprocess.run([*command, "--sentences", "--targets", "film,price"], timeout=120, check=True)

    page = visit.settled(path.as_uri())

    assert page.get_by_role("region", name="text with its answers").evaluate(MARKED) == TEXT
    assert [row[0] for row in targets(page)] == ["film", "price"]
    picture = " ".join(saved_svg(page, tmp_path).itertext()).replace("\u2068", "").replace("\u2069", "")
    assert 'sentence "A film.": neutral' in picture
    assert 'target "price": not named in the text' in picture
    assert "The text praises and blames" in picture


def test_targets_of_all_texts_are_shown_and_opened_with_a_row(visit: Visit, three: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    file.write_text("a great film. awful film!\n")
    page = visit(address(three.url, "file"))
    panel = show(page, "file")
    panel.get_by_label("A file of texts").set_input_files(file)
    panel.get_by_role("checkbox", name="Answer each sentence").check()
    panel.get_by_label("Targets of all texts").fill("film, price")
    panel.get_by_role("button", name="Classify the file").click()
    says(page, "Done: 1 texts answered.")
    expect(panel.locator(".file-text")).to_contain_text("2 sentences: 1 positive, 1 negative")
    expect(panel.locator(".file-text")).to_contain_text("price: not named")

    page.get_by_role("button", name="Explain row 1").click()
    settled(page)

    expect(page.locator(".part-sentence")).to_have_count(2)
    assert [row[0] for row in targets(page)] == ["film", "price"]
