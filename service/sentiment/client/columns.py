"""Turns what a caller gives, an iterable of texts or a column of pandas, polars or pyarrow, into texts. Imports none of those, nor grpc."""

import asyncio
import itertools
import sys
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Iterator, Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class Targeted:
    """A text with targets of its own, in place of a text of many: the sentiment towards each is answered too.

    It gives generators and streams what ``classify(texts, targets=column)`` gives columns. The targets of the call are not its own.
    """

    text: TextOrPair
    targets: Sequence[str]


# Any iterable, pandas and polars Series and NumPy arrays included. None, NaN and null stand for a missing text.
Texts = Iterable[TextOrPair | Targeted | None] | ArrowColumn
AsyncTexts = Texts | AsyncIterable[TextOrPair | Targeted | None]
# The targets of every text, as strings; or a column with the list of each text, in which a missing value stands for no targets. Beside a
# column of texts an iterator is a column too.
Targets = Iterable[str] | Iterable[Iterable[str] | None] | ArrowColumn


@dataclass(frozen=True, slots=True)
class Unusable:
    """Stands for a value that is missing or wrong. ``reason`` follows the ``field``, text, text_pair or targets, in the item's error."""

    reason: str
    field: str = "text"


Item = TextOrPair | Targeted | Unusable


class Column:
    """The texts of one call. ``items`` reads its source lazily, once.

    ``count``: how many there are; None if that is known only at the end. ``index``: of a pandas Series; else None.
    """

    def __init__(self, texts: Texts, text_pair: Texts | None = None, targets: Targets = ()) -> None:
        """The texts of an argument. ``text_pair``: the second texts, as many; they belong together by position. So do ``targets``, if they
        are a column.

        Raises:
            TypeError: it is not a column of texts: a single string, bytes, a mapping, a table, or nothing to iterate over.
            ValueError: the columns have a different number of texts, or pandas indices that differ.
        """
        values, self.count, self.index = _read(texts, "texts")
        if text_pair is not None:
            values, self.count = _beside(values, self.count, self.index, text_pair, "text_pair")
        same = targets_of_all(targets)
        if same is None:
            values, self.count = _beside(values, self.count, self.index, targets, "targets")
            values = itertools.starmap(Targeted, values)
        self.items = self._items(values, same or ())
        self._taken = 0

    def read_to_end(self) -> int:
        """Skip the items that are left. Returns how many there were in all."""
        for _ in self.items:
            pass
        return self._taken

    def _items(self, values: Iterator[object], targets: Sequence[str]) -> Generator[Item, None, None]:
        for value in values:
            self._taken += 1
            yield item_of_value(value, targets)


def targets_of_all(targets: Targets, beside: bool = True) -> tuple[str, ...] | None:
    """The targets of every text; None if they are a column. ``beside``: whether a column of texts is there, beside which they may be one.

    Raises:
        TypeError: they are a single string, or no strings at all.
    """
    if isinstance(targets, str):
        raise TypeError(f"targets must be a list of strings, such as {[targets[:40]]}, got one str")
    values, count, _ = _read(targets, "targets")
    if beside and count is None:
        # An iterator gives its values once.
        return None
    found = []
    for value in values:
        if not isinstance(value, str):
            return None
        found.append(value)
    return tuple(found)


class AsyncColumn:
    """Like ``Column``, for ``async for``, of texts that may come from an asynchronous source. Close ``items`` at the end."""

    def __init__(self, texts: AsyncTexts, text_pair: Texts | None = None, targets: Targets = ()) -> None:
        """Arguments and errors as in ``Column``. An asynchronous source has neither ``text_pair`` nor a column of targets beside it: it
        gives pairs, or ``Targeted`` texts.
        """
        self.count: int | None = None
        self.index: Any = None  # as in Column
        self._taken = 0
        if not isinstance(texts, AsyncIterable):
            column = Column(texts, text_pair, targets)
            self.count, self.index = column.count, column.index
            self.items = self._items(_asynchronous(column.items), ())
            return
        same = targets_of_all(targets, beside=False)
        if text_pair is not None:
            raise TypeError("text_pair cannot stand beside an asynchronous iterable of texts; make that give pairs")
        if same is None:
            raise TypeError("a column of targets cannot stand beside an asynchronous iterable of texts; make that give Targeted texts")
        self.items = self._items(aiter(texts), same)

    async def read_to_end(self) -> int:
        """Skip the items that are left. Returns how many there were in all."""
        async for _ in self.items:
            pass
        return self._taken

    async def _items(self, values: AsyncIterator[object], targets: Sequence[str]) -> AsyncGenerator[Item, None]:
        async for value in values:
            self._taken += 1
            yield item_of_value(value, targets)


def item_of_value(value: object, targets: object = ()) -> Item:
    """One value of a column as a text, a pair, either with targets, or what is wrong with it. ``targets``: unless it has its own."""
    if isinstance(value, Targeted):
        return item_of_value(value.text, value.targets)
    item = _item(value)
    if isinstance(item, Unusable) or missing(targets):
        return item
    if isinstance(targets, str) or not isinstance(targets, Iterable):
        return Unusable(f"must be a list of strings, got {type(targets).__name__}", "targets")
    asked = tuple(targets)
    wrong = [type(target).__name__ for target in asked if not isinstance(target, str)]
    if wrong:
        return Unusable(f"must be strings, got {wrong[0]}", "targets")
    return Targeted(item, asked) if asked else item


def strings_of(item: Item) -> tuple[str, ...]:
    """The strings of an item that are sent."""
    if isinstance(item, Targeted):
        return (*strings_of(item.text), *item.targets)
    return () if isinstance(item, Unusable) else (item,) if isinstance(item, str) else item


def _item(value: object) -> TextOrPair | Unusable:
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


def _beside(
    values: Iterator[object], count: int | None, index: Any, other: Any, name: str
) -> tuple[Iterator[tuple[object, object]], int | None]:  # index: of pandas; other: checked in _read
    """The values with those of another column, called ``name``, and how many there are."""
    second, second_count, second_index = _read(other, name)
    if None not in (count, second_count) and count != second_count:
        raise ValueError(f"texts has {count} values and {name} has {second_count}; both must have the same number")
    if index is not None and second_index is not None and not index.equals(second_index):
        raise ValueError(f"the Series of texts and {name} must have the same index")
    return _together(values, second, name), second_count if count is None else count


def _together(values: Iterator[object], second: Iterator[object], name: str) -> Iterator[tuple[object, object]]:
    count = 0
    for value in values:
        other = next(second, _END)
        if other is _END:
            raise ValueError(f"{name} has {count} values and texts has more; both must have the same number")
        yield value, other
        count += 1
    if next(second, _END) is not _END:
        raise ValueError(f"texts has {count} values and {name} has more; both must have the same number")


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
    # A caller that has a Series has imported pandas.
    pandas = sys.modules.get("pandas")
    return values, count, texts.index if pandas is not None and isinstance(texts, pandas.Series) else None


def _arrow_values(column: Any, count: int) -> Iterator[object]:  # a pyarrow column
    for start in range(0, count, ARROW_ROWS):
        yield from column.slice(start, ARROW_ROWS).to_pylist()
