"""A network namespace, and links to it that can silently drop all packets. Needs root and iproute2."""

import contextlib
import fcntl
import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.conftest import leave_out

# Addresses of the benchmarking range (RFC 2544), which is not routed. There are two links, so that one can be observed over the other.
LINKS = {"calls": ("198.18.64.1", "198.18.64.2"), "watching": ("198.18.65.1", "198.18.65.2")}
# No interface has this hardware address, so packets to it are silently dropped on arrival.
NOWHERE = "02:00:00:00:00:01"


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20).stdout


class Namespace:
    """A network namespace with two links to ours, ``calls`` and ``watching``. ``its`` and ``ours`` are the addresses of ``calls``."""

    def __init__(self) -> None:
        self.name = f"sentiment-{os.getpid()}"
        self.before = ("ip", "netns", "exec", self.name)
        self.ours, self.its = LINKS["calls"]
        self.watched = LINKS["watching"][1]

    def __enter__(self) -> Self:
        if os.geteuid():
            leave_out("a network namespace", "needs root")
        # Every process of the tests uses the same addresses: one at a time.
        self._turn = (Path(tempfile.gettempdir()) / "sentiment-namespace.lock").open("w")
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            ip("netns", "add", self.name)
        except subprocess.CalledProcessError as error:
            leave_out("a network namespace", f"cannot be made: {error.stderr.strip()}")
        try:
            ip("-n", self.name, "link", "set", "lo", "up")
            for link, (ours, its) in LINKS.items():
                near, far = self._cards(link)
                ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", self.name)
                for where, card, address in (((), near, ours), (("-n", self.name), far, its)):
                    ip(*where, "address", "add", f"{address}/24", "dev", card)
                    ip(*where, "link", "set", card, "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def vanish(self) -> None:
        """From now on ``calls`` silently drops all packets in both directions."""
        near, far = self._cards("calls")
        ip("neighbour", "replace", self.its, "lladdr", NOWHERE, "dev", near, "nud", "permanent")
        ip("-n", self.name, "neighbour", "replace", self.ours, "lladdr", NOWHERE, "dev", far, "nud", "permanent")

    def come_back(self) -> None:
        """Let packets through again."""
        near, far = self._cards("calls")
        ip("neighbour", "del", self.its, "dev", near)
        ip("-n", self.name, "neighbour", "del", self.ours, "dev", far)

    def _remove(self) -> None:
        # The namespace only disappears with its last process. Deleting our end of a link deletes the other end at once.
        for link in LINKS:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("link", "del", self._cards(link)[0])
        ip("netns", "del", self.name)
        self._turn.close()

    def _cards(self, link: str) -> tuple[str, str]:
        number = f"{list(LINKS).index(link)}-{os.getpid()}"
        return f"st{number}", f"sf{number}"
