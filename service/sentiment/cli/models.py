"""``sentiment models``: lists a server's models, and changes them through its admin port."""

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sentiment.addresses import TARGET_VARIABLE, default_target, is_local
from sentiment.batch_limits import is_exact
from sentiment.cli.arguments import add_command, add_credentials, add_option, credentials_of, grpc_target, seconds
from sentiment.cli.exit_codes import DONE
from sentiment.errors import BadSettings
from sentiment.files.standard_streams import need_standard_output
from sentiment.files.visible import visible

if TYPE_CHECKING:
    from sentiment.admin_client import AdminClient

ADMIN_TARGET = "127.0.0.1:50053"
ADMIN_VARIABLE, TOKENS_VARIABLE = "SENTIMENT_ADMIN_LISTEN", "SENTIMENT_ADMIN_TOKENS"


def add_models(commands: Any) -> None:  # Any: argparse names the type of its subparsers in private
    """Register the command."""
    parser = commands.add_parser(
        "models",
        help="list, load, unload and switch a running server's models",
        description="List a running server's models, by its gRPC port or its admin port, or change them through its admin port.",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    said = "list models that are loaded and, by the admin port, those on the server's disk or failed"
    listing = add_command(actions, "list", _list, said)
    listing.add_argument(
        "-t",
        "--target",
        type=grpc_target,
        metavar="HOST:PORT",
        help=f"the gRPC port, or with its token the admin port (default: {ADMIN_VARIABLE}, {TARGET_VARIABLE}, or a server of this machine)",
    )
    add_credentials(listing, "--tokens")
    model = "NAME/VERSION, or NAME for the highest version on the server's disk"
    load = _add_change(actions, "load", "load another version, and switch its name to it once it is verified", _load, model)
    load.add_argument("--beside", action="store_true", help="load only: the name keeps its current version")
    load.add_argument("--timeout", type=seconds, default=900.0, metavar="TIME", help="how long to wait for the load (default: 15m)")
    loaded = "NAME/VERSION that is loaded"
    use = "switch a name to another loaded version at once, such as for a rollback"
    _add_change(actions, "use", use, lambda admin, options: admin.use(options.model), loaded)
    unload = "unload a version after it has answered its pending requests"
    every = f"{loaded}, or NAME for all its versions"
    _add_change(actions, "unload", unload, lambda admin, options: admin.unload(options.model), every)


def _add_change(
    actions: Any,  # Any: as above
    name: str,
    said: str,
    run: "Callable[[AdminClient, argparse.Namespace], None]",
    model: str,
) -> argparse.ArgumentParser:
    def change(options: argparse.Namespace) -> int:
        return _by_admin_port(options.target, options.token_file, lambda admin: run(admin, options))

    parser = add_command(actions, name, change, said)
    parser.add_argument("model", metavar="MODEL", help=model)
    parser.add_argument(
        "-t",
        "--target",
        type=grpc_target,
        default=os.environ.get(ADMIN_VARIABLE) or ADMIN_TARGET,
        metavar="HOST:PORT",
        help=f"the admin port (default: {ADMIN_VARIABLE} or {ADMIN_TARGET})",
    )
    add_option(
        parser,
        "--token-file",
        "--tokens",
        default="",
        metavar="FILE",
        help=f"send the first token of this file or folder (default: {TOKENS_VARIABLE})",
    )
    return parser


def _by_admin_port(target: str, token_file: str, act: "Callable[[AdminClient], None]") -> int:
    from sentiment.admin_client import AdminClient  # noqa: PLC0415  # importing gRPC takes 0.1 s, which other commands do not need
    from sentiment.client.results import CallFailed  # noqa: PLC0415  # as above
    from sentiment.security.client_credentials import first_token  # noqa: PLC0415  # as above

    tokens = token_file or os.environ.get(TOKENS_VARIABLE, "")
    if not tokens:
        raise BadSettings(f"the admin port needs a token: use --token-file FILE or set {TOKENS_VARIABLE}")
    with AdminClient(target, token=first_token(tokens)) as admin:
        try:
            act(admin)
        except CallFailed as error:
            if error.code.name != "UNIMPLEMENTED":
                raise
            raise CallFailed(error.code, f"{target} is not an admin port; give it with --target or {ADMIN_VARIABLE}") from error
    return DONE


def _list(options: argparse.Namespace) -> int:
    """List by the admin port where there is one, which knows more, and by the gRPC port otherwise."""
    from sentiment.client.results import CallFailed  # noqa: PLC0415  # as above

    need_standard_output()
    tokens = options.token_file or os.environ.get(TOKENS_VARIABLE)
    unsaid = ADMIN_TARGET if tokens and not os.environ.get(TARGET_VARIABLE) else default_target()
    target = options.target or os.environ.get(ADMIN_VARIABLE) or unsaid
    by_admin_port = bool(tokens) and is_local(target) and not (options.tls or options.ca or options.cert)
    if by_admin_port:
        try:
            return _by_admin_port(target, options.token_file, _print_index)
        except CallFailed as error:
            if error.code.name != "UNIMPLEMENTED":
                raise
    _print_loaded(target, options)
    return DONE


def _print_index(admin: "AdminClient") -> None:
    for model in admin.index():
        _print(f"{model.name}/{model.version}", model.state, model.reason)


def _print_loaded(target: str, options: argparse.Namespace) -> None:
    from sentiment.client import CallFailed, Client, Credentials  # noqa: PLC0415  # as above

    # An admin port has no health service, which a client's channel would wait for.
    with Client(target, credentials=Credentials(**credentials_of(options)), options=(("grpc.service_config", "{}"),)) as client:
        try:
            models = client.list_models().models
        except CallFailed as error:
            if error.code.name not in ("UNIMPLEMENTED", "UNAUTHENTICATED"):
                raise
            how = f"give --token-file FILE, or for an admin port {TOKENS_VARIABLE}"
            raise CallFailed(error.code, f"{target} lists no models without its token; {how}") from error
    for model in models:
        graph = model.classify_graph
        about = [
            *["default"] * model.is_default,
            f"labels {', '.join(model.labels)}",
            f"{model.max_tokens} tokens",
            graph.precision,
            *[f"batch mates change a probability by up to {graph.invariance:.2g}"] * (not is_exact(graph.precision, graph.invariance)),
            *["answers targets"] * model.targets,
            *["not calibrated, never undecided"] * model.calibration.uncalibrated,
        ]
        _print(f"{model.id.name}/{model.id.version}", "READY", "; ".join(about))


def _print(name: str, state: str, about: str) -> None:
    print(visible(f"{name:24} {state:12} {about}".rstrip()))


def _load(admin: "AdminClient", options: argparse.Namespace) -> None:
    admin.load(options.model, use=not options.beside, timeout_s=options.timeout)
