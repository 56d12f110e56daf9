"""/metrics: scrapers share pages, and none gets a page that is older than its request."""

import asyncio
import contextlib
import time
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily

from sentiment.doors.http.metrics_page import Scrapes
from tests.conftest import RunningServer
from tests.core.grpc.gate import http_socket
from tests.core.http.http import call

OPENMETRICS = "application/openmetrics-text"
TAKES_S = 0.01


class Shown:
    """What is to be shown: a number that is another one each time, and takes a while."""

    def __init__(self, asking_s: float = 0.0) -> None:
        self.asked = 0
        self.made = 0
        self.at_once = 0
        self._asking_s = asking_s
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def describe(self) -> list[GaugeMetricFamily]:
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        self.made += 1
        time.sleep(TAKES_S)
        yield GaugeMetricFamily("number", "of the body", float(self.made))

    async def ask(self) -> CollectorRegistry:
        self.asked += 1
        self.at_once += 1
        assert self.at_once == 1
        await asyncio.sleep(self._asking_s)
        self.at_once -= 1
        return self.registry


def number(body: tuple[bytes, str]) -> int:
    return next(int(float(line.split()[1])) for line in body[0].decode().splitlines() if line.startswith("number "))


async def test_waiting_scrapers_share_the_next_page() -> None:
    shown = Shown()
    scrapes = Scrapes(shown.ask)
    first = await scrapes.make("")
    begun = time.monotonic()
    bodies = await asyncio.gather(*(scrapes.make("") for _ in range(500)))

    assert number(first) == 1
    assert {number(body) for body in bodies} == {2}
    assert (shown.asked, shown.made) == (2, 2)
    # The pause that the first one demanded.
    assert time.monotonic() - begun >= 3.9 * TAKES_S


async def test_a_scraper_that_arrives_while_a_page_is_rendered_gets_the_next_one() -> None:
    shown = Shown(asking_s=0.1)
    scrapes = Scrapes(shown.ask)
    first = asyncio.create_task(scrapes.make(""))
    while not shown.asked:
        await asyncio.sleep(0)
    others = await asyncio.gather(*(scrapes.make("") for _ in range(50)))

    assert number(await first) == 1
    assert {number(body) for body in others} == {2}
    assert shown.asked == 2


async def test_each_of_many_endless_scrapers_waits_for_few_pages() -> None:
    shown = Shown()
    scrapes = Scrapes(shown.ask)

    async def again_and_again(accept: str) -> None:
        while True:
            await scrapes.make(accept)

    # Any version is a form of its own to the library.
    accepts = ["", "text/plain;version=1.0.0;escaping=values", *(f"{OPENMETRICS};version=1.{one}.0" for one in range(100))]
    crowd = [asyncio.create_task(again_and_again(accept)) for accept in accepts]
    await asyncio.sleep(0.1)
    for accept in ("", OPENMETRICS):
        before = shown.made
        await scrapes.make(accept)
        # One under way, one of the other form, and its own.
        assert shown.made - before <= 3
    for one in crowd:
        one.cancel()
    await asyncio.wait(crowd)


async def test_a_scraper_that_leaves_takes_no_page_from_others() -> None:
    shown = Shown()
    scrapes = Scrapes(shown.ask)
    leaving, staying = (asyncio.create_task(scrapes.make("")) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()

    assert number(await staying) == 1
    assert leaving.cancelled()
    assert number(await scrapes.make("")) == 2


async def test_an_error_fails_only_the_scrapers_that_waited_for_the_page() -> None:
    shown = Shown()
    failing = True

    async def ask() -> CollectorRegistry:
        if failing:
            raise RuntimeError("no registry")
        return shown.registry

    scrapes = Scrapes(ask)
    outcomes = await asyncio.gather(*(scrapes.make("") for _ in range(3)), return_exceptions=True)
    failing = False

    assert [str(one) for one in outcomes] == ["no registry"] * 3
    assert number(await scrapes.make("")) == 1


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (f"{OPENMETRICS};version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.2", f"{OPENMETRICS}; version=1.0.0"),
        (f"{OPENMETRICS};version=77", f"{OPENMETRICS}; version=1.0.0"),
        (f"{OPENMETRICS};version=none", "text/plain; version=0.0.4"),
        ("text/plain;version=1.0.0", "text/plain; version=0.0.4"),
        ("*/*", "text/plain; version=0.0.4"),
    ],
)
async def test_there_are_two_formats(accept: str, content_type: str) -> None:
    shown = Shown()
    body = await Scrapes(shown.ask).make(accept)

    assert body[1].startswith(content_type)
    assert body[0].endswith(b"# EOF\n") == content_type.startswith(OPENMETRICS)


def test_a_crowd_of_scrapers_does_not_blind_the_one_that_counts(server: RunningServer) -> None:
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(http_socket(server)) for _ in range(100)]
        for one in crowd:
            one.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        begun = time.monotonic()
        for _ in range(3):
            assert b"sentiment_build_info" in call(server, "/metrics").body
        # Each in its own turn took 20 s.
        assert time.monotonic() - begun < 5
