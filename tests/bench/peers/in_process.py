"""A library in a process of its own, asked by lines of JSON: a list of texts at a time, which it cuts into batches itself."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.peers.answers import Answer
from tests.bench.peers.environments import PeerFailed
from tests.bench.peers.processes import Running


@dataclass(frozen=True, slots=True)
class Passed:
    """One list of texts, in the process's own times."""

    answers: tuple[Answer, ...]
    seconds: float
    core_s: float


class InProcess:
    """A started process of ``servers/torch.py``'s kind."""

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
        line = self._running.process.stdout.readline()
        if not line:
            self._running.process.wait()
            raise PeerFailed(f"{self._running.name} ended\n{self._running.last_words()}")
        values: dict[str, Any] = json.loads(line)
        return values
