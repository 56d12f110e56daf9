"""A text of more than 512 tokens: every view works within bounds."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import RunningServer
from tests.tiny import make_bundle
from tests.viewer.browser import address, watched
from tests.viewer.conftest import Visit
from tests.viewer.reading import painted, settled, show, sideways, until
from tests.viewer.texts import review

pytestmark = pytest.mark.needs_tool("chromium")

# 72 maps of 512 x 512 bytes are 19 MB, which come as 25 MB of text.
PATIENCE_MS = 60_000
HEAP_BYTES_MAX = 160e6


@pytest.fixture
def page(browser: Browser, english: RunningServer) -> Iterator[Page]:
    page, watch = watched(browser, english.url)
    page.goto(address(english.url, text=review(900)))
    yield page
    page.context.close()
    assert watch.wrong == []


def test_every_view_of_512_tokens_stays_within_bounds(page: Page) -> None:
    settled(page, PATIENCE_MS)
    expect(page.locator("#answer")).to_contain_text("512 tokens")
    expect(page.locator("#answer")).to_contain_text("a part of the text was not read")

    panel = show(page, "heads")
    settled(page, PATIENCE_MS)
    looks = panel.get_by_role("listbox", name="Tokens that look")
    assert looks.get_by_role("option").count() > 400
    assert painted(panel.locator("canvas.heads-canvas").first) > 2000
    # Not as tall as its 512 rows: they scroll within.
    assert panel.bounding_box()["height"] < 2000
    looks.get_by_role("option").nth(40).click()
    assert painted(panel.locator("canvas.heads-canvas").nth(1)) > 300

    panel = show(page, "model")
    settled(page, PATIENCE_MS)
    expect(panel.locator(".model-cell")).to_have_count(72)
    thumbs = panel.locator("canvas.model-thumb")
    until(page, lambda: min(thumbs.evaluate_all("(all) => all.map((canvas) => canvas.width)")) == 72, "all thumbnails are drawn")
    panel.locator(".model-cell").nth(30).click()
    canvas = panel.locator("canvas.map-canvas")
    assert painted(canvas) > 10_000
    # The canvas is as large as what is seen of the map.
    assert canvas.evaluate("(canvas) => canvas.width * canvas.height") < 4e6

    panel = show(page, "neuron")
    settled(page, PATIENCE_MS)
    assert painted(panel.locator(".neuron-canvas")) > 10_000
    panel.get_by_role("button", name="As a table").click()
    panel.get_by_role("button", name="Show all 512 keys").click()
    assert panel.get_by_role("region", name="Keys as a table").locator("tbody tr").count() == 512

    panel = show(page, "geometry")
    settled(page, PATIENCE_MS)
    assert painted(panel.locator(".geometry-canvas")) > 10_000
    panel.get_by_role("slider", name="Layer").press("End")
    settled(page)
    panel.get_by_role("button", name=re.compile(r"^all \d+ words")).click()
    assert panel.locator(".geometry-table tbody tr").count() > 400
    assert sideways(page) == 0
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    held = session.send("Runtime.getHeapUsage")
    assert held["usedSize"] + held["backingStorageSize"] < HEAP_BYTES_MAX


@pytest.mark.usefixtures("awake")
def test_two_texts_of_512_tokens_are_compared_within_bounds(visit: Visit, start: Callable[..., RunningServer], tmp_path: Path) -> None:
    make_bundle(tmp_path, max_tokens=512)
    words = [f"w{place % 65 - 32}" for place in range(600)]
    texts = {"text": " ".join(words), "other": " ".join([*words[:3], "great", *words[4:]])}
    page = visit(address(start(bundles=(tmp_path,)).url, "compare", method="occlusion", **texts))

    expect(page.locator(".compare-body")).to_be_visible()
    settled(page)

    expect(page.locator("#answer")).to_contain_text("512 tokens")
    assert page.locator("del.text-word, ins.text-word").locator("> span").all_inner_texts() == ["w-29", "great"]
    table = page.get_by_role("region", name="words beside each other").locator("tbody tr")
    expect(table).to_have_count(20)
    assert table.first.locator("td").all_inner_texts()[0:3:2] == ["w-29", "great"]
    page.get_by_role("button", name=re.compile(r"^all \d+ rows")).click()
    assert table.count() > 450
    assert sideways(page) == 0
