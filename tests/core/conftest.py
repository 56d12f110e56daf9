"""Servers in processes of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.core.servers import Server, serving


@pytest.fixture
def serve(bundles: Path) -> Iterator[Callable[..., Server]]:
    """Start servers of one process unless flags say otherwise; each is killed at the end."""
    with serving(bundles) as begin:
        yield begin
