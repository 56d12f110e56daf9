"""Plain HTTP callers that record how each of their requests ends, as ``fates.Callers`` does for gRPC."""

import http.client
import itertools
import json
import threading
import time
from collections.abc import Sequence
from typing import Self

from tests.core.faults.fates import ANSWERED, SCORE_OFF_MAX, TEXTS, WRONG, Fates


class HttpCallers:
    """``callers`` of several servers, each in a thread of its own, with the standard library's client, which never repeats a request.

    Each goes on to the next server when its connection has ended, and at once where a server does not listen. ``kept`` of them keep their
    connection as long as the server does; the others use a new one for each request.
    """

    def __init__(self, urls: Sequence[str], *, callers: int = 8, kept: int = 4, timeout_s: float = 5.0) -> None:
        self.fates = Fates()
        self._addresses = itertools.cycle([url.removeprefix("http://") for url in urls])
        # Servers that have yet to become ready, which a balancer does not ask.
        self.starting: set[str] = set()
        self._timeout_s = timeout_s
        self._going = True
        self._grown = threading.Condition()
        self._threads = [threading.Thread(target=self._ask, args=(number < kept,), daemon=True) for number in range(callers)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._going = False
        for thread in self._threads:
            thread.join(2 * self._timeout_s + 20)
            assert not thread.is_alive(), "a caller did not end"

    def wait(self, more: int, patience_s: float = 60.0) -> None:
        """Wait until ``more`` further requests have been answered."""
        with self._grown:
            before = self.fates.of(ANSWERED)
            assert self._grown.wait_for(lambda: self.fates.of(ANSWERED) >= before + more, patience_s), self.fates.counts()

    def _ask(self, kept: bool) -> None:
        texts = itertools.cycle(TEXTS)
        connection = None
        while self._going:
            text, score = next(texts)
            begun = time.monotonic()
            while connection is None or connection.sock is None:
                connection = self._connected()
            try:
                fate = _fate(connection, text, score, {} if kept else {"Connection": "close"})
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                fate = type(error).__name__
            with self._grown:
                self.fates.calls.append((begun, time.monotonic(), fate))
                self._grown.notify_all()

    def _connected(self) -> http.client.HTTPConnection | None:
        with self._grown:
            address = next(self._addresses)
        if self._starts(address):
            return None
        connection = http.client.HTTPConnection(address, timeout=self._timeout_s)
        try:
            connection.connect()
        except ConnectionError:
            # Refused, or reset before it was there. Nothing has been sent.
            time.sleep(0.001)
            return None
        if self._starts(address):
            # A server that was ending ignored the first try, and the kernel's second one met its successor. Nothing has been sent.
            connection.close()
            return None
        return connection

    def _starts(self, address: str) -> bool:
        return f"http://{address}" in self.starting


def _fate(connection: http.client.HTTPConnection, text: str, score: float, headers: dict[str, str]) -> str:
    connection.request("POST", "/v1/classify", json.dumps({"text": text}), headers)
    answer = connection.getresponse()
    body = json.loads(answer.read())
    if answer.status != 200:
        return str(body["error"]["status"])
    scores = {one["label"]: one["score"] for one in body["prediction"]["scores"]}
    return ANSWERED if abs(scores["positive"] - score) < SCORE_OFF_MAX else WRONG
