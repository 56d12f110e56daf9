"""Encoding of attention maps as tiles of bytes, each with its encoding error. The client decodes with this module too. Pure.

All numbers are little-endian. A tile's weights are in row-major order; ``row_values`` are in row order. By encoding:

- FP32, FP16: one float per weight; no row values.
- U8: one byte per weight; the weight is byte x scale of the row. One row value: the scale, which is the row's largest weight / 255.
- TOP_P: per row a uint16, the number of kept weights; then their columns as uint16, ascending and counted from the tile's first column;
  then their weights as bytes, as in U8. Two row values: the row's scale, and its dropped mass (the sum of the tile's weights that are not
  kept). Dropped weights decode as 0, and none is larger than a kept weight of its row. Smaller than U8 if fewer than a third of the weights
  are kept.

TOP_P keeps the largest weights of a row until they make up ``top_p`` of its sum. Of equal weights the first is taken first, here and in
rounding. Scales, kept weights and rounding are computed on whole rows, so a map decodes to the same weights however it is cut into tiles. A
decoded weight is a float32 product.

Bytes are rounded down or up so that a row keeps its sum to half a byte step, at most 0.2 % (largest remainder method). Rounding to the
nearest would limit the error of a weight to half a step instead of one, but the many small weights in a row of a long text would all become
0: on this repository's README and changelog, cut to 512 tokens, rows of the default model lost up to 22 % of their sum, and half of them
more than 0.5 %.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Encoding(IntEnum):
    """How weights become bytes. Values are those of the proto's AttentionEncoding."""

    FP32 = 1
    FP16 = 2
    U8 = 3
    TOP_P = 4


TOP_P_DEFAULT = 0.9
# A column index and a number of columns must fit a uint16.
SIDE_MAX = 65_535
# The largest fp16. Attention is in [0, 1], and aggregated attention stays far below.
WEIGHT_MAX = 65_504.0
_SUM_MAX = SIDE_MAX * WEIGHT_MAX
# Messages of a stream should be about 64 KiB; this leaves room for the other fields.
BYTES_MAX = 60_000
# Upper bound on the other fields of a tile's message with its gRPC frame: 8 integers, 2 lengths, 1 float, 3 envelopes.
MESSAGE_BYTES = 90
# Bytes of a row besides its weights, row values included; and the maximum per weight.
_ROW_BYTES = {Encoding.FP32: 0, Encoding.FP16: 0, Encoding.U8: 4, Encoding.TOP_P: 10}
_WEIGHT_BYTES = {Encoding.FP32: 4, Encoding.FP16: 2, Encoding.U8: 1, Encoding.TOP_P: 3}
_ROW_VALUES = {Encoding.FP32: 0, Encoding.FP16: 0, Encoding.U8: 1, Encoding.TOP_P: 2}
_FLOATS = {Encoding.FP32: "<f4", Encoding.FP16: "<f2"}


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """A rectangle of a map: rows from ``row_start``, columns from ``column_start``.

    ``error_max``: the largest difference between a decoded weight and its float32 original, measured on this tile and rounded up to a
    float32. With TOP_P only kept weights count.
    """

    row_start: int
    rows: int
    column_start: int
    columns: int
    encoding: Encoding
    weights: bytes
    row_values: Floats
    error_max: float

    @property
    def dropped(self) -> Floats:
        """The dropped mass of each row, [rows]; 0 unless the encoding is TOP_P."""
        return self.row_values[1::2] if self.encoding == Encoding.TOP_P else np.zeros(self.rows, np.float32)


@dataclass(frozen=True, slots=True)
class _Coded:
    """A whole map before it is cut into tiles: ``kept`` and ``codes`` [rows, columns], ``scales`` [rows]; None if the encoding has none."""

    weights: Floats
    encoding: Encoding
    kept: npt.NDArray[np.bool_] | None
    codes: npt.NDArray[np.uint8] | None
    scales: Floats | None


def encode(attention_map: Floats, encoding: Encoding, top_p: float = TOP_P_DEFAULT) -> Tile:
    """Encode a map [rows, columns] as one tile of any size.

    Raises:
        ValueError: the map does not have 1 to 65,535 rows and columns; a weight is not finite, negative or above 65,504; with TOP_P,
            ``top_p`` is not in (0, 1].
    """
    coded = _code(attention_map, encoding, top_p)
    return _tile(coded, slice(0, attention_map.shape[0]), slice(0, attention_map.shape[1]))


def tiles(attention_map: Floats, encoding: Encoding, top_p: float = TOP_P_DEFAULT, bytes_max: int = BYTES_MAX) -> Iterator[Tile]:
    """Encode a map as tiles, from the top. Each has as many whole rows as fit: weights and row values take at most ``bytes_max``.

    A row that is too large for one tile is split; the dropped masses of its parts add up to that of the row.

    Raises:
        ValueError: as in ``encode``; or ``bytes_max`` is too small for one weight. Raised before the first tile.
    """
    columns_max = _columns_max(encoding, bytes_max)
    return _cut(_code(attention_map, encoding, top_p), bytes_max, columns_max)


def encoded_bytes(rows: int, columns: int, encoding: Encoding, bytes_max: int = BYTES_MAX) -> int:
    """Upper bound in bytes on all messages of a map's ``tiles``, everything included.

    Raises:
        ValueError: rows or columns are out of range, or ``bytes_max`` is too small for one weight.
    """
    _check_sides(rows, columns)
    columns_max = _columns_max(encoding, bytes_max)
    row_bytes = _ROW_BYTES[encoding] + columns * _WEIGHT_BYTES[encoding]
    if columns <= columns_max:
        return rows * row_bytes + -(-rows // (bytes_max // row_bytes)) * MESSAGE_BYTES
    parts = -(-columns // columns_max)
    return rows * (row_bytes + (parts - 1) * _ROW_BYTES[encoding] + parts * MESSAGE_BYTES)


def decode(tile: Tile) -> Floats:
    """Decode the weights of a tile, [rows, columns].

    Raises:
        ValueError: the tile's sizes, bytes and row values do not match, or a weight is out of the range of ``encode``.
    """
    _check_sides(tile.rows, tile.columns)
    _check_row_values(tile)
    if tile.encoding == Encoding.TOP_P:
        return _decode_top_p(tile)
    _check_length(tile, tile.rows * tile.columns * _WEIGHT_BYTES[tile.encoding])
    flat = np.frombuffer(tile.weights, _FLOATS.get(tile.encoding, "u1")).reshape(tile.rows, tile.columns)
    if tile.encoding == Encoding.U8:
        return flat * tile.row_values[:, np.newaxis]
    weights = flat.astype(np.float32)
    _check_weights(weights)
    return weights


def _code(attention_map: Floats, encoding: Encoding, top_p: float) -> _Coded:
    if attention_map.ndim != 2:
        raise ValueError(f"the map must have 2 dimensions, got {attention_map.ndim}")
    _check_sides(*attention_map.shape)
    _check_weights(attention_map)
    weights = attention_map.astype(np.float32, copy=False)
    if encoding in _FLOATS:
        return _Coded(weights, encoding, None, None, None)
    kept = _kept(weights, top_p) if encoding == Encoding.TOP_P else None
    scales = weights.max(axis=1) / np.float32(255)
    return _Coded(weights, encoding, kept, _bytes(weights if kept is None else np.where(kept, weights, 0), scales), scales)


def _kept(weights: Floats, top_p: float) -> npt.NDArray[np.bool_]:
    """Which weights TOP_P keeps, [rows, columns]: the fewest that make up ``top_p`` of a row's sum; none in a row of zeros."""
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")
    sums = np.cumsum(np.sort(weights, axis=1)[:, ::-1], axis=1, dtype=np.float64)
    counts = 1 + np.count_nonzero(sums < top_p * sums[:, -1:], axis=1)
    return _largest(weights, np.where(sums[:, -1] > 0, counts, 0))


def _bytes(weights: Floats, scales: Floats) -> npt.NDArray[np.uint8]:
    """Weights in steps of their row's scale, rounded so that each row keeps its sum (Hamilton's largest remainder method)."""
    steps = scales[:, np.newaxis]
    # The scale is 0 in a row of zeros, and if the largest weight is the smallest float32: the bytes of that row are 0.
    shares = np.divide(weights, steps, out=np.zeros_like(weights), where=steps > 0)
    down = np.floor(shares)
    remainders = shares - down
    missing = np.rint(remainders.sum(axis=1, dtype=np.float64)).astype(np.int64)
    # The scale of a row with tiny weights is rounded itself, so its largest weight may exceed 255 steps.
    rounded: Floats = np.minimum(down + _largest(remainders, missing), 255)
    return rounded.astype(np.uint8)


def _largest(values: Floats, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mask of the ``counts`` [rows] largest values of each row; of equal values the first."""
    count = counts[:, np.newaxis]
    places = np.minimum(values.shape[1] - count, values.shape[1] - 1)
    last = np.take_along_axis(np.sort(values, axis=1), places, axis=1)
    above = values > last
    equal = values == last
    room = count - np.count_nonzero(above, axis=1, keepdims=True)
    found: npt.NDArray[np.bool_] = above | (equal & (np.cumsum(equal, axis=1) <= room))
    return found


def _cut(coded: _Coded, bytes_max: int, columns_max: int) -> Iterator[Tile]:
    rows, columns = coded.weights.shape
    counts = np.full(rows, columns) if coded.kept is None else np.count_nonzero(coded.kept, axis=1)
    ends = np.cumsum(_ROW_BYTES[coded.encoding] + counts * _WEIGHT_BYTES[coded.encoding])
    start = 0
    while start < rows:
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + bytes_max, side="right"))
        if stop > start:
            yield _tile(coded, slice(start, stop), slice(0, columns))
        else:
            stop = start + 1
            for left in range(0, columns, columns_max):
                yield _tile(coded, slice(start, stop), slice(left, min(left + columns_max, columns)))
        start = stop


def _tile(coded: _Coded, rows: slice, columns: slice) -> Tile:
    original = coded.weights[rows, columns]
    kept = None if coded.kept is None else coded.kept[rows, columns]
    values = np.zeros(0, np.float32) if coded.scales is None else coded.scales[rows]
    if coded.codes is None:
        content = original.astype(_FLOATS[coded.encoding]).tobytes()
    elif kept is None:
        content = coded.codes[rows, columns].tobytes()
    else:
        content = _top_p_bytes(coded.codes[rows, columns], kept)
        dropped = np.sum(original, axis=1, where=~kept, dtype=np.float64)
        values = np.stack([values, dropped.astype(np.float32)], axis=1).ravel()
    tile = Tile(rows.start, original.shape[0], columns.start, original.shape[1], coded.encoding, content, values, 0.0)
    return replace(tile, error_max=_error(decode(tile), original, kept))


def _error(decoded: Floats, original: Floats, kept: npt.NDArray[np.bool_] | None) -> float:
    """The largest difference among kept weights, rounded up to a float32."""
    error = float(np.abs(decoded.astype(np.float64) - original).max(initial=0, where=True if kept is None else kept))
    rounded = np.float32(error)
    # Compared as Python floats: NumPy would first round ``error`` to a float32.
    return float(rounded if float(rounded) >= error else np.nextafter(rounded, np.float32(np.inf)))


def _top_p_bytes(codes: npt.NDArray[np.uint8], kept: npt.NDArray[np.bool_]) -> bytes:
    parts = []
    for row, chosen in zip(codes, kept, strict=True):
        columns = np.flatnonzero(chosen)
        parts += [len(columns).to_bytes(2, "little"), columns.astype("<u2").tobytes(), row[columns].tobytes()]
    return b"".join(parts)


def _decode_top_p(tile: Tile) -> Floats:
    weights = np.zeros((tile.rows, tile.columns), np.float32)
    place = 0
    for index, scale in enumerate(tile.row_values[::2]):
        count = int.from_bytes(tile.weights[place : place + 2], "little")
        middle = place + 2 + 2 * count
        end = middle + count
        if end > len(tile.weights):
            raise ValueError(f"row {index} of the tile ends at byte {end}, but the tile has {len(tile.weights)} bytes")
        columns = np.frombuffer(tile.weights, "<u2", count, place + 2)
        if count and (columns[-1] >= tile.columns or (columns[1:] <= columns[:-1]).any()):
            found = columns.tolist()[:8]
            raise ValueError(f"columns in row {index} of the tile must ascend and be below {tile.columns}, got {found}...")
        weights[index, columns] = np.frombuffer(tile.weights, np.uint8, count, middle) * scale
        place = end
    _check_length(tile, place)
    return weights


def _columns_max(encoding: Encoding, bytes_max: int) -> int:
    """How many columns of a row fit in any case."""
    least = _ROW_BYTES[encoding] + _WEIGHT_BYTES[encoding]
    if bytes_max < least:
        raise ValueError(f"bytes_max must be at least {least} (one weight), got {bytes_max}")
    return (bytes_max - _ROW_BYTES[encoding]) // _WEIGHT_BYTES[encoding]


def _check_sides(rows: int, columns: int) -> None:
    if not (1 <= rows <= SIDE_MAX and 1 <= columns <= SIDE_MAX):
        raise ValueError(f"rows and columns must be from 1 to {SIDE_MAX}, got {rows} rows and {columns} columns")


def _check_weights(weights: Floats) -> None:
    wrong = ~((weights >= 0) & (weights <= WEIGHT_MAX))
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise ValueError(f"the weight at row {row}, column {column} must be from 0 to {WEIGHT_MAX:.0f}, got {weights[row, column]}")


def _check_row_values(tile: Tile) -> None:
    expected = tile.rows * _ROW_VALUES[tile.encoding]
    if tile.row_values.shape != (expected,):
        raise ValueError(f"a tile of {tile.rows} rows must have {expected} row values, got shape {list(tile.row_values.shape)}")
    wrong = tile.row_values[~((tile.row_values >= 0) & (tile.row_values <= _SUM_MAX))]
    if wrong.size:
        raise ValueError(f"row values must be from 0 to {_SUM_MAX:.0f}, got {wrong[0]}")


def _check_length(tile: Tile, expected: int) -> None:
    if len(tile.weights) != expected:
        raise ValueError(f"a tile of {tile.rows} rows and {tile.columns} columns must have {expected} bytes, got {len(tile.weights)}")
