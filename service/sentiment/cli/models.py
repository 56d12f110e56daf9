"""``sentiment models``: which models a server has, and how they are exchanged, by its admin port."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentiment.cli.arguments import seconds
from sentiment.errors import BadSettings

if TYPE_CHECKING:
    from sentiment.admin_client import AdminClient

TARGET = "127.0.0.1:50053"


def add_models(commands: Any) -> None:  # Any: argparse names the type of its subparsers in private
    """Register the command."""
    parser = commands.add_parser(
        "models",
        help="list, load, unload and exchange a running server's models",
        description="Ask a server's admin port for its models, or to exchange them while it serves.",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    _add(actions, "list", "what is loaded, on the server's disk, or was tried in vain", _list)
    model = "NAME/VERSION, or NAME for the highest version on the server's disk"
    load = _add(actions, "load", "load a version beside the others; its name means it as soon as it is proved", _load, model)
    load.add_argument("--beside", action="store_true", help="only load it: its name goes on meaning what it means")
    load.add_argument("--timeout", type=seconds, default=900.0, metavar="TIME", help="how long to wait for it (default: 15m)")
    loaded = "NAME/VERSION, which is loaded"
    _add(actions, "use", "let a name mean another loaded version, at once: the way back", _use, loaded)
    _add(actions, "unload", "unload a version; what began with it is answered", _unload, f"{loaded}, or NAME for all of its versions")


def _add(actions: Any, name: str, help_: str, run: Callable[..., None], model: str = "") -> argparse.ArgumentParser:  # Any: as above
    parser: argparse.ArgumentParser = actions.add_parser(name, help=help_, description=help_[0].upper() + help_[1:] + ".")
    if model:
        parser.add_argument("model", metavar="MODEL", help=model)
    parser.add_argument(
        "--target",
        default=os.environ.get("SENTIMENT_ADMIN_LISTEN") or TARGET,
        metavar="HOST:PORT",
        help=f"the admin port (default: SENTIMENT_ADMIN_LISTEN or {TARGET})",
    )
    parser.add_argument(
        "--tokens",
        type=Path,
        default=os.environ.get("SENTIMENT_ADMIN_TOKENS") or None,
        metavar="FILE",
        help="whose first token to show (default: SENTIMENT_ADMIN_TOKENS)",
    )
    parser.set_defaults(run=lambda options: _run(options, run))
    return parser


def _run(options: argparse.Namespace, action: "Callable[[AdminClient, argparse.Namespace], None]") -> int:
    from sentiment.admin_client import AdminClient  # noqa: PLC0415  # grpc loads in a tenth of a second that settings need not wait

    with AdminClient(options.target, token=_first_token(options.tokens)) as client:
        action(client, options)
    return 0


def _list(client: "AdminClient", _options: argparse.Namespace) -> None:
    for model in client.index():
        print(f"{model.name + '/' + model.version:24} {model.state:12} {model.reason}".rstrip())


def _load(client: "AdminClient", options: argparse.Namespace) -> None:
    client.load(options.model, use=not options.beside, timeout_s=options.timeout)


def _use(client: "AdminClient", options: argparse.Namespace) -> None:
    client.use(options.model)


def _unload(client: "AdminClient", options: argparse.Namespace) -> None:
    client.unload(options.model)


def _first_token(path: Path | None) -> str:
    """The first token of a file, or of a folder's first file, as the server reads them."""
    if path is None:
        raise BadSettings("--tokens FILE is missing, and SENTIMENT_ADMIN_TOKENS is not set: the admin port wants a token")
    try:
        files = sorted(file for file in path.iterdir() if file.name[0] != ".") if path.is_dir() else [path]
        lines = [line.strip() for file in files for line in file.read_text(encoding="latin-1").splitlines()]
    except OSError as error:
        raise BadSettings(f"{path}: {error.strerror}") from error
    found = next((line for line in lines if line and line[0] != "#"), "")
    if not found:
        raise BadSettings(f"{path}: has no token")
    return found
