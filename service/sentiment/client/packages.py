"""Packages that the client uses where they are installed, and does without elsewhere."""

from importlib import import_module
from typing import Any


def imported(module: str, needed_by: str) -> Any:  # a module that is not a dependency
    """Import a module.

    Raises:
        ModuleNotFoundError: its package is not installed; the message says who needs it and how to install it.
    """
    package = module.partition(".")[0]
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        # What an installed package lacks is another error.
        if error.name != package:
            raise
        raise ModuleNotFoundError(f"{needed_by} needs {package}, which is not installed: pip install {package}", name=package) from None
    return import_module(module)
