"""``sentiment --version``."""

import argparse
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import Any

from sentiment.cli.arguments import bundles_of

RUNTIMES = ("onnxruntime", "onnxruntime-gpu")


class ShowVersions(argparse.Action):
    """Print the version of this package and, in a second line, those of what it runs with; then exit. Imports no runtime."""

    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:  # noqa: A002, ARG002  # argparse's names
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:  # Any: argparse's
        """Print and exit."""
        print(f"{parser.prog} {version('sentiment-service')}\n{_around()}")
        parser.exit()


def _around() -> str:
    from sentiment.model.bundle import bundle_roots, bundles_in  # noqa: PLC0415  # other commands do not need it

    bundles = ", ".join(bundles_in(bundle_roots(bundles_of()))) or "none"
    return f"Python {python_version()}, {', '.join(_runtimes()) or 'no onnxruntime'}, bundles: {bundles}"


def _runtimes() -> Iterator[str]:
    for name in RUNTIMES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
