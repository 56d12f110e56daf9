"""Shell completion: what the arguments are. shtab writes the scripts."""

import argparse
from typing import cast

import shtab

# By an argument's name in the help; the settings of serve all have the same one there.
_BY_METAVAR = {"FILE": shtab.FILE, "PATH": shtab.FILE, "BUNDLE": shtab.DIRECTORY, "FOLDERS": shtab.DIRECTORY}
_BY_SETTING = {
    **dict.fromkeys(("admin_tokens", "auth_tokens", "tls_cert_file", "tls_key_file", "tls_client_ca_file"), shtab.FILE),
    **dict.fromkeys(("bundles", "cache_dir", "journal"), shtab.DIRECTORY),
}
# Nothing to offer. Without an action zsh lists the one option that matches, but does not write it.
_NOTHING = {"zsh": "()"}


def add_completion(parser: argparse.ArgumentParser) -> None:
    """Add ``--print-completion SHELL`` to a parser that has all its commands."""
    shtab.add_argument_to(parser, "--print-completion", help="print the completion script for a shell")
    _mark(parser)


def _mark(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in cast(dict[str, argparse.ArgumentParser], action.choices).values():
                _mark(command)
        elif found := _BY_METAVAR.get(str(action.metavar)) or _BY_SETTING.get(action.dest):
            action.complete = found  # type: ignore[attr-defined]  # shtab reads it
        elif not action.option_strings and action.choices is None:
            action.complete = _NOTHING  # type: ignore[attr-defined]  # as above
