"""A real Envoy with the configuration of deploy/envoy, before servers of ours."""

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import yaml

from sentiment.client import Client
from tests.deploy.envoy.tokens import Issuer

FOLDER = Path(__file__).parents[3] / "deploy" / "envoy"
# Longer than any machine takes; a test that passes never waits so long.
PATIENCE_S = 30
CERTIFICATE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=envoy")


class Proxy:
    """Started with the clusters' addresses in place of Kubernetes' names, free ports, and keys of its own."""

    def __init__(self, folder: Path, clusters: Mapping[str, Sequence[str]], change: Callable[[Any], None] = lambda _: None) -> None:
        """``clusters``: ``host:port`` of each server, by cluster; ``change`` edits the configuration."""
        self.issuer = Issuer()
        self._folder = folder
        self.certificate = folder / "tls" / "tls.crt"
        self.certificate.parent.mkdir()
        files = ("-keyout", folder / "tls" / "tls.key", "-out", self.certificate)
        names = ("-addext", "subjectAltName=IP:127.0.0.1")
        subprocess.run(["openssl", "req", "-x509", *CERTIFICATE, *files, *names], check=True, capture_output=True, timeout=30)
        (folder / "jwks.json").write_text(self.issuer.jwks())
        (folder / "sentiment.pb").write_bytes((FOLDER / "sentiment.pb").read_bytes())
        configuration = yaml.safe_load((FOLDER / "envoy.yaml").read_text().replace("/etc/envoy/", f"{folder}/"))
        for listening in (configuration["admin"], configuration["static_resources"]["listeners"][0]):
            listening["address"]["socket_address"] |= {"address": "127.0.0.1", "port_value": 0}
        for cluster in configuration["static_resources"]["clusters"]:
            addresses = [server.rpartition(":") for server in clusters[cluster["name"]]]
            places = [{"socket_address": {"address": host, "port_value": int(port)}} for host, _, port in addresses]
            endpoints = [{"endpoint": {"address": place}} for place in places]
            cluster["load_assignment"] = {"cluster_name": cluster["name"], "endpoints": [{"lb_endpoints": endpoints}]}
        change(configuration)
        (folder / "envoy.yaml").write_text(yaml.safe_dump(configuration))
        self._log = (folder / "log").open("w")
        # One worker: each has its own turn in a round robin.
        quiet = ("--concurrency", "1", "--log-level", "warning", "--use-dynamic-base-id", "--disable-hot-restart")
        command = ["envoy", "--config-path", folder / "envoy.yaml", "--admin-address-path", folder / "admin", *quiet]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        self._wait_ready(clusters)

    def _wait_ready(self, clusters: Mapping[str, Sequence[str]]) -> None:
        self.until(lambda: bool((self._folder / "admin").exists() and (self._folder / "admin").read_text()))
        self._admin = f"http://{(self._folder / 'admin').read_text()}"
        self.until(lambda: self.admin("listeners?format=json") not in ("", "{}"))
        (listener,) = json.loads(self.admin("listeners?format=json"))["listener_statuses"]
        self.target = f"127.0.0.1:{listener['local_address']['socket_address']['port_value']}"
        self.url = f"https://{self.target}"
        for name, servers in clusters.items():
            self.until_healthy(name, len(servers))

    def until(self, true: Callable[[], bool]) -> None:
        """Wait for what has no event to wait for."""
        end = time.monotonic() + PATIENCE_S
        while not true():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < end, (self._folder / "log").read_text()
            time.sleep(0.02)

    def admin(self, path: str, data: bytes | None = None) -> str:
        """The answer of the admin port; empty while it is not there."""
        try:
            with urllib.request.urlopen(f"{self._admin}/{path}", data, timeout=PATIENCE_S) as response:
                return response.read().decode()
        except urllib.error.URLError:
            return ""

    def healthy(self, cluster: str) -> int:
        """How many servers of a cluster are ready."""
        for line in self.admin(f"stats?filter=^cluster.{cluster}.membership_healthy").splitlines():
            return int(line.partition(": ")[2])
        return -1

    def until_healthy(self, cluster: str, servers: int) -> None:
        """Until ``servers`` servers of a cluster are ready."""
        self.until(lambda: self.healthy(cluster) == servers)

    def set(self, **percent: int | str) -> None:
        """Change the runtime; the empty string is the configuration's own value again. A dot is written as two underscores."""
        keys = urllib.parse.urlencode({name.replace("__", "."): value for name, value in percent.items()})
        assert self.admin(f"runtime_modify?{keys}", b"") == "OK\n"

    def credentials(self, token: str | None = None) -> grpc.ChannelCredentials:
        """TLS with a bearer token; None: one of the client ``reader``."""
        tls = grpc.ssl_channel_credentials(self.certificate.read_bytes())
        return grpc.composite_channel_credentials(tls, grpc.access_token_call_credentials(token or self.issuer.token()))

    def client(self, token: str | None = None, **arguments: Any) -> Client:
        return Client(self.target, credentials=self.credentials(token), **arguments)

    def fetch(self, path: str, data: bytes, headers: Mapping[str, str], method: str = "POST") -> tuple[int, Any, bytes]:
        """Status, headers and body of a call by HTTP/1.1."""
        request = urllib.request.Request(self.url + path, data, dict(headers), method=method)
        trusting = ssl.create_default_context(cafile=str(self.certificate))
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S, context=trusting) as response:
                return response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        self._log.close()
