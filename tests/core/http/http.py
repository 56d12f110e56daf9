"""Requests to a server's HTTP port."""

import json
import urllib.error
import urllib.request
from typing import Any, NamedTuple

from tests.conftest import RunningServer
from tests.core.grpc.gate import PATIENCE_S


class Answer(NamedTuple):
    """An HTTP answer, whatever its status."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def error(self) -> tuple[int, str, str]:
        """HTTP status, status code and message of a request that failed."""
        found = self.json["error"]
        return self.status, found["status"], found["message"]


def call(server: RunningServer, path: str, body: Any = None, method: str | None = None, **headers: str) -> Answer:
    """GET a path, or POST a body: bytes, or a value that becomes JSON. In header names ``_`` stands for ``-``."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        server.url + path, data, {name.replace("_", "-"): value for name, value in headers.items()}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return Answer(response.status, dict(response.headers), response.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, dict(error.headers), error.read())


def post(body: bytes, path: str = "/v1/classify", *headers: str) -> bytes:
    """A POST request as it is sent."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body
