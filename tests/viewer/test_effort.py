"""What the page says of a text of which a part sufficed, and of its explanation, which is of the full reading."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from sentiment.client import Explanation
from tests.conftest import RunningServer
from tests.core.grpc.gate import Start
from tests.tiny import EFFORT, make_bundle
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import ask, saved_svg, settled

pytestmark = pytest.mark.needs_tool("chromium")

# Its ends are good, and what stands between them turns the answer. SAME is good throughout.
TURNED = " ".join(["good"] * 4 + ["awful"] * 9 + ["good"] * 4)
SAME = "good " * 17


@pytest.fixture
def adaptive(start: Start, tmp_path: Path) -> RunningServer:
    make_bundle(tmp_path, effort=EFFORT)
    return start(bundles=(tmp_path,), effort="adaptive")


def said_of(found: Explanation) -> str:
    """What is said beside an explanation that is not of the answer with effort adaptive."""
    told = found.adaptive
    assert told is not None
    return f"with effort adaptive: {told.label} {told.score:.4f}, from a part of the text; this explains the full reading"


def test_the_page_says_what_was_read_and_where_the_full_reading_differs(visit: Visit, adaptive: RunningServer, tmp_path: Path) -> None:
    page = visit.settled(address(adaptive.url, text=TURNED))
    with adaptive.client() as client:
        found = client.explain(TURNED)

    expect(page.locator("#answer")).to_contain_text("a part sufficed: 8 tokens read")
    expect(page.locator(".text-numbers")).to_contain_text(said_of(found))
    assert said_of(found) in " ".join(" ".join(saved_svg(page, tmp_path).itertext()).split())

    ask(page, SAME)
    settled(page)
    expect(page.locator("#answer")).to_contain_text("a part sufficed: 8 tokens read")
    expect(page.locator(".text-numbers")).not_to_contain_text("adaptive")

    ask(page, "good film")
    settled(page)
    expect(page.locator("#answer")).to_contain_text(" 4 tokens")
    expect(page.locator("#answer")).not_to_contain_text("sufficed")


def test_a_saved_page_says_it_too(visit: Visit, adaptive: RunningServer, tmp_path: Path) -> None:
    with adaptive.client() as client:
        answer, found = client.classify(TURNED), client.explain(TURNED)
    file = tmp_path / "saved.html"
    file.write_text(found.to_html(answer=answer))

    page = visit.settled(file.as_uri())

    expect(page.locator("#answer")).to_contain_text("a part sufficed: 8 tokens read")
    expect(page.locator(".text-numbers")).to_contain_text(said_of(found))
