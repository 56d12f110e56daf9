"""``sentiment health``: asks a server whether it is ready, once, as health checks of containers do."""

import argparse
import os
from typing import Any

from sentiment.addresses import TARGET_VARIABLE, checked_target, near
from sentiment.cli.arguments import add_command, add_credentials, credentials_of, grpc_target
from sentiment.cli.exit_codes import DONE
from sentiment.errors import BadSettings
from sentiment.files.visible import visible
from sentiment.settings import config_file, load_settings


def add_health(commands: Any) -> None:  # Any: argparse names the type of its subparsers in private
    """Register the command."""
    described = "Ask a server over gRPC whether it is ready, once. Exit code 0: it is; 1: it is not, or no server answers."
    parser = add_command(commands, "health", _health, "say whether a server is ready", described)
    parser.add_argument(
        "-t",
        "--target",
        type=grpc_target,
        default=os.environ.get(TARGET_VARIABLE) or None,
        metavar="HOST:PORT",
        help=f"the server's gRPC port, or its port for health (default: {TARGET_VARIABLE}, or that of a server which is started with this "
        "environment: with TLS SENTIMENT_HEALTH_LISTEN, otherwise SENTIMENT_GRPC_LISTEN)",
    )
    add_credentials(parser)


def _health(options: argparse.Namespace) -> int:
    from sentiment.cli.connecting import NoServer, State, find  # noqa: PLC0415  # importing gRPC takes 0.1 s, which others do not need
    from sentiment.security.client_credentials import Credentials  # noqa: PLC0415  # as above

    target = options.target or _own_target()
    found = find(target, Credentials(**credentials_of(options)))
    if found.state is not State.READY:
        raise NoServer(found.said)
    print(visible(f"the server at {target} is ready"))
    return DONE


def _own_target() -> str:
    """Where a server that this environment configures answers health checks without TLS.

    Raises:
        BadSettings: nowhere, or a variable is wrong.
    """
    settings, _ = load_settings({}, os.environ, config_file(os.environ))
    listen = settings.health_listen if settings.tls_cert_file else settings.grpc_listen
    if not listen:
        raise BadSettings("health_listen is empty; give the gRPC port, with --target and --ca")
    return checked_target(near(listen))
