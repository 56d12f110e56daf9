"""The page that `sentiment explain --html` writes, opened from disk without network."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from sentiment.client import AttentionOptions, Client, ExplainOptions
from tests.conftest import RunningServer
from tests.english import NAME
from tests.viewer.conftest import Visit
from tests.viewer.reading import VIEWS, number, settled, show, words
from tests.viewer.texts import ATTACK, SHORT

pytestmark = pytest.mark.needs_tool("chromium")

TEXT = f"{SHORT} </script> {ATTACK[:25]}"
PARTS = "--attention maps --heads --counterfactuals --neuron 1,2,3 --geometry --method integrated_gradients --method occlusion"


@pytest.fixture(scope="module")
def file(english: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("saved") / "saved page.html"
    command = [sys.executable, "-m", "sentiment", "explain", TEXT, "--html", str(path), "--target", english.target, *PARTS.split()]
    subprocess.run(command, timeout=60, check=True)
    yield path


def opened(visit: Visit, file: Path, fragment: str = "") -> Page:
    """The file in a browser without network, in which every request but for the file itself fails."""
    page = visit.blank(file.as_uri())
    page.context.set_offline(True)
    page.context.route(lambda url: not url.startswith("file://"), lambda route: route.abort())
    page.goto(file.as_uri() + fragment)
    return page


def test_a_saved_page_shows_what_the_client_gets(visit: Visit, file: Path, reader: Client) -> None:
    page = opened(visit, file, "#how=1")
    found = reader.explain(TEXT, options=ExplainOptions(methods=("integrated_gradients", "occlusion")))

    expect(page.locator(".answer .label")).to_have_text(found.label)
    assert [(one["start"], one["end"]) for one in words(page)] == [word.span.utf16 for word in found.words]
    assert page.locator(".text-words-side").evaluate("(node) => node.textContent") == TEXT
    for method in ("integrated_gradients", "occlusion"):
        page.get_by_label("Method").select_option(method)
        settled(page)
        values = [number(one["name"].rpartition(", ")[2]) for one in words(page)]
        assert values == pytest.approx(found.attributions[method].words, abs=0.0051)
    expect(page.get_by_label("Label that is explained")).to_be_disabled()
    page.get_by_role("button", name="What is the least that changes the answer?").click()
    expect(page.locator(".text-found li").first).to_be_visible()

    # Other tests look at all views of a page that is saved with what was recorded.
    expect(show(page, "neuron").locator(".neuron-summary")).to_contain_text("In layer 1, head 2, token 3")
    expect(show(page, "card")).to_contain_text(NAME)


def test_a_saved_page_says_what_it_does_not_contain(visit: Visit, tmp_path: Path, reader: Client) -> None:
    bare = tmp_path / "bare.html"
    bare.write_text(reader.explain("a good film").to_html())

    page = opened(visit, bare)

    for view in ("heads", "model", "neuron", "geometry", "card"):
        expect(show(page, view)).to_contain_text("This saved page does not hold it")
    show(page, "text")
    expect(page.locator(".text-word")).to_have_count(3)


def test_the_state_of_a_saved_page_is_in_its_address(visit: Visit, file: Path) -> None:
    page = opened(visit, file, "#view=heads&layer=3&heads=7&theme=dark")
    settled(page)

    expect(page.get_by_label("Layer", exact=True)).to_have_value("3")
    show(page, "model")
    page.reload()

    expect(page.locator("#tab-model")).to_have_attribute("aria-selected", "true")
    assert "dark" in page.evaluate("() => getComputedStyle(document.documentElement).colorScheme")


def test_a_script_injected_into_the_file_does_not_run(visit: Visit, file: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    attacks = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'><a href='javascript:window.ran = 1' id=go>go</a>"
    bad.write_text(file.read_text().replace("<main>", f"<main>{attacks}", 1))

    page = opened(visit, bad)
    page.locator("#go").click()
    settled(page)

    assert page.evaluate("() => window.ran") is None
    wrong = visit.forgiven(page)
    assert sum("script-src" in said for said in wrong) >= 3
    expect(page.locator(".text-word").first).to_be_visible()


def test_the_notebook_frame_cannot_access_the_page_around_it(visit: Visit, tmp_path: Path, reader: Client) -> None:
    found = reader.explain(SHORT, options=ExplainOptions(attribution=True, attention=AttentionOptions()))
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><title>Notebook</title><h1>Cell 1</h1><div>{found._repr_html_()}</div>")

    page = opened(visit, notebook)

    frame = page.frame_locator("iframe")
    expect(frame.locator(".answer .label")).to_have_text(found.label)
    expect(frame.locator(".text-word")).to_have_count(len(found.words))
    for view in ("heads", "text"):
        frame.get_by_role("tab", name=VIEWS[view]).click()
        expect(frame.locator(f"#tab-{view}")).to_have_attribute("aria-selected", "true")
    inside = page.frames[1]
    assert (
        inside.evaluate("() => { try { return String(parent.document.title); } catch (error) { return error.name; } }") == "SecurityError"
    )
    with page.expect_download() as saving:
        frame.get_by_role("button", name="Save SVG").click()
    assert saving.value.suggested_filename.endswith(".svg")
