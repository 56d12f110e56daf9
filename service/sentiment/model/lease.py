"""Counts the users of a resource, so that it is closed only when nobody uses it any more."""

import asyncio


class InUse:
    """Counts the users of a resource: each ``with`` block is one. Belongs to one event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._nobody = asyncio.Event()
        self._nobody.set()

    def __enter__(self) -> None:
        self._count += 1
        self._nobody.clear()

    def __exit__(self, *_error: object) -> None:
        self._count -= 1
        if not self._count:
            self._nobody.set()

    def __bool__(self) -> bool:
        """Whether there is a user."""
        return bool(self._count)

    async def over(self) -> None:
        """Wait until there is no user."""
        await self._nobody.wait()
