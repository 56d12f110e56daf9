"""Polls folders for higher versions of models and loads them once they are complete and no longer change.

Polling, not file system events: Kubernetes replaces mounted files by changing symbolic links, which events do not report usefully.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from sentiment.errors import RequestError, Unavailable
from sentiment.lifecycle.lifecycle import Lifecycle
from sentiment.model import folders
from sentiment.model.folders import Signature
from sentiment.observability.logs import logger


class FolderWatch:
    """Checks the folders at an interval. A version is tried once, and again after its files or the loaded models have changed."""

    def __init__(self, lifecycle: Lifecycle, names: Sequence[str], roots: Sequence[Path], every_s: float) -> None:
        """``names``: names of models, without a version."""
        self._lifecycle = lifecycle
        self._names, self._roots, self._every_s = names, roots, every_s
        # Signature of each folder at the last check; and when it was last tried, with the models that were loaded then.
        self._seen: dict[Path, Signature] = {}
        # Those that could not be read, and were said to.
        self._closed: set[Path] = set()
        self._tried: dict[Path, tuple[Signature, frozenset[str]]] = {}

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            for name in self._names:
                try:
                    await self.look(name)
                except Exception:  # the next check may succeed
                    logger().exception("watch_failed", model=name)

    async def look(self, name: str) -> None:
        """Load the highest version of a model that is newer than any loaded, unchanged since the last check, and not tried yet."""
        loaded = frozenset(running.id for running in self._lifecycle.running)
        path = await asyncio.to_thread(self._settled, name, self._lifecycle.newest(name), loaded)
        if path is None:
            return
        model = f"{path.parent.name}/{path.name}"
        logger().info("model_found", model=model)
        self._tried[path] = self._seen[path], loaded
        try:
            await self._lifecycle.load(model)
        except Unavailable:
            del self._tried[path]
        except RequestError as error:
            # Logged here too: a load that is refused before it starts is logged nowhere else.
            logger().warning("model_refused", model=model, reason=str(error))

    def _settled(self, name: str, newest: int, loaded: frozenset[str]) -> Path | None:
        candidates = [path for version, path in folders.versions_of(name, self._roots).items() if version > newest]
        before = self._seen
        self._seen = {path: kept for path, kept in before.items() if path.parent.name != name}
        self._seen |= {path: folders.signature(path) for path in candidates}
        for path in candidates:
            now = self._seen[path]
            if now:
                self._closed.discard(path)
            elif before.get(path) == () and path not in self._closed:
                self._closed.add(path)
                logger().warning("model_refused", model=f"{name}/{path.name}", reason=f"{path}: the folder is empty or cannot be read")
            if now and now == before.get(path) and (now, loaded) != self._tried.get(path) and not folders.missing(path):
                return path
        return None
