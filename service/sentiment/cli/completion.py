"""Shell completion: what the arguments are. shtab writes the scripts, and is imported only then."""

import argparse
from collections.abc import Sequence
from typing import Any, cast

SHELLS = ("bash", "zsh", "tcsh", "fish", "powershell")
# By an argument's name in the help; the settings of serve all have the same one there.
_BY_METAVAR = {"FILE": "FILE", "PATH": "FILE", "BUNDLE": "DIRECTORY", "FOLDERS": "DIRECTORY"}
_BY_SETTING = {
    **dict.fromkeys(("admin_tokens", "auth_tokens", "tls_cert_file", "tls_key_file", "tls_client_ca_file"), "FILE"),
    **dict.fromkeys(("bundles", "cache_dir", "journal"), "DIRECTORY"),
}
# Nothing to offer. Without an action zsh lists the one option that matches, but does not write it.
_NOTHING = {"zsh": "()"}


class PrintCompletion(argparse.Action):
    """Prints the script that completes the commands of a parser in a shell, and exits."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002  # argparse's signature, as are the two below
        values: str | Sequence[Any] | None,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        """Raises ModuleNotFoundError if shtab is not installed."""
        import shtab  # noqa: PLC0415  # see the module

        _mark(parser, {"FILE": shtab.FILE, "DIRECTORY": shtab.DIRECTORY})
        print(shtab.complete(parser, str(values)))
        parser.exit(0)


def _mark(parser: argparse.ArgumentParser, kinds: dict[str, Any]) -> None:  # Any: shtab's, by shell
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in cast(dict[str, argparse.ArgumentParser], action.choices).values():
                _mark(command, kinds)
        elif found := _BY_METAVAR.get(str(action.metavar)) or _BY_SETTING.get(action.dest):
            action.complete = kinds[found]  # type: ignore[attr-defined]  # shtab reads it
        elif not action.option_strings and action.choices is None:
            action.complete = _NOTHING  # type: ignore[attr-defined]  # as above
