"""Turns what a caller gives, an iterable of texts or a column of pandas, polars or pyarrow, into texts. Imports none of those, nor grpc."""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any, Protocol

TextOrPair = str | tuple[str, str]
# Values of an Arrow column that become Python objects at a time.
ARROW_ROWS = 1024
# Values of a blocking source between which the event loop gets its turn.
VALUES_A_TURN = 128
_END = object()


class ArrowColumn(Protocol):
    """A pyarrow Array or ChunkedArray, which iterates over scalars instead of strings."""

    def __len__(self) -> int: ...

    def to_pylist(self) -> list[Any]:  # whatever the column holds
        """The values as Python objects."""


# Any iterable, pandas and polars Series and NumPy arrays included. None, NaN and null stand for a missing text.
Texts = Iterable[TextOrPair | None] | ArrowColumn
AsyncTexts = Texts | AsyncIterable[TextOrPair | None]


@dataclass(frozen=True, slots=True)
class Unusable:
    """Stands for a value that is missing or is no text. ``reason`` follows the ``field``, text or text_pair, in the item's error."""

    reason: str
    field: str = "text"


Item = TextOrPair | Unusable


class Column:
    """The texts of one call. ``items`` reads its source lazily, once.

    ``count``: how many there are; None if that is known only at the end. ``index``: of a pandas Series; else None.
    """

    def __init__(self, values: Iterator[object], count: int | None, index: Any) -> None:  # pandas.Index, which is not imported here
        self.items = self._items(values)
        self.count = count
        self.index = index
        self._taken = 0

    def read_to_end(self) -> int:
        """Skip the items that are left. Returns how many there were in all."""
        for _ in self.items:
            pass
        return self._taken

    def _items(self, values: Iterator[object]) -> Iterator[Item]:
        for value in values:
            self._taken += 1
            yield item_of_value(value)


def column_of(texts: Texts, text_pair: Texts | None = None) -> Column:
    """The texts of an argument. ``text_pair``: the second texts, as many; they belong together by position.

    Raises:
        TypeError: it is no column of texts: a single string, bytes, a mapping, a table, or nothing to iterate over.
        ValueError: both columns have a different number of texts, or pandas indices that differ.
    """
    values, count, index = _read(texts, "texts")
    if text_pair is None:
        return Column(values, count, index)
    second, second_count, second_index = _read(text_pair, "text_pair")
    if None not in (count, second_count) and count != second_count:
        raise ValueError(f"texts has {count} values and text_pair has {second_count}; both must have the same number")
    if index is not None and second_index is not None and not index.equals(second_index):
        raise ValueError("the Series of texts and text_pair must have the same index")
    return Column(_paired(values, second), second_count if count is None else count, index)


class AsyncColumn:
    """Like ``Column``, for ``async for``, of texts that may come from an asynchronous source. Close ``items`` at the end."""

    def __init__(self, texts: AsyncTexts, text_pair: Texts | None = None) -> None:
        """Arguments and errors as in ``column_of``. There is no ``text_pair`` for an asynchronous source; it gives pairs itself."""
        self.count: int | None = None
        self.index: Any = None  # as in Column
        self._taken = 0
        if not isinstance(texts, AsyncIterable):
            column = column_of(texts, text_pair)
            self.count, self.index = column.count, column.index
            self.items = self._items(_asynchronous(column.items))
        elif text_pair is None:
            self.items = self._items(aiter(texts))
        else:
            raise TypeError("text_pair cannot stand beside an asynchronous iterable of texts; make that give pairs")

    async def read_to_end(self) -> int:
        """Skip the items that are left. Returns how many there were in all."""
        async for _ in self.items:
            pass
        return self._taken

    async def _items(self, values: AsyncIterator[object]) -> AsyncGenerator[Item, None]:
        async for value in values:
            self._taken += 1
            yield item_of_value(value)


def item_of_value(value: object) -> Item:
    """One value of a column as a text, a pair, or what is wrong with it."""
    if isinstance(value, str | Unusable):
        return value
    # Arrow has no tuples, so a pair of its lists comes as a list.
    if isinstance(value, tuple | list) and len(value) == 2:
        first, second = value
        if isinstance(first, str) and isinstance(second, str):
            return first, second
        return Unusable(_reason(second), "text_pair") if isinstance(first, str) else Unusable(_reason(first))
    return Unusable(_reason(value))


def missing(value: object) -> bool:
    """Whether a value stands for nothing: None, NaN, or NA and NaT of pandas."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and isnan(value))


def _reason(value: object) -> str:
    return f"is missing ({value})" if missing(value) else f"must be a string, got {type(value).__name__}"


async def _asynchronous(items: Iterator[Item]) -> AsyncIterator[Item]:
    for place, item in enumerate(items, 1):
        yield item
        if place % VALUES_A_TURN == 0:
            await asyncio.sleep(0)


def _paired(values: Iterator[object], second: Iterator[object]) -> Iterator[object]:
    count = 0
    for value in values:
        other = next(second, _END)
        if other is _END:
            raise ValueError(f"text_pair has {count} values and texts has more; both must have the same number")
        yield value, other
        count += 1
    if next(second, _END) is not _END:
        raise ValueError(f"texts has {count} values and text_pair has more; both must have the same number")


def _read(texts: Any, name: str) -> tuple[Iterator[object], int | None, Any]:  # checked here
    """Values, count and index of an argument."""
    kind = type(texts).__name__
    if isinstance(texts, str | bytes | bytearray | Mapping):
        raise TypeError(f"{name} must be a list or a column of texts, got one {kind}")
    # Of the class: a property of a lazy table may compute the table.
    if hasattr(type(texts), "columns") or hasattr(type(texts), "column_names"):
        raise TypeError(f"{name} must be one column, for example table['text'], got a {kind}")
    count = len(texts) if hasattr(type(texts), "__len__") else None
    if count is not None and hasattr(type(texts), "to_pylist"):
        return _arrow_values(texts, count), count, None
    try:
        values = iter(texts)
    except TypeError as error:
        raise TypeError(f"{name} must be an iterable of texts, got {kind}") from error
    # Whoever has a Series has imported pandas.
    pandas = sys.modules.get("pandas")
    return values, count, texts.index if pandas is not None and isinstance(texts, pandas.Series) else None


def _arrow_values(column: Any, count: int) -> Iterator[object]:  # a pyarrow column
    for start in range(0, count, ARROW_ROWS):
        yield from column.slice(start, ARROW_ROWS).to_pylist()
