"""The page at 1 Mbit/s: it can be used, and takes little off the network. How soon is printed: it depends on what else the machine does."""

import time

import pytest
from playwright.sync_api import expect

from tests.conftest import RunningServer
from tests.viewer.conftest import Visit
from tests.viewer.reading import ask

pytestmark = pytest.mark.needs_tool("chromium")

BYTES_PER_S = 1e6 / 8
LATENCY_MS = 40
# Of all files with their headers, not compressed; 3 s at this speed.
BYTES_MAX = 400_000


def test_a_first_visit_at_1_mbit_takes_few_bytes_and_a_second_takes_next_to_nothing(visit: Visit, server: RunningServer) -> None:
    url = server.url
    page = visit.blank(url)
    # Answers that are replayed would switch the cache of the browser off.
    page.context.unroute_all()
    network = page.context.new_cdp_session(page)
    received: list[float] = []
    network.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    network.send("Network.enable")
    slow = {"offline": False, "latency": LATENCY_MS, "downloadThroughput": BYTES_PER_S, "uploadThroughput": BYTES_PER_S}
    network.send("Network.emulateNetworkConditions", slow)

    begun = time.monotonic()
    page.goto(url)
    ask(page, "a good film")
    expect(page.locator(".answer .label")).to_have_text("positive")
    usable_s = time.monotonic() - begun
    first = sum(received)
    received.clear()
    page.reload()
    expect(page.locator(".answer .label")).to_have_text("positive")

    print(f"usable after {usable_s:.1f} s; {first:,.0f} bytes, then {sum(received):,.0f}")
    assert first < BYTES_MAX
    assert sum(received) < 0.15 * BYTES_MAX
