"""The progress of long work on a terminal or in a notebook, by tqdm where that is installed."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sentiment.client.packages import imported
from sentiment.errors import SentimentError

# Nothing is shown unasked for work that ends sooner.
AFTER_S = 2.0


@contextmanager
def counting(count: int | None, progress: bool | None, what: str = "classify") -> Iterator[Callable[[object], None]]:
    """Show how many results there are and how many of them failed. Gives a function that counts a result.

    ``count``: of all; None: unknown. ``progress``: None: on a terminal or in a notebook, if tqdm is installed, after AFTER_S seconds.
    ``what``: the bar's name.

    Raises:
        ModuleNotFoundError: ``progress`` is True and tqdm is not installed.
    """
    bar = _bar(count, progress, what)
    if bar is None:
        yield lambda _: None
        return
    failed = 0

    def add(result: object) -> None:
        nonlocal failed
        if isinstance(result, SentimentError):
            failed += 1
            bar.set_postfix(failed=failed, refresh=False)
        bar.update()

    with bar:
        yield add


def _bar(count: int | None, progress: bool | None, what: str) -> Any:  # a bar of tqdm, or None
    if progress is False or (progress is None and not _watched()):
        return None
    try:
        with warnings.catch_warnings():
            # In a notebook without ipywidgets tqdm warns and shows its bar as text.
            warnings.simplefilter("ignore")
            tqdm = imported("tqdm.auto", "progress=True").tqdm
    except ModuleNotFoundError:
        if progress:
            raise
        return None
    return tqdm(total=count, desc=what, unit=" texts", delay=0 if progress else AFTER_S)


def _watched() -> bool:
    """Whether somebody sees the bar: standard error is a terminal, or this is a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # Standard error is None in a program without a console.
    return "IPKernelApp" in getattr(shell, "config", ()) or (sys.stderr is not None and sys.stderr.isatty())
