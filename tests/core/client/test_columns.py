"""Columns of pandas, polars, NumPy and Arrow as the texts of a call, and results as tables, with a real server."""

import asyncio
import copy
import itertools
import pickle
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sentiment.client import AsyncClient, CallFailed, Classification, Client, ExplainOptions, ModelId, Results, Timing
from sentiment.client.chunks import CALLS_AHEAD, CHUNK
from sentiment.client.columns import ARROW_ROWS, VALUES_A_TURN, AsyncColumn, Column, Unusable
from tests.conftest import NO_RETRIES, RunningServer

TEXTS = ["good", None, "bad", ""]
COLUMNS: dict[str, Any] = {
    "list": TEXTS,
    "generator": (text for text in TEXTS),
    "NumPy": np.array(TEXTS, object),
    "pandas, str": pd.Series(TEXTS),
    "pandas, object": pd.Series(TEXTS, dtype=object),
    "pandas, nullable": pd.Series(TEXTS, dtype="string"),
    "pandas, Arrow": pd.Series(TEXTS, dtype=pd.ArrowDtype(pa.string())),
    "pandas, category": pd.Series(TEXTS, dtype="category"),
    "polars": pl.Series(TEXTS),
    "polars, category": pl.Series(TEXTS, dtype=pl.Categorical),
    "Arrow": pa.array(TEXTS),
    "Arrow, chunked": pa.chunked_array([TEXTS[:1], TEXTS[1:]]),
    "Arrow, dictionary": pa.array(TEXTS).dictionary_encode(),
}
EMPTY = "INVALID_ARGUMENT: text: has 0 characters and none but white space; at least one other is needed"
SIGMOID_2 = pytest.approx(0.8808, abs=1e-4)
INDEX = ["a", "b", "c", "d"]
NAMES = [
    "label",
    "score",
    "abstain",
    "mixed",
    "score_negative",
    "score_positive",
    "tokens",
    "truncated",
    "language_suspect",
    "early",
    "error",
]


@pytest.fixture(scope="module")
def results(client: Client) -> Results:
    return client.classify(pd.Series(TEXTS, index=INDEX))


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_every_kind_of_column_is_answered_and_no_missing_value_is_read_as_a_text(client: Client, column: Any) -> None:
    results = client.classify(column)

    assert [result.label if isinstance(result, Classification) else None for result in results] == ["positive", None, "negative", None]
    assert str(results.failures[1]).startswith("INVALID_ARGUMENT: text: is missing (")
    assert str(results.failures[3]) == EMPTY


async def test_the_asynchronous_client_gives_the_same(server: RunningServer, results: Results) -> None:
    async def arriving() -> AsyncIterator[str | None]:
        for text in TEXTS:
            yield text

    async with AsyncClient(server.target) as client:
        of_series = await client.classify(pd.Series(TEXTS, index=INDEX))
        of_source = await client.classify(arriving())

    pd.testing.assert_frame_equal(of_series.to_pandas(), results.to_pandas())
    assert of_source.to_dict() == results.to_dict() | {"error": of_source.to_dict()["error"]}
    assert of_source.to_dict()["error"] == [None, "INVALID_ARGUMENT: text: is missing (None)", None, EMPTY]


def test_a_pandas_table_has_the_index_of_the_series_and_a_column_for_each_score(results: Results) -> None:
    frame = results.to_pandas()

    assert list(frame.index) == INDEX
    assert list(frame) == NAMES
    assert [str(kind) for kind in frame.dtypes] == [
        "string",
        "float64",
        "boolean",
        "boolean",
        "float64",
        "float64",
        "Int32",
        "boolean",
        "boolean",
        "boolean",
        "string",
    ]
    assert frame.loc["c", ["label", "score", "score_negative", "tokens", "truncated"]].to_list() == [
        "negative",
        SIGMOID_2,
        SIGMOID_2,
        3,
        False,
    ]
    assert list(frame["score"].isna()) == list(frame["label"].isna()) == [False, True, False, True]
    assert frame.loc["d", "error"] == EMPTY


def test_tables_of_polars_and_arrow_have_the_same_columns_and_nulls(results: Results) -> None:
    expected = results.to_dict()

    assert results.to_polars().to_dict(as_series=False) == expected
    assert results.to_arrow().to_pydict() == expected
    assert list(expected) == NAMES


def test_columns_keep_their_types_if_nothing_is_answered(client: Client) -> None:
    """So that parts of a large table can be put together."""
    answered, empty, failed = client.classify(["good"]), client.classify([]), client.classify([None, float("nan")])

    assert [len(part) for part in (answered, empty, failed)] == [1, 0, 2]
    for table in (Results.to_pandas, Results.to_polars, Results.to_arrow):
        kinds = [getattr(table(part), "dtypes" if table is not Results.to_arrow else "schema") for part in (answered, empty, failed)]
        assert list(kinds[0]) == list(kinds[1]) == list(kinds[2])
    assert empty.labels == ("negative", "positive")


def test_results_are_a_sequence_whose_slices_keep_the_index(results: Results) -> None:
    assert len(results) == 4
    assert isinstance(results[-1], CallFailed)
    assert results == results[:]
    assert list(results[1:3].to_pandas().index) == ["b", "c"]
    assert results.models[0].name == "tiny"
    assert repr(results) == "Results(4 texts: 1 negative, 1 positive, 2 failed)"


def test_results_can_demand_that_every_text_has_an_answer(client: Client) -> None:
    whole, partly = client.classify(["good", "bad"]), client.classify(["good", "", None])

    assert (whole.ok, whole.raise_on_error()) == (True, whole)
    assert not partly.ok
    with pytest.raises(CallFailed, match=r"^INVALID_ARGUMENT: 2 of 3 texts have no answer; text 1: text: has 0 characters") as failed:
        partly.raise_on_error()
    assert failed.value.violations == partly.failures[1].violations


def test_pairs_come_from_two_columns_by_position(start: Callable[..., RunningServer]) -> None:
    frame = pd.DataFrame({"text": ["good", "bad", None], "pair": ["bad", "bad", "bad"]}, index=[3, 4, 5])
    with start(model="paired").client() as client:
        together = client.classify(frame["text"], frame["pair"])
        alone = [client.classify("good", "bad"), client.classify("bad", "bad")]

    assert [result.scores for result in together.answered.values()] == [answer.scores for answer in alone]
    assert list(together.failures) == [2]
    with pytest.raises(ValueError, match="texts has 3 values and text_pair has 2"):
        Column(frame["text"], ["bad", "bad"])
    with pytest.raises(ValueError, match="must have the same index"):
        Column(frame["text"], frame["pair"].sort_index(ascending=False))
    with pytest.raises(ValueError, match="texts has 2 values and text_pair has more"):
        list(Column(iter(["a", "b"]), iter(["a", "b", "c"])).items)
    with pytest.raises(ValueError, match="text_pair has 1 values and texts has more"):
        list(Column(["a", "b"], iter(["a"])).items)


@pytest.mark.parametrize(
    "wrong",
    [
        b"good", {"good": 1}, 3, pd.DataFrame({"a": ["good"]}), pl.DataFrame({"a": ["good"]}), pl.LazyFrame({"a": ["good"]}),
        pa.table({"a": ["good"]}),
    ],
    ids=lambda wrong: f"{type(wrong).__module__}.{type(wrong).__name__}",
)  # fmt: skip
def test_an_argument_that_is_not_a_column_of_texts_is_a_type_error(client: Client, wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"texts must be .*{type(wrong).__name__}"):
        client.classify(wrong)
    with pytest.raises(TypeError, match="got one str"):
        client.classify_all("good")


def test_errors_name_values_that_are_not_texts_by_type_only() -> None:
    values = ["good", 3, b"bad", ("good", "bad"), ["good", "bad"], ("good", None), ("good",), pd.NaT, pd.NA, np.float64("nan")]

    items = list(Column(values).items)  # type: ignore[arg-type]

    assert items == [
        "good",
        Unusable("must be a string, got int"),
        Unusable("must be a string, got bytes"),
        ("good", "bad"),
        ("good", "bad"),
        Unusable("is missing (None)", "text_pair"),
        Unusable("must be a string, got tuple"),
        Unusable("is missing (NaT)"),
        Unusable("is missing (<NA>)"),
        Unusable("is missing (nan)"),
    ]


def test_a_long_arrow_column_is_read_in_parts() -> None:
    texts = [f"w{number}" for number in range(2 * ARROW_ROWS + 3)]
    column = Column(pa.chunked_array([texts[:5], texts[5:]]))

    assert list(column.items) == texts
    assert column.count == len(texts)


def test_options_of_one_text_are_refused_with_many(client: Client) -> None:
    with pytest.raises(ValueError, match="request_id is for one text"):
        client.classify(["good"], request_id="1")  # type: ignore[call-overload]


def test_without_a_server_many_texts_fail_as_one_does() -> None:
    with Client("127.0.0.1:1", timeout_s=0.3, options=NO_RETRIES) as client, pytest.raises(CallFailed) as caught:
        client.classify(["good"] * 1000)

    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


def test_a_server_lost_on_the_way_costs_no_answer_that_came(start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """All texts that are left have the error at once: they are not sent, which would take seconds for each call."""
    monkeypatch.setattr("sentiment.client.calls.pause_s", lambda *_: 0.0)
    count = CHUNK * CALLS_AHEAD * 20

    def texts(server: RunningServer) -> Iterator[str]:
        yield from itertools.repeat("good", CHUNK * (CALLS_AHEAD + 2))
        server.stop()
        yield from itertools.repeat("good", count - CHUNK * (CALLS_AHEAD + 2))

    server = start()
    with server.client() as client:
        results = client.classify(texts(server))

    assert len(results) == count
    assert len(results.answered) >= CHUNK
    assert {error.code for error in results.failures.values()} == {grpc.StatusCode.UNAVAILABLE}
    # A text that was sent has an error of its own call.
    assert len({id(error) for error in results.failures.values()}) == 1


async def test_a_long_blocking_source_leaves_the_event_loop_its_turns() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    taken = await AsyncColumn(f"w{number}" for number in range(10 * VALUES_A_TURN)).read_to_end()
    counting.cancel()

    assert taken == 10 * VALUES_A_TURN
    assert turns >= 9


def test_results_can_be_pickled_and_copied(client: Client, results: Results) -> None:
    failed = client.classify([""])[0]
    explained = client.classify("a good film", explain=ExplainOptions(methods=["occlusion"]), timeout_s=60)

    for copied in (pickle.loads(pickle.dumps((results, failed, explained))), copy.deepcopy((results, failed, explained))):
        copy_of_results, copy_of_failed, copy_of_explained = copied
        pd.testing.assert_frame_equal(copy_of_results.to_pandas(), results.to_pandas())
        assert copy_of_results[0] == results[0]
        assert vars(copy_of_failed) == vars(failed)
        assert str(copy_of_failed) == str(failed)
        assert copy_of_explained.scores == explained.scores
        assert copy_of_explained.explanation.to_json() == explained.explanation.to_json()


@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
def test_a_missing_package_is_named_with_the_command_that_brings_it(
    results: Results, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ModuleNotFoundError, match=f"needs {package}, which is not installed: pip install {package}$"):
        {"pandas": results.to_pandas, "polars": results.to_polars, "pyarrow": results.to_arrow}[package]()


def test_a_label_may_have_the_name_of_a_column() -> None:
    timing = Timing(0, 0, 0, 0, 1)
    answer = Classification("error", 1.0, {"error": 1.0, "label": 0.0}, False, ModelId("odd", 1, ""), 3, False, timing)

    row = {name: values[0] for name, values in Results([answer]).to_dict().items()}

    assert (row["label"], row["score_error"], row["score_label"], row["error"]) == ("error", 1.0, 0.0, None)
