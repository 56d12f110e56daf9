"""One Chromium for all tests of the viewer, and the servers that serve its page."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, Playwright, Route, expect, sync_playwright

from sentiment.client import AttentionOptions, Client, ExplainOptions, Explanation
from sentiment.settings import Settings
from tests.conftest import RunningServer, starting
from tests.tiny import make_bundle
from tests.trusted import trust
from tests.viewer.browser import STEP_MS, Watch, start, watchdog, watched
from tests.viewer.reading import settled
from tests.viewer.record import recorded_page
from tests.viewer.texts import SHORT

ROOT = Path(__file__).parents[2]

expect.set_options(timeout=STEP_MS)


@pytest.fixture(scope="package")
def awake() -> Iterator[None]:
    """As for the tests of explanations, for all of this folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(os, "SCHED_IDLE", raising=False)
        yield


@pytest.fixture(scope="package")
def playwright() -> Iterator[Playwright]:
    # Of this folder alone: while it runs, this thread's event loop is taken, and the async tests of others need it.
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="package")
def browsers(playwright: Playwright) -> Iterator[list[Browser]]:
    """The running Chromium, alone in its list; replaced where a test has ended it."""
    running = [start(playwright)]
    yield running
    running[0].close()


@pytest.fixture
def browser(playwright: Playwright, browsers: list[Browser]) -> Browser:
    if not browsers[0].is_connected():
        browsers[0] = start(playwright)
    return browsers[0]


class Replay:
    """Replays the answers of servers that stay the same: an equal request of a later test is answered from memory."""

    def __init__(self) -> None:
        self.origins: set[str] = set()
        self._answers: dict[tuple[str, str], tuple[int, dict[str, str], bytes]] = {}

    def watch(self, context: BrowserContext) -> None:
        """Replay answers in a context. Routes that a test adds to its page take precedence."""
        for origin in self.origins:
            for path in ("classify", "explain"):
                context.route(f"{origin}/v1/{path}", self._answer)

    def _answer(self, route: Route) -> None:
        key = route.request.url, route.request.post_data or ""
        # An error means that the page has cancelled the request, or is closed.
        with suppress(Error):
            if key not in self._answers:
                # With the page's own limit, an explanation on a busy machine would leave parts out.
                response = route.fetch(timeout=0, headers={**route.request.headers, "grpc-timeout": "600S"})
                if response.status != 200:
                    route.fulfill(response=response)
                    return
                self._answers[key] = response.status, response.headers, response.body()
            status, headers, body = self._answers[key]
            route.fulfill(status=status, headers=headers, body=body)


class Visit:
    """Opens pages, each in a context of its own; at the end of the test, nothing may have gone wrong on any."""

    def __init__(self, browser: Browser, replay: Replay) -> None:
        self._browser = browser
        self._replay = replay
        self._watches: dict[Page, Watch] = {}

    def __call__(self, url: str, *, refused: bool = False, **options: Any) -> Page:  # of Chromium's contexts
        """``refused``: answers of 4xx and 5xx belong to the test."""
        page = self.blank(url, refused=refused, **options)
        page.goto(url)
        return page

    def settled(self, url: str, **options: Any) -> Page:  # as above
        """A page that shows all it asks for."""
        page = self(url, **options)
        settled(page)
        return page

    def blank(self, url: str, *, refused: bool = False, **options: Any) -> Page:  # as above
        """A page that has not been there yet."""
        page, watch = watched(self._browser, url, refused=refused, options=options)
        self._watches[page] = watch
        self._replay.watch(page.context)
        return page

    def forgiven(self, page: Page) -> list[str]:
        """What has gone wrong on a page and was meant to."""
        watch = self._watches[page]
        wrong, watch.wrong = watch.wrong, []
        return wrong

    def close(self) -> None:
        """Close all pages, and fail if something went wrong on one."""
        for page in self._watches:
            page.context.close()
        assert [wrong for watch in self._watches.values() for wrong in watch.wrong] == []


@pytest.fixture(scope="package")
def replay() -> Replay:
    return Replay()


@pytest.fixture
def visit(browser: Browser, replay: Replay) -> Iterator[Visit]:
    """Pages that must stay clean; the browser is ended if the test takes too long."""
    visits = Visit(browser, replay)
    timer = watchdog()
    try:
        yield visits
        visits.close()
    finally:
        timer.cancel()


@contextmanager
def serving(settings: Settings, **changes: Any) -> Iterator[RunningServer]:
    """A server with changed settings."""
    with starting(RunningServer, settings) as begin:
        yield begin(**changes)


@pytest.fixture(scope="package")
def server(awake: None, settings: Settings) -> Iterator[RunningServer]:
    """The tiny bundle for all tests of this folder that leave it as they found it."""
    with serving(settings) as running:
        yield running


@pytest.fixture(scope="package")
def english(awake: None, settings: Settings, replay: Replay) -> Iterator[RunningServer]:
    """The bundle that is served by default, with time for explanations on a machine that is busy."""
    asked_for = {"model": "english", "bundles": (ROOT / "models/bundles",), "deadline_default_s": 60.0, "deadline_max_s": 600.0}
    with serving(settings, **asked_for) as running:
        replay.origins.add(running.url)
        yield running


@pytest.fixture(scope="package")
def reader(english: RunningServer) -> Iterator[Client]:
    """The Python client of the same server. Its explanations are complete on a busy machine too: with less time they leave parts out."""
    with english.client(timeout_s=60.0) as client:
        client.explain = partial(client.explain, timeout_s=600.0)  # type: ignore[method-assign]
        yield client


@pytest.fixture(scope="package")
def mapped(reader: Client) -> Explanation:
    """What the client gets of the effects of heads, and of their maps by words."""
    options = ExplainOptions(heads=True, attention=AttentionOptions(encoding="fp32", aggregation="words"))
    return reader.explain(SHORT, options=options)


@pytest.fixture(scope="package")
def paired(awake: None, replay: Replay, tmp_path_factory: pytest.TempPathFactory, settings: Settings) -> Iterator[RunningServer]:
    """A tiny random BERT that takes pairs and explains them."""
    from sentiment_models.export.export import export
    from tests.models.tiny_families import MAX_TOKENS, TINY, save_tiny

    folder = tmp_path_factory.mktemp("pairs")
    bundle = folder / "bundles" / "tiny" / "1"
    export(save_tiny(folder / "checkpoint", TINY["bert"]), bundle, name="tiny", version=1, pairs=True, max_tokens=MAX_TOKENS)
    (bundle / "MODEL_CARD.md").write_text("# A card </script>\n")
    with serving(settings, bundles=(folder / "bundles",), deadline_default_s=60.0) as running:
        replay.origins.add(running.url)
        yield running


@pytest.fixture(scope="package")
def measured(paired: RunningServer, tmp_path_factory: pytest.TempPathFactory, settings: Settings) -> Iterator[RunningServer]:
    """The same, with a study that found occlusion best."""
    from tests.models.tampered import copy

    bundle = copy(paired.settings.bundles[0] / "tiny" / "1", tmp_path_factory.mktemp("measured"))
    trust(bundle)
    with serving(settings, bundles=(bundle.parents[1],), deadline_default_s=60.0) as running:
        yield running


@pytest.fixture(scope="package")
def three(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A model of three labels that answers targets."""
    folder = tmp_path_factory.mktemp("three")
    make_bundle(folder, three=True)
    with serving(settings, bundles=(folder,)) as running:
        yield running


@pytest.fixture(scope="package")
def journalled(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that keeps a journal, so that its page asks for feedback."""
    with serving(settings, journal=str(tmp_path_factory.mktemp("journal"))) as running:
        yield running


@pytest.fixture(scope="module")
def modules(browsers: list[Browser], server: RunningServer) -> Iterator[Page]:
    """A page whose modules are called; nothing is done on it."""
    page = browsers[0].new_page()
    page.goto(server.url)
    yield page
    page.close()


@pytest.fixture(scope="package")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a saved page with everything in it, of an explanation that was recorded: it asks nothing of any model."""
    path = tmp_path_factory.mktemp("recorded") / "page.html"
    path.write_text(recorded_page("review"), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="package")
def recorded_long(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same of a long text, with its attribution alone."""
    path = tmp_path_factory.mktemp("recorded") / "long.html"
    path.write_text(recorded_page("long"), encoding="utf-8")
    return path.as_uri()
