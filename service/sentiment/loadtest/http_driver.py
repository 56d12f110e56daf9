"""Our POST /v1/classify in JSON, which other servers can answer too."""

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from sentiment.errors import BadSettings
from sentiment.loadtest.drivers import CONNECT_S_MAX, Answer, LoadFailed, Stages, Target
from sentiment.loadtest.mix import BULK, Call
from sentiment.loadtest.results import OK
from sentiment.security.client_credentials import may_send_token

PATH = "/v1/classify"
# The codes that our HTTP side makes these statuses of, and what other servers mean by them.
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
    """One text a request, as many connections as requests are open. The deadline goes along as Grpc-Timeout."""

    def __init__(self, target: Target) -> None:
        self._tls, self._authorization = target.credentials.for_http(), target.credentials.authorization()
        address = target.address if "://" in target.address else f"{'http' if self._tls is None else 'https'}://{target.address}"
        self._url = address if urlsplit(address).path.strip("/") else address.rstrip("/") + PATH
        if self._authorization is not None and not may_send_token(self._url):
            raise BadSettings(f"{self._url} is another machine, to which a token is sent over https only")
        self._model = target.model
        self._session: aiohttp.ClientSession | None = None

    async def connect(self) -> dict[str, str]:
        """As in Driver."""
        # Bounded by the load tester's own limit of open calls.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=True if self._tls is None else self._tls))
        answer = await self.call(Call(("good",), "", CONNECT_S_MAX), CONNECT_S_MAX)
        if answer.code != OK:
            raise LoadFailed(f"{self._url} does not answer: {answer.code}: {answer.message}")
        return {}

    async def call(self, call: Call, timeout_s: float) -> Answer:
        """As in Driver."""
        assert self._session is not None, "not connected"
        asked = {"text": call.texts[0]}
        if self._model:
            asked["model"] = self._model
        if call.kind == BULK:
            asked["priority"] = "PRIORITY_BULK"
        headers = {"Content-Type": "application/json", "Grpc-Timeout": f"{math.ceil(timeout_s * 1e3)}m"}
        limit = aiohttp.ClientTimeout(total=timeout_s)
        try:
            if self._authorization is not None:
                headers["Authorization"] = self._authorization()
            # A redirected POST would come as a GET, in the time of two.
            asking = self._session.post(self._url, data=json.dumps(asked), headers=headers, timeout=limit, allow_redirects=False)
            async with asking as response:
                body = await response.read()
        except TimeoutError:
            return Answer("DEADLINE_EXCEEDED", f"no answer within {timeout_s:g} s")
        except aiohttp.ClientResponseError as error:
            return Answer("UNKNOWN", f"what answers is no HTTP server: {' '.join(str(error).split())}")
        except (aiohttp.ClientError, OSError, BadSettings) as error:
            return Answer("UNAVAILABLE", str(error) or type(error).__name__)
        if response.status != 200:
            shown = body[:MESSAGE_CHARACTERS_MAX].decode(errors="replace").strip()
            return Answer(CODES.get(response.status, f"HTTP_{response.status}"), shown)
        try:
            return _answer_of(json.loads(body))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            return Answer("UNKNOWN", f"the answer has no prediction.label and prediction.score: {type(error).__name__}")

    async def close(self) -> None:
        """As in Driver."""
        if self._session is not None:
            await self._session.close()
            # aiohttp closes its transports a turn later.
            await asyncio.sleep(0)


def _answer_of(values: Mapping[str, Any]) -> Answer:
    """Only prediction.label and prediction.score must be there."""
    prediction = values["prediction"]
    if not isinstance(prediction["score"], float | int) or not isinstance(prediction["label"], str):
        raise TypeError("of other types")
    timing = values.get("timing")
    stages = Stages(*(_seconds(timing.get(name, "0s")) for name in ("tokenize", "queue", "run"))) if timing else None
    return Answer(OK, texts_ok=1, tokens=int(values.get("tokens", 0)), stages=stages)


def _seconds(duration: str) -> float:
    """Of a protobuf Duration in JSON, such as 0.0031s."""
    return float(duration.removesuffix("s"))
