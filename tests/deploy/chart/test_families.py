"""What the pod listens on is reached where there is no IPv4 at all, by the call of ``helm test`` and by the image's health check."""

import json
import os
import sys

import pytest

from tests.core.faults.namespace import Namespace, ip
from tests.deploy.chart.manifests import of_kind, rendered
from tests.deploy.chart.rules.release import server, settings
from tests.programs import run, serving


@pytest.mark.needs_tool("helm")
@pytest.mark.needs_tool("ip")
def test_in_a_cluster_of_ipv6_alone_the_pod_answers_over_grpc_and_http() -> None:
    told = settings(server(rendered("default"))[2])
    (job,) = of_kind(rendered("default"), "Job")
    call = list(job["spec"]["template"]["spec"]["containers"][0]["args"])
    call[call.index("--target") + 1] = "[::1]:50051"
    with Namespace() as pod:
        for card in json.loads(ip("-n", pod.name, "-json", "link", "show")):
            ip("-n", pod.name, "-4", "address", "flush", "dev", card["ifname"])
        sentiment = [*pod.before, sys.executable, "-m", "sentiment"]
        with serving(sentiment, "--grpc-listen", told.grpc_listen, "--http-listen", told.http_listen):
            answer = run(*sentiment, *call)
            health = run(*sentiment, "health", env={**os.environ, "SENTIMENT_GRPC_LISTEN": told.grpc_listen})
            ready = run(*pod.before, "curl", "--silent", "--fail", "http://[::1]:8080/readyz")

    assert answer.startswith("positive ")
    assert health == "the server at localhost:50051 is ready\n"
    assert ready
