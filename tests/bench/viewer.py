"""The viewer's loading time and frame rate with a text of 512 tokens, the default bundle and 12 heads in the head view.

``python -m tests.bench.viewer``: on an otherwise idle machine, a minute on 2 cores. Chromium draws without a graphics card here.
"""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import CDPSession, Page, expect, sync_playwright

from sentiment.settings import Settings
from tests.conftest import RunningServer
from tests.viewer.browser import address, start
from tests.viewer.reading import field, settled, show
from tests.viewer.texts import review

ROOT = Path(__file__).parents[2]
# By name: a selector, and what its text does not say once it is done.
Things = dict[str, tuple[str, str | None]]

WAIT_MS = 120_000
STEPS = 90
# Milliseconds from when the text is sent until each of some things stands on the page, looked at in every frame.
_TIMES = """(things) => {
  const times = window.times = {};
  document.querySelector("form").addEventListener("submit", () => {
    const begun = performance.now();
    const look = () => {
      for (const [name, [selector, text]] of Object.entries(things)) {
        const node = document.querySelector(selector);
        const there = node?.checkVisibility() && (text === null || !node.textContent.includes(text));
        if (there && !(name in times)) times[name] = performance.now() - begun;
      }
      if (Object.keys(times).length < Object.keys(things).length) requestAnimationFrame(look);
    };
    look();
  }, {once: true, capture: true});
}"""
_FRAMES = """() => {
  window.frames_ms = [];
  let last = performance.now();
  const frame = (now) => {
    frames_ms.push(now - last);
    last = now;
    window.framing = requestAnimationFrame(frame);
  };
  window.framing = requestAnimationFrame(frame);
}"""


def sent(page: Page, url: str, view: str, things: Things, text: str) -> dict[str, float]:
    """Seconds until each thing is there, on a fresh page that shows the view from the start."""
    page.goto("about:blank")
    page.goto(address(url, view))
    expect(page.get_by_role("button", name="Explain", exact=True)).to_be_visible()
    page.evaluate(_TIMES, {name: list(thing) for name, thing in things.items()})
    field(page).fill(text)
    page.get_by_role("button", name="Explain", exact=True).click()
    settled(page, WAIT_MS)
    page.wait_for_timeout(500)
    times: dict[str, float] = page.evaluate("() => times")
    return {name: milliseconds / 1e3 for name, milliseconds in times.items()}


def frames(page: Page, act: Callable[[], None]) -> list[float]:
    """Milliseconds between frames while something is done, but for the first."""
    page.evaluate(_FRAMES)
    act()
    found: list[float] = page.evaluate("() => { cancelAnimationFrame(framing); return frames_ms; }")
    return found[1:]


def scroll(page: Page) -> None:
    """Down and up again through all rows, a notch of the wheel a frame or two."""
    box = page.locator(".heads-scroll").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    for step in range(STEPS):
        page.mouse.wheel(0, 120 if step < STEPS / 2 else -120)
        page.wait_for_timeout(16)


def hover(page: Page) -> None:
    """Up and down over the tokens that look."""
    box = page.locator(".heads-tokens.left").bounding_box()
    scroller = page.locator(".heads-scroll").bounding_box()
    assert box is not None
    assert scroller is not None
    for step in range(STEPS):
        page.mouse.move(box["x"] + 20, scroller["y"] + 10 + (step * 11) % (scroller["height"] - 20))
        page.wait_for_timeout(16)


def layers(page: Page) -> None:
    """From the embeddings to the last layer, each as soon as the points stand still."""
    for _ in range(6):
        page.get_by_role("slider", name="Layer").press("ArrowRight")
        page.wait_for_timeout(500)


def megabytes(devtools: CDPSession) -> str:
    """What the page holds after collecting what it does not: objects, and the memory of arrays."""
    devtools.send("HeapProfiler.collectGarbage")
    held: dict[str, Any] = devtools.send("Runtime.getHeapUsage")  # numbers by name
    return f"{held['usedSize'] / 1e6:.1f} MB of objects and {held['backingStorageSize'] / 1e6:.1f} MB in arrays"


def row(name: str, found: list[float]) -> str:
    """Frames as a line of the table."""
    ordered = sorted(found)
    return (
        f"{name:<44}{statistics.median(found):>9.1f}{ordered[int(0.95 * (len(found) - 1))]:>9.1f}{ordered[-1]:>9.1f}"
        f"{sum(each > 50 for each in found):>9}{len(found):>9}"
    )


def measure(page: Page, url: str, devtools: CDPSession) -> None:
    """Print the table."""
    text = review(460)
    texts: Things = {"answer": (".answer .label", None), "first attribution": ('.text-word[data-value]:not([data-value=""])', None)}
    maps: Things = {
        "answer": (".answer .label", None),
        "first lines": (".heads-tokens li", None),
        "all 72 maps": (".heads-progress", "maps are here"),
    }
    print(f"{'seconds from sending the text until it stands there':<60}{'s':>9}")
    for view, things in (("text", texts), ("heads", maps)):
        for name, seconds in sent(page, url, view, things, text).items():
            print(f"{f'{view} view: {name}':<60}{seconds:>9.2f}")
    tokens = page.locator("#answer").inner_text()
    assert "512 tokens" in tokens, tokens
    page.locator(".heads-scroll").scroll_into_view_if_needed()
    print(f"\n{'milliseconds between frames':<44}{'median':>9}{'p95':>9}{'largest':>9}{'over 50':>9}{'frames':>9}")
    for level in ("words", "pieces"):
        page.get_by_label("Tokens as").select_option(level)
        page.wait_for_timeout(2000)
        print(row("nothing happens", frames(page, lambda: page.wait_for_timeout(1500))))
        print(row(f"head view, 12 heads, {level}: scrolling", frames(page, lambda: scroll(page))))
        page.locator(".heads-scroll").evaluate("(node) => node.scrollTo(0, 0)")
        print(row(f"head view, 12 heads, {level}: hovering", frames(page, lambda: hover(page))))
    for view in ("model", "neuron", "geometry", "card", "text"):
        print(row(f"showing the {view} view", frames(page, lambda: _shown(page, view))))  # noqa: B023  # called at once
    _shown(page, "geometry")
    print(row("geometry view: from layer to layer", frames(page, lambda: layers(page))))
    print(f"\nafter all views: {megabytes(devtools)}")


def _shown(page: Page, view: str) -> None:
    show(page, view)
    settled(page, WAIT_MS)


def main() -> None:
    """Measure and print."""
    listen = "127.0.0.1:0"
    settings = Settings(bundles=(ROOT / "models/bundles",), grpc_listen=listen, http_listen=listen, drain_wait_s=0, deadline_default_s=60)
    server = RunningServer(settings)
    try:
        with sync_playwright() as playwright:
            browser = start(playwright)
            page = browser.new_page(viewport={"width": 1100, "height": 1000})
            page.set_default_timeout(WAIT_MS)
            measure(page, server.url, page.context.new_cdp_session(page))
            browser.close()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
