"""What classify and explain share: the options of their calls, and who answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sentiment.cli.connecting import connected
from sentiment.security.client_credentials import Credentials

if TYPE_CHECKING:
    from sentiment.client import Client
    from sentiment.local import Local


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """Options of calls. ``targets``: of every text, or their column. ``wait_s``: see ``connecting.connected``."""

    target: str
    model: str
    truncation: str
    timeout_s: float
    json: bool
    local: bool
    sentences: bool
    targets: tuple[str, ...] | str
    wait_s: float | None
    bundles: tuple[Path, ...]
    credentials: Credentials


@contextmanager
def source_of(calling: Calling) -> "Iterator[Client | Local]":
    """Who answers: the server, or the bundle in this process.

    Raises:
        SentimentError: there is no server, or the bundle cannot be run.
    """
    if calling.local:
        from sentiment.local import Local  # noqa: PLC0415  # the client needs no model runtime

        with Local(calling.model, bundles=calling.bundles) as local:
            yield local
    else:
        with connected(calling.target, calling.model, calling.credentials, calling.wait_s) as client:
            yield client
