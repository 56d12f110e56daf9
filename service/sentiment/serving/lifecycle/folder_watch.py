"""Looks at folders for higher versions of models, and has them loaded once they are all there and do not change any more.

It asks, and is not told: what Kubernetes mounts is exchanged by symbolic links, of which a watch of the file system says nothing useful.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from sentiment.errors import RequestError, Unavailable
from sentiment.model import folders
from sentiment.model.folders import Signature
from sentiment.observability.logs import logger


class Loads(Protocol):
    """What loads models."""

    def newest(self, name: str) -> int:
        """The highest version that is loaded of a model, or was and is not any more; 0 if none was."""

    async def load(self, model: str, use: bool = True) -> None:
        """Load ``name/version`` and let its name mean it. Raises RequestError; Unavailable if it may be tried again."""


class FolderWatch:
    """Looks every so often. A version is tried once; again only when its files are others."""

    def __init__(self, repository: Loads, names: Sequence[str], roots: Sequence[Path], every_s: float) -> None:
        """``names``: of models, without a version."""
        self._repository = repository
        self._names, self._roots, self._every_s = names, roots, every_s
        # Of each folder at the last look, and when it was tried.
        self._seen: dict[Path, Signature] = {}
        self._tried: dict[Path, Signature] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            for name in self._names:
                try:
                    await self.look(name)
                except Exception:  # whatever it was, the next look may find a version of use
                    logger().exception("watch_failed", model=name)

    async def look(self, name: str) -> None:
        """Load the highest version of a model that is higher than those ever loaded, settled since the last look, and not tried in vain."""
        path = await asyncio.to_thread(self._settled, name, self._repository.newest(name))
        if path is None:
            return
        model = f"{path.parent.name}/{path.name}"
        logger().info("model_found", model=model)
        self._tried[path] = self._seen[path]
        try:
            await self._repository.load(model)
        except Unavailable:
            del self._tried[path]
        except RequestError as error:
            # Not all that is refused has been tried, and so been logged elsewhere.
            logger().warning("model_not_taken", model=model, reason=str(error))

    def _settled(self, name: str, newest: int) -> Path | None:
        candidates = [path for version, path in folders.versions_of(name, self._roots).items() if version > newest]
        before = self._seen
        self._seen = {path: kept for path, kept in before.items() if path.parent.name != name}
        self._seen |= {path: folders.signature(path) for path in candidates}
        for path in candidates:
            now = self._seen[path]
            if now and now == before.get(path) and now != self._tried.get(path) and not folders.missing(path):
                return path
        return None
