"""The examples in the docstrings of the client do what they show, against real servers."""

import ast
import asyncio
import doctest
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import pandas as pd
import pytest

import sentiment.client
from sentiment.client import AsyncClient, Client
from sentiment.client.explanations import WordGeometry
from sentiment.client.frames import Table
from sentiment.model.bundle import CHECKOUT_BUNDLES
from tests.conftest import RunningServer

PUBLIC = {name: getattr(sentiment.client, name) for name in sentiment.client.__all__} | {"Table": Table}


def parts(found: Any) -> list[Any]:
    """A class with those of its bases that are ours and not public themselves."""
    bases = [base for base in getattr(found, "__mro__", ()) if base.__module__.startswith("sentiment.") and base not in PUBLIC.values()]
    return [found, *(base for base in bases if base is not found)]


EXAMPLES = [
    test
    for name, found in {**PUBLIC, "WordGeometry": WordGeometry}.items()
    if inspect.isclass(found) or inspect.isfunction(found)
    for part in parts(found)
    for test in doctest.DocTestFinder(exclude_empty=True).find(part, name, module=False, globs={})
    if test.examples
]
# Examples that name this client speak to the bundle of the checkout: the tiny one has no attention.
ENGLISH = "english."


@contextmanager
def awaiting(monkeypatch: pytest.MonkeyPatch, runner: asyncio.Runner) -> Iterator[None]:
    """Run examples with ``await``, as IPython and ``python -m asyncio`` do."""

    def run(code: CodeType, globs: dict[str, Any]) -> None:
        outcome = eval(code, globs)
        if inspect.iscoroutine(outcome):
            runner.run(outcome)

    with monkeypatch.context() as patch:
        patch.setattr(doctest, "exec", run, raising=False)
        patch.setattr(doctest, "_extract_future_flags", lambda _: ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        yield


@pytest.mark.parametrize("test", EXAMPLES, ids=lambda test: test.name)
def test_an_example_gives_what_it_shows(
    test: doctest.DocTest, documented: RunningServer, start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    for example in test.examples:
        example.source = example.source.replace("127.0.0.1:50051", documented.target)
    asynchronous = test.name.startswith("AsyncClient")
    with asyncio.Runner() as runner, Client(documented.target) as blocking:
        client: Any = runner.run(made(documented.target)) if asynchronous else blocking
        frame = pd.DataFrame({"text": ["a good film", "awful"]}, index=[7, 9])
        test.globs = {**PUBLIC, "client": client, "frame": frame}
        if any(ENGLISH in example.source for example in test.examples):
            english = start(bundles=(CHECKOUT_BUNDLES,), model="english", deadline_max_s=300.0).client()
            # A busy machine takes longer than the client's default.
            monkeypatch.setattr(english, "explain", partial(english.explain, timeout_s=300))
            test.globs["english"] = english
        said: list[str] = []

        with awaiting(monkeypatch, runner):
            failed, tried = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST).run(test, out=said.append)

        if asynchronous:
            runner.run(client.close())

    assert (failed, tried) == (0, len(test.examples)), "".join(said)


async def made(target: str) -> AsyncClient:
    return AsyncClient(target)


def test_every_call_and_table_has_an_example() -> None:
    shown = {test.name for test in EXAMPLES}
    promised = {
        f"{name}.{method}"
        for name in ("AsyncClient", "Client", "Explanation", "Results", "Table")
        for part in parts(PUBLIC[name])
        for method, found in vars(part).items()
        if inspect.isfunction(found) and not method.startswith("_") and method != "close"
    }

    assert promised - shown == set()


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(sentiment.client.__file__).parents[1] / "py.typed").is_file()
