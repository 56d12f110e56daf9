"""Who answers the calls of classify and explain."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sentiment.cli.arguments import credentials_of
from sentiment.cli.connecting import connected
from sentiment.security.client_credentials import Credentials

if TYPE_CHECKING:
    from sentiment.client import Client
    from sentiment.local import Local


@contextmanager
def source_of(options: argparse.Namespace) -> "Iterator[Client | Local]":
    """Who answers: the server, or the bundle in this process. ``options.bundles``: from ``bundles_of``.

    Raises:
        SentimentError: there is no server, or the bundle cannot be run.
    """
    credentials = Credentials(**credentials_of(options))
    if options.local:
        from sentiment.local import Local  # noqa: PLC0415  # the client needs no model runtime

        with Local(options.model, bundles=options.bundles) as local:
            yield local
    else:
        with connected(options.target, options.model, credentials, options.wait) as client:
            yield client
