"""How long something is needed: it is closed when nobody is under way with it any more."""

import asyncio


class InUse:
    """Counts who is under way with something: each ``with`` is one. Lives on one event loop."""

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
        """Whether somebody is under way."""
        return bool(self._count)

    async def over(self) -> None:
        """Wait until nobody is."""
        await self._nobody.wait()
