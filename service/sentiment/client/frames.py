"""``Results``: the results of many texts, and the tables that they become, with a row for each text, sentence or target.

Imports no pandas, polars, pyarrow or grpc until asked for.
"""

import html
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, overload

from sentiment.client.model_id import ModelId
from sentiment.client.packages import imported
from sentiment.errors import SentimentError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from sentiment.client.results import CallFailed, Classification, Prediction, Result

# A label's scores are the column with this in front of the label, so no label collides with another column.
SCORE = "score_"
# Rows that a notebook shows.
ROWS_SHOWN = 10
# The types of columns; those of other names are scores.
STRINGS = ("text", "target", "label", "error")
BOOLEANS = ("named", "abstain", "mixed", "truncated", "language_suspect", "early")
INTEGERS = ("place", "start", "end", "tokens")
KINDS: Mapping[str, type] = dict.fromkeys(STRINGS, str) | dict.fromkeys(BOOLEANS, bool) | dict.fromkeys(INTEGERS, int)
# Columns that a notebook shows only if a row has something in them.
SELDOM = ("mixed", "language_suspect", "early", "error")

Columns = dict[str, list[Any]]  # each has values of its own kind


class Table:
    """Columns as lists, which become the columns of every kind of table.

    >>> client.classify(["A good film."], sentences=True).sentences
    Table(1 sentence of 1 text: 1 positive)
    """

    def __init__(self, columns: Columns, index: Any, summary: str) -> None:  # index: a pandas.Index
        """``index``: of the rows in pandas; None: positions from 0."""
        self._columns, self._index, self._summary = columns, index, summary

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __repr__(self) -> str:
        return f"Table({self._summary})"

    def _repr_html_(self) -> str:
        """The summary and the first rows, for notebooks. Colours are the notebook's own."""
        first = {name: values[:ROWS_SHOWN] for name, values in self._columns.items()}
        return _page(self._summary, first, self._index, len(self))

    def to_dict(self) -> Columns:
        """The columns as lists.

        >>> list(client.classify(["A good film."], sentences=True).sentences.to_dict())[:5]
        ['place', 'text', 'start', 'end', 'label']
        """
        return dict(self._columns)

    def to_pandas(self) -> "pd.DataFrame":
        """A pandas DataFrame. A row has the index of its text in the Series that the texts come from, else the place of its text.

        >>> client.classify(["A good film. It is awful."], sentences=True).sentences.to_pandas()[["text", "label"]]
                   text     label
        0  A good film.  positive
        0  It is awful.  negative

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        pandas = imported("pandas", "to_pandas")
        kinds = {str: "string", bool: "boolean", int: "Int32", float: "float64"}
        columns = {name: pandas.array(values, dtype=kinds[_kind(name)]) for name, values in self._columns.items()}
        frame: pd.DataFrame = pandas.DataFrame(columns, index=self._index)
        return frame

    def to_polars(self) -> "pl.DataFrame":
        """A polars DataFrame.

        >>> client.classify(["A good film."], sentences=True).sentences.to_polars()["label"].to_list()
        ['positive']

        Raises:
            ModuleNotFoundError: polars is not installed.
        """
        polars = imported("polars", "to_polars")
        kinds = {str: polars.String, bool: polars.Boolean, int: polars.Int32, float: polars.Float64}
        frame: pl.DataFrame = polars.DataFrame(self._columns, schema={name: kinds[_kind(name)] for name in self._columns})
        return frame

    def to_arrow(self) -> "pa.Table":
        """A pyarrow Table.

        >>> client.classify(["A good film."], sentences=True).sentences.to_arrow()["label"].to_pylist()
        ['positive']

        Raises:
            ModuleNotFoundError: pyarrow is not installed.
        """
        arrow = imported("pyarrow", "to_arrow")
        kinds = {str: arrow.string(), bool: arrow.bool_(), int: arrow.int32(), float: arrow.float64()}
        return arrow.table(self._columns, schema=arrow.schema({name: kinds[_kind(name)] for name in self._columns}))


class Results(Sequence["Result"]):
    """Results of many texts, in input order: each a ``Classification``, or the ``CallFailed`` of a text that has no answer.

    The texts are not kept, but for sentences. A result takes about 0.4 KB of memory, and so does each sentence or target.

    >>> results = client.classify(["a good film", "", None])
    >>> results
    Results(3 texts: 1 positive, 2 failed)
    >>> results[0].label
    'positive'
    >>> {place: error.message for place, error in results.failures.items()}
    {1: 'text: has 0 characters and none but white space; at least one other is needed', 2: 'text: is missing (None)'}
    """

    def __init__(self, results: "Iterable[Result]" = (), *, labels: Sequence[str] = (), index: Any = None) -> None:  # index: as in Table
        """Read all results.

        Args:
            results: in input order.
            labels: the model's labels, whose score columns are there even if no text has an answer.
            index: of the pandas Series that the texts come from; None: positions from 0. As long as ``results``.
        """
        self._results = tuple(results)
        self._labels = tuple(labels)
        self._index = index
        assert index is None or len(index) == len(self._results), "an index has one value per result"

    @overload
    def __getitem__(self, place: int) -> "Result": ...

    @overload
    def __getitem__(self, place: slice) -> "Results": ...

    def __getitem__(self, place: int | slice) -> "Result | Results":
        if isinstance(place, slice):
            index = None if self._index is None else self._index[place]
            return Results(self._results[place], labels=self._labels, index=index)
        return self._results[place]

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> "Iterator[Result]":
        return iter(self._results)

    def __eq__(self, other: object) -> bool:
        return self._results == other._results if isinstance(other, Results) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # like a list: results hold mappings

    def __repr__(self) -> str:
        return f"Results({self._summary()})"

    def _repr_html_(self) -> str:
        """A summary and the first results, for notebooks. Colours are the notebook's own."""
        return _page(self._summary(), self[:ROWS_SHOWN].to_dict(), self._index, len(self))

    @property
    def answered(self) -> "Mapping[int, Classification]":
        """The answers, by place from 0."""
        return MappingProxyType({place: result for place, result in enumerate(self._results) if not isinstance(result, SentimentError)})

    @property
    def failures(self) -> "Mapping[int, CallFailed]":
        """The errors of texts without an answer, by place from 0."""
        return MappingProxyType({place: result for place, result in enumerate(self._results) if isinstance(result, SentimentError)})

    @property
    def ok(self) -> bool:
        """Whether every text has an answer."""
        return not self.failures

    def raise_on_error(self) -> Self:
        """These results, if every text has an answer.

        >>> client.classify(["a good film", "awful"]).raise_on_error().to_dict()["label"]
        ['positive', 'negative']

        Raises:
            CallFailed: that of the first text without an answer; its message says how many there are, and the place, from 0.
        """
        failures = self.failures
        if not failures:
            return self
        place, first = next(iter(failures.items()))
        said = f"{len(failures):,} of {len(self):,} texts have no answer; text {place}: {first.message}"
        raise type(first)(first.code, said, first.violations, first.retry_after_s, first.request_id)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the model's order."""
        seen = dict.fromkeys(self._labels)
        for result in self.answered.values():
            seen.update(dict.fromkeys(result.scores))
        return tuple(seen)

    @property
    def models(self) -> tuple[ModelId, ...]:
        """The models that answered, in order of their first answer: more than one if the server changed its model meanwhile."""
        return tuple(dict.fromkeys(result.model for result in self.answered.values()))

    @property
    def sentences(self) -> Table:
        """A table with a row for each sentence that has an answer, if they were requested.

        Its columns are place (of the text in these results, from 0), text, start and end (of the sentence, in code points of the text),
        label, score, abstain, mixed, ``score_LABEL`` for each label, tokens and truncated.
        """
        found = [(place, part) for place, answer in self.answered.items() for part in answer.sentences]
        return self._parts("sentence", found, ("text", "start", "end"), ("tokens", "truncated"))

    @property
    def targets(self) -> Table:
        """A table with a row for each target of each text, if they were requested.

        Its columns are place (of the text in these results, from 0), target, named, start and end (of the mention, in code points of the
        text), label, score, abstain, mixed, ``score_LABEL`` for each label and tokens.
        """
        found = [(place, part) for place, answer in self.answered.items() for part in answer.targets.values()]
        return self._parts("target", found, ("target", "named", "start", "end"), ("tokens",))

    def to_dict(self) -> Columns:
        """The columns as lists: label, score, abstain, mixed, ``score_LABEL`` for each label, tokens, truncated, language_suspect, early,
        error.

        A text without an answer has an error, which begins with its status code, and None elsewhere. Sentences and targets have tables of
        their own: ``sentences`` and ``targets``.

        >>> client.classify(["a good film", None]).to_dict()["error"]
        [None, 'INVALID_ARGUMENT: text: is missing (None)']
        """
        answers = [None if isinstance(result, SentimentError) else result for result in self._results]
        errors = [str(result) if isinstance(result, SentimentError) else None for result in self._results]
        return self._columns(answers, (), ("tokens", "truncated", "language_suspect", "early")) | {"error": errors}

    def to_pandas(self) -> "pd.DataFrame":
        """A pandas DataFrame with the columns of ``to_dict`` and the index of the Series that the texts come from.

        Scores are float64, label and error ``string``, abstain and truncated ``boolean``, tokens ``Int32``; what is missing is NaN or NA.

        >>> frame["label"] = client.classify(frame["text"]).to_pandas()["label"]
        >>> frame
                  text     label
        7  a good film  positive
        9        awful  negative

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        return self._table().to_pandas()

    def to_polars(self) -> "pl.DataFrame":
        """A polars DataFrame with the columns of ``to_dict``.

        >>> client.classify(["a good film", "awful"]).to_polars()["label"].to_list()
        ['positive', 'negative']

        Raises:
            ModuleNotFoundError: polars is not installed.
        """
        return self._table().to_polars()

    def to_arrow(self) -> "pa.Table":
        """A pyarrow Table with the columns of ``to_dict``.

        >>> client.classify(["a good film", "awful"]).to_arrow()["label"].to_pylist()
        ['positive', 'negative']

        Raises:
            ModuleNotFoundError: pyarrow is not installed.
        """
        return self._table().to_arrow()

    def _table(self) -> Table:
        return Table(self.to_dict(), self._index, self._summary())

    def _parts(self, kind: str, found: "Sequence[tuple[int, Prediction]]", first: Sequence[str], last: Sequence[str]) -> Table:
        places, parts = [place for place, _ in found], [part for _, part in found]
        said = f"{_several(len(parts), kind)} of {_several(len(set(places)), 'text')}: {', '.join(self._counts(parts))}"
        index = places if self._index is None else self._index[places]
        return Table({"place": places} | self._columns(parts, first, last), index, said if parts else f"no {kind}s")

    def _columns(self, answers: "Sequence[Prediction | None]", first: Sequence[str], last: Sequence[str]) -> Columns:
        def columns(names: Sequence[str]) -> Columns:
            return {name: [None if answer is None else getattr(answer, name) for answer in answers] for name in names}

        scores = {f"{SCORE}{label}": [None if one is None else one.scores.get(label) for one in answers] for label in self.labels}
        return columns((*first, "label", "score", "abstain", "mixed")) | scores | columns(last)

    def _counts(self, answers: "Iterable[Prediction]") -> list[str]:
        counts = Counter(answer.label for answer in answers)
        return [f"{counts[label]:,} {label}" for label in self.labels if counts[label]]

    def _summary(self) -> str:
        kinds = self._counts(self.answered.values())
        if failed := len(self.failures):
            kinds.append(f"{failed:,} failed")
        return f"{_several(len(self), 'text')}: {', '.join(kinds)}" if kinds else "no texts"


def _page(summary: str, first: Columns, index: Any, count: int) -> str:  # index: as in Table
    """An HTML page of the summary of a table and its first rows. ``count``: of all rows."""
    columns = {name: values for name, values in first.items() if name not in SELDOM or any(values)}
    names = range(count) if index is None else index
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("", *columns))
    rows = "".join(
        f"<tr><th>{_cell(name)}</th>{''.join(f'<td>{_cell(value)}</td>' for value in values)}</tr>"
        for name, *values in zip(names[:ROWS_SHOWN], *columns.values(), strict=True)
    )
    more = f"<p>and {count - ROWS_SHOWN:,} more; <code>to_pandas()</code> has all</p>" if count > ROWS_SHOWN else ""
    return f"<p>{html.escape(summary)}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"


def _kind(column: str) -> type:
    return KINDS.get(column, float)


def _several(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def _cell(value: object) -> str:
    return "" if value is None else html.escape(f"{value:.4f}" if isinstance(value, float) else str(value))
