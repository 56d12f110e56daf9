"""A sentiment classification service over gRPC, its client and its command line.

``from sentiment import Local`` runs a bundle in this process. It is imported when it is asked for: the client needs no model runtime.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sentiment.local import Local

__all__ = ["Local"]


def __getattr__(name: str) -> object:
    if name != "Local":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from sentiment.local import Local  # noqa: PLC0415  # as said above
    except ModuleNotFoundError as error:
        from sentiment.extras import SERVES, to_install  # noqa: PLC0415  # as said above

        if to_install(error) is None:
            raise
        raise ModuleNotFoundError(f"Local needs {error.name}, which is not installed: {SERVES}", name=error.name) from error
    return Local
