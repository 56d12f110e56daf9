"""Callers in all ways beside changes of models: no call may fail, and each answer is that of the version it names."""

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self

from sentiment.client import AsyncClient, Client, ExplainOptions
from tests.conftest import PLAIN
from tests.core.servers import PATIENCE_S, until

ONE_ATTRIBUTION = ExplainOptions(methods=("occlusion",), evidence=False)
WAYS: dict[str, Callable[[Client, str], list[Any]]] = {
    "one": lambda client, word: [client.classify(word)],
    "one more": lambda client, word: [client.classify(word)],
    "batch": lambda client, word: client.classify_batch([word] * 80),
    "explained": lambda client, word: [client.classify(word, explain=ONE_ATTRIBUTION, timeout_s=PATIENCE_S)],
}


class Load:
    """Calls, batches, explanations and a stream, without retries, as long as the context lasts."""

    def __init__(self, clients: Sequence[Client], target: str, words: Sequence[str], right: Callable[[Any, str], bool]) -> None:
        """``right``: whether this is the answer to a word. The clients take turns; the stream has a connection of its own."""
        # By way, and by version.
        self.answered: Counter[str] = Counter()
        self.seen: Counter[int] = Counter()
        self.failures: list[object] = []
        self._clients, self._target, self._words, self._right = clients, target, words, right
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=way, daemon=True) for way in WAYS.items()]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._stream()), daemon=True))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._threads), "a call or the stream never ends"

    def wait(self, more: int) -> None:
        """Wait for ``more`` further answers."""
        wanted = self.answered.total() + more
        until(lambda: self.answered.total() >= wanted or bool(self.failures), f"{more} more answers")

    def _check(self, way: str, result: Any, word: str) -> None:
        whole = way != "explained" or (result.explanation is not None and result.explanation.summary.complete)
        if whole and self._right(result, word):
            self.answered[way] += 1
            self.seen[result.model.version] += 1
        else:
            self.failures.append((way, word, result))

    def _work(self, way: str, ask: Callable[[Client, str], list[Any]]) -> None:
        for client, word in zip(itertools.cycle(self._clients), itertools.cycle(self._words), strict=False):
            try:
                for result in ask(client, word):
                    self._check(way, result, word)
            except Exception as error:  # no call may fail
                self.failures.append((way, error))
            # Leave CPU time for the loads, which run at low priority.
            if self._over.wait(0.004):
                return

    async def _stream(self) -> None:
        async def texts() -> AsyncIterator[tuple[str, str]]:
            for number in itertools.count():
                if self._over.is_set():
                    return
                yield str(number), self._words[number % len(self._words)]
                await asyncio.sleep(0.003)

        try:
            async with AsyncClient(self._target, options=PLAIN) as client:
                async for number, result in client.classify_stream(texts(), timeout_s=600):
                    self._check("stream", result, self._words[int(number) % len(self._words)])
        except Exception as error:  # as above
            self.failures.append(("stream", error))
