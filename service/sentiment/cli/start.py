"""The console script. Where the packages of their extra are missing, they say which to install: the parser itself needs some of them."""

import sys
from importlib import import_module

from sentiment.extras import to_install

WRONG_USAGE = 2


def sentiment() -> int:
    """Run ``sentiment``."""
    return run("sentiment.cli.main")


def run(command: str) -> int:
    """Run ``main`` of a module and return its exit code."""
    try:
        main = import_module(command).main
    except ModuleNotFoundError as error:
        if (message := to_install(error)) is None:
            raise
        sys.stderr.write(f"error: {message}\n")
        return WRONG_USAGE
    return int(main())
