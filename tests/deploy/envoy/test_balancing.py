"""Envoy asks servers how they are, and calls those that are ready."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sentiment.client import CallFailed
from tests.conftest import NO_RETRIES, RunningServer
from tests.core.grpc.gate import in_loop
from tests.deploy.envoy.conftest import answered
from tests.deploy.envoy.proxy import Proxy

pytestmark = [pytest.mark.needs_tool("envoy"), pytest.mark.needs_tool("openssl")]


def ask_often(configuration: Any) -> None:
    """Check health five times a second instead of once."""
    for cluster in configuration["static_resources"]["clusters"]:
        for check in cluster["health_checks"]:
            check |= {"interval": "0.2s", "no_traffic_interval": "0.2s"}


def test_a_server_that_is_not_ready_gets_nothing_until_it_is(start: Callable[..., RunningServer], begin: Callable[..., Proxy]) -> None:
    servers = [start(), start()]
    proxy = begin({"stable": [one.target for one in servers], "canary": [servers[0].target], "mirror": [servers[0].target]}, ask_often)
    proxy.set(canary__sentiment__canary=0, mirror__sentiment=0)
    health = servers[1].app._grpc.health

    # Its watchdog says what it is only when that changes: the app's own view of it is changed too.
    servers[1].app._draining = True
    in_loop(servers[1], lambda: health.set_ready(False))
    proxy.until_healthy("stable", 1)
    with proxy.client(options=NO_RETRIES) as client:

        def of_20() -> float:
            """How many of 20 calls the server got."""
            before = answered(servers[1])
            for _ in range(20):
                client.classify("good")
            return answered(servers[1]) - before

        # The worker hears a moment after what tells the number.
        proxy.until(lambda: of_20() == 0)
        assert of_20() == 0

        in_loop(servers[1], lambda: health.set_ready(True))
        proxy.until_healthy("stable", 2)
        proxy.until(lambda: of_20() > 0)
        assert of_20() == 10


def without_retries(configuration: Any) -> None:
    """They would hide calls to a server that has gone."""
    ask_often(configuration)
    (listener,) = configuration["static_resources"]["listeners"]
    (host,) = listener["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]["virtual_hosts"]
    (tried,) = [one["route"] for one in host["routes"] if "retry_policy" in one["route"]]
    del tried["retry_policy"]


def test_a_server_that_drains_under_load_costs_no_call(start: Callable[..., RunningServer], begin: Callable[..., Proxy]) -> None:
    # Five health checks long.
    servers = [start(drain_wait_s=1.0), start()]
    clusters = {"stable": [one.target for one in servers], "canary": [servers[1].target], "mirror": [servers[1].target]}
    proxy = begin(clusters, without_retries)
    # Of the quota of 200 a second the calls below take about half.
    going, failures, counts = threading.Event(), [], [0] * 4

    def call(index: int) -> None:
        # Our client's own retries would hide what Envoy lets through.
        with proxy.client(proxy.issuer.token(f"client-{index}"), options=NO_RETRIES) as client:
            while not going.wait(0.03):
                try:
                    client.classify("good")
                    counts[index] += 1
                except CallFailed as error:
                    failures.append(error)

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(counts))]
    for thread in threads:
        thread.start()
    proxy.until(lambda: min(counts) > 5)
    servers[0].stop()
    left = answered(servers[1])
    proxy.until(lambda: answered(servers[1]) >= left + 20)
    going.set()
    for thread in threads:
        thread.join(30)

    assert failures == []
