"""Our POST /v1/classify with JSON, which other servers can implement too."""

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from sentiment.errors import BadSettings
from sentiment.security.client_credentials import may_send_token
from sentiment_tools.loadtest.drivers import CONNECT_S_MAX, Answer, LoadFailed, Target
from sentiment_tools.loadtest.mix import BULK, Call
from sentiment_tools.loadtest.results import OK

PATH = "/v1/classify"
# Status codes by HTTP status: those that our HTTP API uses, and the closest for other servers.
CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    413: "INVALID_ARGUMENT",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
MESSAGE_CHARACTERS_MAX = 300


class HttpDriver:
    """Sends one text per request, over as many connections as requests are open. Grpc-Timeout carries the deadline."""

    def __init__(self, target: Target) -> None:
        self._tls, self._authorization = target.credentials.for_http(), target.credentials.authorization()
        address = target.address if "://" in target.address else f"{'http' if self._tls is None else 'https'}://{target.address}"
        self._url = address if urlsplit(address).path.strip("/") else address.rstrip("/") + PATH
        if self._authorization is not None and not may_send_token(self._url):
            raise BadSettings(f"{self._url} is on another machine: a token is sent there over https only")
        self._model, self._effort = target.model, target.effort_value
        self._session: aiohttp.ClientSession | None = None

    async def connect(self) -> dict[str, str]:
        """As in Driver."""
        # No limit here: the load tester limits open calls.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=True if self._tls is None else self._tls))
        answer = await self.call(Call(("good",), "", CONNECT_S_MAX), CONNECT_S_MAX)
        if answer.code != OK:
            raise LoadFailed(f"{self._url} does not answer: {answer.code}: {answer.message}")
        return {}

    async def call(self, call: Call, timeout_s: float) -> Answer:
        """As in Driver."""
        assert self._session is not None, "not connected"
        content = {"text": call.texts[0]}
        if self._model:
            content["model"] = self._model
        if self._effort:
            content["effort"] = self._effort
        if call.kind == BULK:
            content["priority"] = "PRIORITY_BULK"
        headers = {"Content-Type": "application/json", "Grpc-Timeout": f"{math.ceil(timeout_s * 1e3)}m"}
        limit = aiohttp.ClientTimeout(total=timeout_s)
        try:
            if self._authorization is not None:
                headers["Authorization"] = self._authorization()
            # A redirected POST would be repeated as a GET, and take the time of two requests.
            posted = self._session.post(self._url, data=json.dumps(content), headers=headers, timeout=limit, allow_redirects=False)
            async with posted as response:
                body = await response.read()
        except TimeoutError:
            return Answer("DEADLINE_EXCEEDED", f"no answer within {timeout_s:g} s")
        except aiohttp.ClientResponseError as error:
            return Answer("UNKNOWN", f"the server does not speak HTTP: {' '.join(str(error).split())}")
        except (aiohttp.ClientError, OSError, BadSettings) as error:
            return Answer("UNAVAILABLE", str(error) or type(error).__name__)
        if response.status != 200:
            shown = body[:MESSAGE_CHARACTERS_MAX].decode(errors="replace").strip()
            return Answer(CODES.get(response.status, f"HTTP_{response.status}"), shown)
        try:
            return _answer_of(json.loads(body))
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            return Answer("UNKNOWN", f"the answer has no prediction.label and prediction.score: {type(error).__name__}")

    async def close(self) -> None:
        """As in Driver."""
        if self._session is not None:
            await self._session.close()
            # aiohttp closes its transports in the next turn of the loop.
            await asyncio.sleep(0)


def _answer_of(values: Mapping[str, Any]) -> Answer:
    """Read an answer. Only prediction.label and prediction.score are required."""
    prediction = values["prediction"]
    if not isinstance(prediction["score"], float | int) or not isinstance(prediction["label"], str):
        raise TypeError("prediction.label must be a string and prediction.score a number")
    timing = values.get("timing")
    # Each a protobuf Duration in JSON, such as 0.0031s.
    stages_s = tuple(float(timing.get(name, "0s").removesuffix("s")) for name in ("tokenize", "queue", "run")) if timing else ()
    return Answer(OK, texts_ok=1, tokens=int(values.get("tokens", 0)), stages_s=stages_s)
