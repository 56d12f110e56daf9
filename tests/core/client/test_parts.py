"""Sentences, targets and mixed texts as callers ask for them and get them, from a server that answers by a rule.

The module also runs on Windows, where the server cannot (``client_only``): neither it nor what it imports needs the server or ``conftest``.
"""

import copy
import pickle
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sentiment.client import AsyncClient, CallFailed, Classification, Client, Results, Targeted
from sentiment.client.calls import chunks
from sentiment.client.chunks import CHUNK_BYTES
from sentiment.client.columns import AsyncColumn, Column, Unusable
from sentiment.client.frames import ROWS_SHOWN
from tests.core.client.parts import LATE, UNCHECKED, serving

pytestmark = pytest.mark.client_only

TEXT = "Good food \U0001f600, bad service. The caf\u00e9 is open. A good view."
INDEX = ["a", "b", "c", "d"]
TEXTS = pd.Series(["Good. Bad.", "bad food", None, "a good battery"], index=INDEX)
TARGETS: list[Any] = [["food"], [], None, ["battery", "screen"]]
COLUMNS: dict[str, Any] = {
    "list": TARGETS,
    "generator": (value for value in TARGETS),
    "pandas": pd.Series(TARGETS, index=INDEX),
    "NumPy": np.array([None if value is None else np.array(value, object) for value in TARGETS], object),
    "polars": pl.Series(TARGETS),
    "Arrow": pa.array(TARGETS, pa.list_(pa.string())),
}


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def client(target: str) -> Iterator[Client]:
    with Client(target, options=UNCHECKED) as made:
        yield made


@pytest.fixture(scope="module")
def results(client: Client) -> Results:
    return client.classify(TEXTS, sentences=True, targets=COLUMNS["pandas"])


def answers(results: Any) -> list[Classification]:
    found = list(results)
    assert all(isinstance(one, Classification) for one in found)
    return found


def test_an_answer_has_its_sentences_with_their_places_and_its_targets_by_name(client: Client) -> None:
    answer = client.classify(TEXT, sentences=True, targets=["food", "View", "battery"])

    assert (answer.label, answer.mixed, answer.language_suspect, answer.sentences_total) == ("positive", True, True, 3)
    said = [(one.text, one.label, one.mixed) for one in answer.sentences]
    assert said == [
        ("Good food \U0001f600, bad service.", "positive", True),
        ("The caf\u00e9 is open.", "neutral", False),
        ("A good view.", "positive", False),
    ]
    for one in answer.sentences:
        assert TEXT[one.start : one.end] == one.text == TEXT.encode()[slice(*one.span.utf8)].decode()
        assert TEXT.encode("utf-16-le")[2 * one.span.utf16[0] : 2 * one.span.utf16[1]].decode("utf-16-le") == one.text
    told = {name: (one.target, one.label, one.named, one.start, one.end, one.tokens) for name, one in answer.targets.items()}
    assert told == {
        "food": ("food", "positive", True, 5, 9, 9),
        "View": ("View", "positive", True, 51, 55, 9),
        "battery": ("battery", "neutral", False, None, None, 0),
    }
    assert answer.targets["battery"].scores == {"negative": 0.0, "positive": 0.0, "neutral": 1.0}


def test_an_answer_has_neither_unless_they_are_asked_for(client: Client) -> None:
    answer = client.classify(TEXT)

    assert (answer.sentences, answer.sentences_total, dict(answer.targets)) == ((), 0, {})
    assert {"sentences", "sentences_total", "targets"}.isdisjoint(answer.to_json(TEXT))


async def test_each_way_to_ask_gives_the_same(target: str, client: Client) -> None:
    expected = [client.classify(text, sentences=True, targets=["food"]) for text in (TEXT, "bad food")]
    asked: dict[str, Any] = {"sentences": True, "targets": ["food"]}

    async def arriving() -> AsyncIterator[str]:
        yield TEXT
        yield "bad food"

    async def items() -> AsyncIterator[tuple[str, Targeted | str]]:
        yield "0", TEXT
        yield "1", Targeted("bad food", ["food"])

    async with AsyncClient(target, options=UNCHECKED) as later:
        found = [
            client.classify([TEXT, "bad food"], **asked),
            client.classify_batch([TEXT, "bad food"], **asked),
            client.classify_all([TEXT, "bad food"], **asked),
            client.classify([Targeted(TEXT, ("food",)), Targeted("bad food", ["food"])], sentences=True, targets=["battery"]),
            await later.classify(arriving(), **asked),
            [result for _, result in sorted([pair async for pair in later.classify_stream(items(), **asked)])],
        ]

    for each in found:
        assert answers(each) == expected


@pytest.mark.parametrize(("asked", "what"), [({"sentences": True}, "sentences"), ({"targets": ["food"]}, "targets")], ids=str)
async def test_a_server_that_ignores_parts_is_said_to_be_older(asked: dict[str, Any], what: str) -> None:
    async def items() -> AsyncIterator[tuple[str, str]]:
        yield "0", TEXT

    with serving(able=False) as target, Client(target, options=UNCHECKED) as client:
        async with AsyncClient(target, options=UNCHECKED) as later:
            said = f"the server answers no {what}: it is of a version before 0.2"
            with pytest.raises(CallFailed, match=said):
                client.classify(TEXT, **asked)
            found = [
                *client.classify([TEXT, TEXT], **asked),
                *client.classify_batch([TEXT], **asked),
                *[result async for _, result in later.classify_stream(items(), **asked)],
            ]
        whole = client.classify(TEXT)

    assert [str(one) for one in found] == [f"UNIMPLEMENTED: {said}; ask without them"] * 4
    assert whole.label == "positive"


@pytest.mark.parametrize(
    ("texts", "asked"),
    [
        ([f"{LATE}good", "bad"], {"sentences": True}),
        ([f"{LATE}good", "bad"], {"targets": ["food"]}),
        ([f"{LATE}good", Targeted("bad", ["food"])], {}),
        ([Targeted(f"{LATE}good", ["food"]), "bad"], {}),
    ],
    ids=["sentences", "targets", "later targets", "earlier targets"],
)
async def test_parts_of_two_items_under_way_with_one_id_are_refused(target: str, texts: list[Any], asked: dict[str, Any]) -> None:
    async def items() -> AsyncIterator[tuple[str, Any]]:
        for text in texts:
            yield "0", text

    async with AsyncClient(target, options=UNCHECKED) as client:
        with pytest.raises(ValueError, match="the id '0' is that of an item under way"):
            async for _ in client.classify_stream(items(), **asked):
                pass


async def test_items_under_way_without_parts_may_have_one_id(target: str) -> None:
    async def items() -> AsyncIterator[tuple[str, str]]:
        for text in ("good", "bad"):
            yield "0", f"{LATE}{text}"

    async with AsyncClient(target, options=UNCHECKED) as client:
        found = [result async for _, result in client.classify_stream(items())]

    assert [one.label for one in answers(found)] == ["positive", "negative"]


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_a_column_gives_each_text_its_own_targets(client: Client, column: Any) -> None:
    texts = TEXTS if isinstance(column, pd.Series) else TEXTS.to_list()

    results = client.classify(texts, targets=column)

    assert [list(one.targets) if isinstance(one, Classification) else None for one in results] == [
        ["food"],
        [],
        None,
        ["battery", "screen"],
    ]


@pytest.mark.parametrize(
    ("targets", "error", "says"),
    [
        ("battery", TypeError, r"targets must be a list of strings, such as \['battery'\], got one str"),
        ([["food"]], ValueError, "texts has 2 values and targets has 1"),
        (iter([["food"]]), ValueError, "targets has 1 values and texts has more"),
        (3, TypeError, "targets must be an iterable of texts, got int"),
    ],
    ids=["a text", "a column too short", "an iterator too short", "a number"],
)
def test_targets_that_belong_to_no_text_are_refused(client: Client, targets: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        client.classify(["good", "bad"], targets=targets)


async def test_targets_of_one_text_and_of_a_stream_are_strings(client: Client, target: str) -> None:
    async def items() -> AsyncIterator[tuple[str, str]]:
        yield "0", "good"

    with pytest.raises(TypeError, match="a column of them stands beside a column of texts"):
        client.classify("good", targets=[["battery"]])
    async with AsyncClient(target, options=UNCHECKED) as later:
        with pytest.raises(TypeError, match="a column of them stands beside a column of texts"):
            async for _ in later.classify_stream(items(), targets=[["battery"]]):  # type: ignore[list-item]  # what is tested
                pass
    with pytest.raises(TypeError, match="make that give Targeted texts"):
        AsyncColumn(items(), targets=[["battery"]])  # type: ignore[arg-type]  # of pairs, which are not read


@pytest.mark.parametrize(
    "targets",
    [(name for name in ("food", "view")), {"food": 1, "view": 2}.keys(), np.array(["food", "view"]), pd.Series(["food", "view"])],
    ids=["generator", "keys", "NumPy", "pandas"],
)
def test_targets_of_one_text_are_any_strings(client: Client, targets: Any) -> None:
    assert list(client.classify(TEXT, targets=targets).targets) == ["food", "view"]


@pytest.mark.parametrize("targets", [{"food": 1, "view": 2}.keys(), np.array(["food", "view"]), pa.array(["food", "view"])], ids=type)
def test_a_collection_of_strings_is_asked_of_every_text(client: Client, targets: Any) -> None:
    found = answers(client.classify([TEXT, "bad", "good"], targets=targets))

    assert [list(one.targets) for one in found] == [["food", "view"]] * 3


def test_a_table_is_not_a_list_of_targets(client: Client) -> None:
    with pytest.raises(TypeError, match="targets must be one column"):
        client.classify("good", targets=pd.DataFrame({"food": [1]}))


def test_a_value_that_is_not_a_list_of_targets_fails_in_its_place() -> None:
    values = ["battery", ["battery"], [3], None, float("nan"), 7]

    items = list(Column(["a"] * 6, targets=values).items)  # type: ignore[arg-type]  # what is tested

    assert items == [
        Unusable("must be a list of strings, got str", "targets"),
        Targeted("a", ("battery",)),
        Unusable("must be strings, got int", "targets"),
        "a",
        "a",
        Unusable("must be a list of strings, got int", "targets"),
    ]


def test_a_target_that_is_not_unicode_is_named_by_its_position(client: Client) -> None:
    (result,) = client.classify([Targeted("good", ["battery", "caf\udce9"])])

    assert isinstance(result, CallFailed)
    assert [violation.field for violation in result.violations] == ["targets[1]"]


def test_targets_count_among_the_bytes_of_a_call() -> None:
    items = [Targeted("a", ["b" * (CHUNK_BYTES // 2)]) for _ in range(3)]

    assert [len(call) for call in chunks(items)] == [1, 1, 1]


def test_tables_have_a_row_for_each_sentence_and_target_with_the_index_of_their_text(results: Results) -> None:
    sentences, targets = results.sentences.to_pandas(), results.targets.to_pandas()

    assert list(sentences.index) == ["a", "a", "b", "d"]
    assert list(targets.index) == ["a", "d", "d"]
    assert list(sentences["text"]) == ["Good.", "Bad.", "bad food", "a good battery"]
    assert list(sentences["label"]) == ["positive", "negative", "negative", "positive"]
    assert sentences[["place", "start", "end"]].to_numpy().tolist() == [[0, 0, 5], [0, 6, 10], [1, 0, 8], [3, 0, 14]]
    assert list(targets["target"]) == ["food", "battery", "screen"]
    assert list(targets["named"]) == [False, True, False]
    assert targets["start"].isna().tolist() == [True, False, True]
    joined = TEXTS.to_frame("whole").join(targets[["target", "label"]])
    assert joined.loc["d", "target"].to_list() == ["battery", "screen"]


def test_tables_of_parts_have_the_same_columns_everywhere_and_their_types_if_nothing_is_answered(client: Client, results: Results) -> None:
    empty = client.classify([None])

    for some, none in ((results.sentences, empty.sentences), (results.targets, empty.targets)):
        assert some.to_polars().to_dict(as_series=False) == some.to_arrow().to_pydict() == some.to_dict()
        assert len(none) == 0
        assert some.to_polars().schema == none.to_polars().schema
        assert some.to_arrow().schema == none.to_arrow().schema
        assert some.to_pandas().dtypes.to_list() == none.to_pandas().dtypes.to_list()
    assert list(results.targets.to_dict())[:5] == ["place", "target", "named", "start", "end"]


def test_without_a_series_a_part_has_the_place_of_its_text(client: Client) -> None:
    frame = client.classify(["good", None, "Bad. Good."], sentences=True).sentences.to_pandas()

    assert list(frame.index) == list(frame["place"]) == [0, 2, 2]


def test_answers_with_parts_can_be_pickled_and_copied(client: Client) -> None:
    answer = client.classify(TEXT, sentences=True, targets=["food"])

    assert pickle.loads(pickle.dumps(answer)) == copy.deepcopy(answer) == answer


def test_an_answer_shows_its_parts_and_what_is_to_be_known_of_it(client: Client) -> None:
    answer = client.classify("Good, bad. " + "Caf\u00e9. " * 3, sentences=True, targets=["battery"])

    said, page = repr(answer), answer._repr_html_()

    assert "mixed=True, language_suspect=True, sentences=[Sentence('Good, bad.', label='positive', score=0.7500, mixed=True), " in said
    assert ", ... 1 more], targets={'battery': TargetAnswer('battery', label='neutral', score=1.0000, named=False)})" in said
    assert "(7 tokens, mixed, another language?; english/2)" in page
    assert "<td>Good, bad.</td><td>positive, mixed</td><td>0.7500</td>" in page
    assert "<td>battery</td><td>neutral, not named</td><td>1.0000</td>" in page


def test_sentences_without_an_answer_are_said(client: Client) -> None:
    answer = client.classify("Good. " * 6, sentences=True)

    assert (len(answer.sentences), answer.sentences_total) == (4, 6)
    assert "<p>and 2 more sentences without an answer</p>" in answer._repr_html_()
    assert ", ... at least 1,021 more]" in repr(replace(answer, sentences_total=1024))


def test_nothing_of_a_text_or_target_is_read_as_html(client: Client) -> None:
    hostile = "<script>alert(1)</script>"
    results = client.classify([hostile], sentences=True, targets=[hostile])

    for page in (answers(results)[0]._repr_html_(), results.sentences._repr_html_(), results.targets._repr_html_()):
        assert "<script" not in page
        assert "&lt;script&gt;" in page


def test_tables_of_parts_show_a_summary_and_their_first_rows(client: Client, results: Results) -> None:
    many = client.classify(["Good. Bad."] * ROWS_SHOWN, sentences=True).sentences

    assert repr(results.sentences) == "Table(4 sentences of 3 texts: 2 negative, 2 positive)"
    assert repr(results.targets) == "Table(3 targets of 2 texts: 1 positive, 2 neutral)"
    assert repr(client.classify(["good"]).targets) == "Table(no targets)"
    assert many._repr_html_().count("<tr>") == ROWS_SHOWN + 1
    assert f"and {ROWS_SHOWN} more" in many._repr_html_()
