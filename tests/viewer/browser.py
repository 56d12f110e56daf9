"""Chromium for the tests and the benchmark: the installed one, never downloaded. Each page records what must not happen on it."""

import os
import shutil
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import psutil
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Playwright, Request, Response

ARGUMENTS = (
    "--no-sandbox",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--disable-extensions",
    "--disable-gpu",
    "--force-color-profile=srgb",
    "--disable-lcd-text",
)
# For one step of a test: a machine of two cores that explains in one of them.
STEP_MS = 120_000
# For a whole test: then the browser is ended, and with it the test.
TEST_S = 300.0
DESK = {"width": 1100, "height": 800}
PHONE = {"width": 360, "height": 740}
PHONE_LARGE = {"width": 390, "height": 844}
# Chromium reports refused requests of the page as errors of its console.
_REFUSED = "Failed to load resource"
# Counts what the page has still to do soon: short timers, by which views ask a little after the last click, and frames to draw.
_COUNT_WORK = """(() => {
  const work = window.pendingWork = new Set();
  const {setTimeout, clearTimeout, requestAnimationFrame, cancelAnimationFrame} = window;
  window.setTimeout = (call, after = 0, ...values) => {
    const id = setTimeout((...given) => { work.delete(`timer ${id}`); call(...given); }, after, ...values);
    if (after <= 1000) work.add(`timer ${id}`);
    return id;
  };
  window.clearTimeout = (id) => { work.delete(`timer ${id}`); clearTimeout(id); };
  window.requestAnimationFrame = (call) => {
    const id = requestAnimationFrame((now) => { work.delete(`frame ${id}`); call(now); });
    work.add(`frame ${id}`);
    return id;
  };
  window.cancelAnimationFrame = (id) => { work.delete(`frame ${id}`); cancelAnimationFrame(id); };
  window.uncountedFrame = requestAnimationFrame;
})();"""
_WATCH_POLICY = """document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`));"""


def start(playwright: Playwright, env: Mapping[str, str] | None = None) -> Browser:
    """Start the machine's own Chromium. ``env``: beside the environment there is."""
    environment: dict[str, str | float | bool] = {**os.environ, **(env or {})}
    return playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS, env=environment, timeout=60_000)


def end_by_force() -> None:
    """End every Chromium that this process started; calls that wait for it then fail."""
    for child in psutil.Process().children(recursive=True):
        if "chrom" in child.name():
            child.kill()


def watchdog() -> threading.Timer:
    """Ends the browser unless it is cancelled in time."""
    timer = threading.Timer(TEST_S, end_by_force)
    timer.daemon = True
    timer.start()
    return timer


def address(url: str, tab: str = "", **state: object) -> str:
    """The page's URL with its state; ``tab``: the view that is shown."""
    pairs = {**({"view": tab} if tab else {}), **state}
    return url + ("#" + "&".join(f"{key}={quote(str(value), safe='')}" for key, value in pairs.items()) if pairs else "")


class Watch:
    """Records what must not happen on the pages of one context: errors, dialogs, refusals, requests to other origins.

    ``refused``: answers of 4xx and 5xx, and requests that fail, belong to the test.
    """

    def __init__(self, context: BrowserContext, origin: str, refused: bool = False) -> None:
        self.wrong: list[str] = []
        self.requests: list[Request] = []
        self._origin = urlsplit(origin)
        self._refused = refused
        context.add_init_script(_COUNT_WORK)
        context.add_init_script(_WATCH_POLICY)
        context.on("page", self._page)
        context.on("request", self._request)
        context.on("response", self._response)

    def _page(self, page: Page) -> None:
        page.set_default_timeout(STEP_MS)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("dialog", self._dialog)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(_REFUSED):
            self.wrong.append(f"console {message.type}: {message.text} ({message.location.get('url')})")

    def _dialog(self, dialog: Dialog) -> None:
        self.wrong.append(f"{dialog.type}: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        self.requests.append(request)
        to = urlsplit(request.url)
        if to.scheme not in ("blob", "data") and (to.scheme, to.netloc) != (self._origin.scheme, self._origin.netloc):
            self.wrong.append(f"asked elsewhere: {request.url}")

    def _response(self, response: Response) -> None:
        if response.status >= 400 and not self._refused:
            self.wrong.append(f"{response.status} from {response.url}")


def watched(browser: Browser, origin: str, *, refused: bool = False, options: Mapping[str, Any] | None = None) -> tuple[Page, Watch]:
    """A fresh page in a context of its own, and what watches it. ``options``: of the context."""
    chosen = {"viewport": DESK, "color_scheme": "light", "reduced_motion": "reduce", "locale": "en-GB", **(options or {})}
    context = browser.new_context(**chosen)
    context.set_default_timeout(STEP_MS)
    watch = Watch(context, origin, refused)
    return context.new_page(), watch
