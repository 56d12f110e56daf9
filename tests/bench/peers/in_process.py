"""A library in a process of its own, called with lines of JSON. It splits a list of texts into batches itself."""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.peers.answers import Answer
from tests.bench.peers.environments import PeerFailed
from tests.bench.peers.processes import Running

# A pass takes half a minute on two slow cores.
READ_S_MAX = 300.0


@dataclass(frozen=True, slots=True)
class Passed:
    """The result for one list of texts, with times measured by the process."""

    answers: tuple[Answer, ...]
    seconds: float
    core_s: float


class InProcess:
    """A started process such as ``servers/ctranslate2.py``."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._read()

    def run(self, texts: Sequence[str], rows: int) -> Passed:
        """Classify the texts in batches of at most ``rows``."""
        assert self._running.process.stdin is not None
        self._running.process.stdin.write(json.dumps({"texts": list(texts), "rows": rows}) + "\n")
        self._running.process.stdin.flush()
        values = self._read()
        return Passed(tuple((label, score) for label, score in values["answers"]), values["seconds"], values["core_s"])

    def _read(self) -> dict[str, Any]:
        assert self._running.process.stdout is not None
        # A library that hangs must not block the benchmark for ever.
        watch = threading.Timer(READ_S_MAX, self._running.process.kill)
        watch.start()
        try:
            line = self._running.process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            self._running.process.wait()
            raise PeerFailed(
                f"{self._running.name} ended, or was ended after {READ_S_MAX:g} s without an answer\n{self._running.last_words()}"
            )
        values: dict[str, Any] = json.loads(line)
        return values
