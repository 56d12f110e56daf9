"""``sentiment models``: lists and changes a server's models through its admin port."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentiment.cli.arguments import seconds
from sentiment.errors import BadSettings
from sentiment.files.standard_streams import need_standard_output
from sentiment.files.visible import visible

if TYPE_CHECKING:
    from sentiment.admin_client import AdminClient

TARGET = "127.0.0.1:50053"


def add_models(commands: Any) -> None:  # Any: argparse names the type of its subparsers in private
    """Register the command."""
    parser = commands.add_parser(
        "models",
        help="list, load, unload and switch a running server's models",
        description="List a running server's models, or change them, through its admin port.",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    _add(actions, "list", "list models that are loaded, on the server's disk, or failed to load", _list)
    model = "NAME/VERSION, or NAME for the highest version on the server's disk"
    load = _add(actions, "load", "load another version, and switch its name to it once it is verified", _load, model)
    load.add_argument("--beside", action="store_true", help="load only: the name keeps its current version")
    load.add_argument("--timeout", type=seconds, default=900.0, metavar="TIME", help="how long to wait for the load (default: 15m)")
    loaded = "NAME/VERSION that is loaded"
    _add(actions, "use", "switch a name to another loaded version at once, such as for a rollback", _use, loaded)
    _add(
        actions, "unload", "unload a version after it has answered its pending requests", _unload, f"{loaded}, or NAME for all its versions"
    )


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
        help="send the first token of this file or folder (default: SENTIMENT_ADMIN_TOKENS)",
    )
    parser.set_defaults(run=lambda options: _run(options, run))
    return parser


def _run(options: argparse.Namespace, action: "Callable[[AdminClient, argparse.Namespace], None]") -> int:
    from sentiment.admin_client import AdminClient  # noqa: PLC0415  # importing gRPC takes 0.1 s, which other commands do not need

    if action is _list:
        need_standard_output()
    with AdminClient(options.target, token=_first_token(options.tokens)) as client:
        action(client, options)
    return 0


def _list(client: "AdminClient", _options: argparse.Namespace) -> None:
    for model in client.index():
        print(visible(f"{model.name + '/' + model.version:24} {model.state:12} {model.reason}".rstrip()))


def _load(client: "AdminClient", options: argparse.Namespace) -> None:
    client.load(options.model, use=not options.beside, timeout_s=options.timeout)


def _use(client: "AdminClient", options: argparse.Namespace) -> None:
    client.use(options.model)


def _unload(client: "AdminClient", options: argparse.Namespace) -> None:
    client.unload(options.model)


def _first_token(path: Path | None) -> str:
    """The first token of a file, or of a folder's files, in the order in which the server reads them."""
    if path is None:
        raise BadSettings("the admin port needs a token: use --tokens FILE or set SENTIMENT_ADMIN_TOKENS")
    try:
        files = sorted(file for file in path.iterdir() if file.name[0] != ".") if path.is_dir() else [path]
        lines = [line.strip() for file in files for line in file.read_text(encoding="latin-1").splitlines()]
    except OSError as error:
        raise BadSettings(f"{path}: {error.strerror}") from error
    found = next((line for line in lines if line and line[0] != "#"), "")
    if not found:
        raise BadSettings(f"{path}: no token found")
    return found
