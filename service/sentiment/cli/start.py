"""The console script. Where the packages of their extra are missing, they say which to install: the parser itself needs some of them."""

from importlib import import_module

from sentiment.cli.exit_codes import exit_code


def sentiment() -> int:
    """Run ``sentiment``."""
    return run("sentiment.cli.main")


def run(command: str) -> int:
    """Run ``main`` of a module and return its exit code."""
    return exit_code(lambda: int(import_module(command).main()))
