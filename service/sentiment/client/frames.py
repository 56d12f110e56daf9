"""``Results``: the results of many texts, and the tables that they become. Imports no pandas, polars, pyarrow or grpc until asked for."""

import html
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

from sentiment.client.model_id import ModelId
from sentiment.client.packages import imported
from sentiment.errors import SentimentError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from sentiment.client.results import CallFailed, Classification, Result

# A label's scores are the column with this in front of the label, so no label collides with another column.
SCORE = "score_"
# Rows that a notebook shows.
ROWS_SHOWN = 10


class Results(Sequence["Result"]):
    """Results of many texts, in input order: each a ``Classification``, or the ``CallFailed`` of a text that has no answer.

    The texts are not kept. A result takes about 0.4 KB of memory.

    >>> results = client.classify(["a good film", "", None])
    >>> results
    Results(3 texts: 1 positive, 2 failed)
    >>> results[0].label
    'positive'
    >>> {place: error.message for place, error in results.failures.items()}
    {1: 'text: has 0 characters and none but white space; at least one other is needed', 2: 'text: is missing (None)'}
    """

    def __init__(self, results: "Iterable[Result]" = (), *, labels: Sequence[str] = (), index: Any = None) -> None:  # a pandas.Index
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
        first = self[:ROWS_SHOWN]
        columns = first.to_dict()
        if not first.failures:
            del columns["error"]
        names = range(len(first)) if first._index is None else first._index
        head = "".join(f"<th>{html.escape(name)}</th>" for name in ("", *columns))
        rows = "".join(
            f"<tr><th>{_cell(name)}</th>{''.join(f'<td>{_cell(value)}</td>' for value in values)}</tr>"
            for name, *values in zip(names, *columns.values(), strict=True)
        )
        left = len(self) - len(first)
        more = f"<p>and {left:,} more; <code>to_pandas()</code> has all</p>" if left else ""
        return f"<p>{html.escape(self._summary())}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"

    @property
    def answered(self) -> "Mapping[int, Classification]":
        """The answers, by place from 0."""
        return MappingProxyType({place: result for place, result in enumerate(self._results) if not isinstance(result, SentimentError)})

    @property
    def failures(self) -> "Mapping[int, CallFailed]":
        """The errors of texts without an answer, by place from 0."""
        return MappingProxyType({place: result for place, result in enumerate(self._results) if isinstance(result, SentimentError)})

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

    def to_dict(self) -> dict[str, list[Any]]:  # each column has values of its own kind
        """The columns as lists: label, score, abstain, ``score_LABEL`` for each label, tokens, truncated and error.

        A text without an answer has an error, which begins with its status code, and None elsewhere.

        >>> client.classify(["a good film", None]).to_dict()["error"]
        [None, 'INVALID_ARGUMENT: text: is missing (None)']
        """
        answers = [None if isinstance(result, SentimentError) else result for result in self._results]

        def column(name: str) -> list[Any]:
            return [None if answer is None else getattr(answer, name) for answer in answers]

        scores = {f"{SCORE}{label}": [None if one is None else one.scores.get(label) for one in answers] for label in self.labels}
        errors = [str(result) if isinstance(result, SentimentError) else None for result in self._results]
        return {name: column(name) for name in ("label", "score", "abstain")} | scores | {
            "tokens": column("tokens"), "truncated": column("truncated"), "error": errors
        }  # fmt: skip

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
        pandas = imported("pandas", "to_pandas")
        kinds = {"label": "string", "abstain": "boolean", "tokens": "Int32", "truncated": "boolean", "error": "string"}
        columns = {name: pandas.array(values, dtype=kinds.get(name, "float64")) for name, values in self.to_dict().items()}
        frame: pd.DataFrame = pandas.DataFrame(columns, index=self._index)
        return frame

    def to_polars(self) -> "pl.DataFrame":
        """A polars DataFrame with the columns of ``to_dict``.

        >>> client.classify(["a good film", "awful"]).to_polars()["label"].to_list()
        ['positive', 'negative']

        Raises:
            ModuleNotFoundError: polars is not installed.
        """
        polars = imported("polars", "to_polars")
        kinds = {"label": polars.String, "abstain": polars.Boolean, "tokens": polars.Int32, "truncated": polars.Boolean}
        columns = self.to_dict()
        schema = {name: kinds.get(name, polars.Float64) for name in columns} | {"error": polars.String}
        frame: pl.DataFrame = polars.DataFrame(columns, schema=schema)
        return frame

    def to_arrow(self) -> "pa.Table":
        """A pyarrow Table with the columns of ``to_dict``.

        >>> client.classify(["a good film", "awful"]).to_arrow()["label"].to_pylist()
        ['positive', 'negative']

        Raises:
            ModuleNotFoundError: pyarrow is not installed.
        """
        arrow = imported("pyarrow", "to_arrow")
        kinds = {"label": arrow.string(), "abstain": arrow.bool_(), "tokens": arrow.int32(), "truncated": arrow.bool_()}
        columns = self.to_dict()
        schema = arrow.schema({name: kinds.get(name, arrow.float64()) for name in columns} | {"error": arrow.string()})
        return arrow.table(columns, schema=schema)

    def _summary(self) -> str:
        counts = Counter(result.label for result in self.answered.values())
        kinds = [f"{counts[label]:,} {label}" for label in self.labels if counts[label]]
        if failed := len(self.failures):
            kinds.append(f"{failed:,} failed")
        return f"{len(self):,} text{'s' if len(self) > 1 else ''}: {', '.join(kinds)}" if kinds else "no texts"


def _cell(value: object) -> str:
    return "" if value is None else html.escape(f"{value:.4f}" if isinstance(value, float) else str(value))
