"""Encoding of attention maps as tiles: decoded weights, stated errors, sizes."""

import dataclasses
import itertools
import struct
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentiment.explain.encoding import (
    BYTES_MAX,
    MESSAGE_BYTES,
    SIDE_MAX,
    WEIGHT_MAX,
    Encoding,
    Tile,
    decode,
    encode,
    encoded_bytes,
    tiles,
)
from sentiment.v1 import sentiment_pb2 as pb

Floats = npt.NDArray[np.float32]
COLUMNS = 512
each_encoding = pytest.mark.parametrize("encoding", Encoding, ids=lambda encoding: encoding.name)


def softmax(scores: npt.NDArray[np.float64]) -> Floats:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def noise(seed: int, rows: int, columns: int, sharpness: float) -> Floats:
    return softmax(np.random.default_rng(seed).normal(size=(rows, columns)) * sharpness)


MAPS = {
    "sharp": noise(1, 64, COLUMNS, 6),
    "broad": noise(2, 64, COLUMNS, 0.3),
    "uniform": np.full((64, COLUMNS), 1 / COLUMNS, np.float32),
    "one of all": np.eye(64, COLUMNS, dtype=np.float32),
    "tiny": noise(3, 64, COLUMNS, 2) * np.float32(1e-9),
    "below the smallest float": noise(4, 64, COLUMNS, 2) * np.float32(1e-42),
    "large": noise(5, 64, COLUMNS, 3) * np.float32(WEIGHT_MAX),
    "zeros": np.zeros((64, COLUMNS), np.float32),
    "single token": np.ones((1, 1), np.float32),
    "odd": noise(6, 37, 23, 2),
}
each_map = pytest.mark.parametrize("weights", MAPS.values(), ids=MAPS.keys())


def assembled(parts: Iterable[Tile], shape: tuple[int, ...]) -> Floats:
    """The map of which these are the tiles; each place is in one of them."""
    result = np.full(shape, np.nan, np.float32)
    for tile in parts:
        place = np.s_[tile.row_start : tile.row_start + tile.rows, tile.column_start : tile.column_start + tile.columns]
        assert np.isnan(result[place]).all()
        result[place] = decode(tile)
    assert not np.isnan(result).any()
    return result


def size(tile: Tile) -> int:
    return len(tile.weights) + 4 * tile.row_values.size


def largest_first(row: Floats, top_p: float) -> set[int]:
    """The columns that are kept, one by one: the plain way."""
    total = sum(sorted(map(float, row), reverse=True))
    kept: set[int] = set()
    mass = 0.0
    for column in sorted(range(len(row)), key=lambda column: (-float(row[column]), column)):
        if mass >= top_p * total:
            break
        mass += float(row[column])
        kept.add(column)
    return kept


@each_map
@each_encoding
def test_error_max_is_the_largest_difference_of_a_decoded_weight(encoding: Encoding, weights: Floats) -> None:
    tile = encode(weights, encoding)

    decoded = decode(tile)
    differences = np.abs(decoded.astype(np.float64) - weights)
    if encoding == Encoding.TOP_P:
        for row, original in zip(differences, weights, strict=True):
            row[sorted(set(range(len(row))) - largest_first(original, 0.9))] = 0

    assert decoded.shape == weights.shape
    assert decoded.dtype == np.float32
    assert differences.max() <= tile.error_max
    assert tile.error_max == pytest.approx(differences.max(), rel=1e-6)
    assert tile.error_max == float(np.float32(tile.error_max))


@each_map
def test_fp16_rounds_to_the_nearest(weights: Floats) -> None:
    tile = encode(weights, Encoding.FP16)

    # 11 bits, and 2^-24 between the smallest ones.
    assert (np.abs(decode(tile) - weights) <= np.maximum(weights * 2.0**-11, 2.0**-25)).all()


@each_map
def test_the_error_of_a_byte_is_less_than_a_step_of_its_row(weights: Floats) -> None:
    tile = encode(weights, Encoding.U8)

    step = weights.max(axis=1, keepdims=True) / 255
    assert (np.abs(decode(tile) - weights) <= step * 1.001 + 1e-42).all()
    assert tile.error_max <= weights.max() / 255 * 1.001 + 1e-42


# The third is the worst for rounding to the nearest, by which half of its mass is lost.
SUMS = {
    "sharp": MAPS["sharp"],
    "between": noise(8, 64, COLUMNS, 2),
    "one and many just under half a step": np.array([[0.5, *[0.499 * 0.5 / 255] * 511]] * 2, np.float32),
    "broad": MAPS["broad"],
    "uniform": MAPS["uniform"],
    "one of all": MAPS["one of all"],
    "tiny": MAPS["tiny"],
}


@pytest.mark.parametrize("weights", SUMS.values(), ids=SUMS.keys())
def test_rows_of_bytes_keep_their_sum(weights: Floats) -> None:
    decoded = decode(encode(weights, Encoding.U8)).astype(np.float64)

    off = np.abs(decoded.sum(axis=1) - weights.sum(axis=1, dtype=np.float64))
    assert (off <= weights.max(axis=1) / 510 * 1.001).all()
    assert (off <= 0.005 * weights.sum(axis=1)).all()


def test_a_weight_of_0_stays_0() -> None:
    weights = MAPS["sharp"] * (np.random.default_rng(9).random((64, COLUMNS)) < 0.3).astype(np.float32)

    assert decode(encode(weights, Encoding.U8))[weights == 0].max() == 0


def test_rounding_up_goes_to_the_largest_remainders() -> None:
    # Steps of 1: down to 255, 3, 0, 0, 1, which lack 0.4 + 0.3 + 0.6 + 0.5 = 1.8.
    weights = np.array([[255, 3.4, 0.3, 0.6, 1.5]], np.float32)

    assert decode(encode(weights, Encoding.U8)).tolist() == [[255, 3, 0, 1, 2]]


def test_a_byte_does_not_overflow_where_the_scale_is_rounded() -> None:
    # 300 times the smallest float32: its 255th is rounded to the smallest.
    smallest = np.float32(2.0**-149)

    tile = encode(np.array([[300 * smallest, 10 * smallest]], np.float32), Encoding.U8)

    assert tile.weights == bytes([255, 10])
    assert tile.error_max == 45 * float(smallest)


def test_bytes_are_monotonic_in_the_weights() -> None:
    for weights in (MAPS["sharp"], SUMS["between"], MAPS["broad"]):
        decoded = decode(encode(weights, Encoding.U8))
        order = np.argsort(weights, axis=1)

        assert (np.diff(np.take_along_axis(decoded, order, axis=1), axis=1) >= 0).all()


@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.9, 0.999, 1.0])
@each_map
def test_the_largest_weights_are_kept_until_they_make_up_top_p(weights: Floats, top_p: float) -> None:
    tile = encode(weights, Encoding.TOP_P, top_p)

    read = list(rows_of(tile))
    for row, (columns, _) in zip(weights, read, strict=True):
        assert columns == sorted(largest_first(row, top_p))


def rows_of(tile: Tile) -> Iterable[tuple[list[int], bytes]]:
    """What a TOP_P tile holds, read as its layout is written down."""
    place = 0
    for _ in range(tile.rows):
        (count,) = struct.unpack_from("<H", tile.weights, place)
        columns = list(struct.unpack_from(f"<{count}H", tile.weights, place + 2))
        yield columns, tile.weights[place + 2 + 2 * count : place + 2 + 3 * count]
        place += 2 + 3 * count
    assert place == len(tile.weights)


@pytest.mark.parametrize("top_p", [0.3, 0.9])
@each_map
def test_the_dropped_mass_of_each_row_is_stated(weights: Floats, top_p: float) -> None:
    tile = encode(weights, Encoding.TOP_P, top_p)

    for row, (columns, _), dropped in zip(weights, rows_of(tile), tile.dropped, strict=True):
        mass = np.delete(row, columns).sum(dtype=np.float64)
        assert dropped == pytest.approx(mass, rel=1e-6)
        assert dropped <= (1 - top_p) * row.sum(dtype=np.float64) * (1 + 1e-6) + 1e-45


def test_top_p_is_a_share_of_rows_that_do_not_sum_to_1() -> None:
    weights = np.array([[6e-4, 3e-4, 1e-4], [60, 30, 10]], np.float32)

    assert [columns for columns, _ in rows_of(encode(weights, Encoding.TOP_P, 0.8))] == [[0, 1], [0, 1]]


def test_the_layout_of_a_small_map() -> None:
    weights = np.array([[0.25, 0.0, 1.0], [0.0, 0.0, 0.0]], np.float32)
    scale = float(np.float32(1) / np.float32(255))

    found = {encoding: encode(weights, encoding, 0.8) for encoding in Encoding}

    assert found[Encoding.FP32].weights == struct.pack("<6f", 0.25, 0, 1, 0, 0, 0)
    assert found[Encoding.FP16].weights == struct.pack("<6e", 0.25, 0, 1, 0, 0, 0)
    assert found[Encoding.U8].weights == bytes([64, 0, 255, 0, 0, 0])
    assert found[Encoding.U8].row_values.tolist() == [scale, 0]
    assert found[Encoding.TOP_P].weights == bytes([1, 0, 2, 0, 255, 0, 0])
    assert found[Encoding.TOP_P].row_values.tolist() == [scale, 0.25, 0, 0]
    assert found[Encoding.TOP_P].dropped.tolist() == [0.25, 0]
    assert [tile.row_values.size for tile in found.values()] == [0, 0, 2, 4]
    assert found[Encoding.U8].dropped.tolist() == [0, 0]


@each_encoding
def test_encodings_have_the_values_of_the_proto(encoding: Encoding) -> None:
    assert pb.AttentionEncoding.Value(f"ATTENTION_ENCODING_{encoding.name}") == encoding


# From one weight a tile, over parts of rows and a few rows a tile, to the whole map in one.
@pytest.mark.parametrize("bytes_max", [13, 50, 500, 5_000, BYTES_MAX, 10**7])
@pytest.mark.parametrize("name", ["odd", "single token", "zeros", "sharp", "broad"])
@each_encoding
def test_a_map_decodes_to_the_same_weights_however_it_is_cut(encoding: Encoding, name: str, bytes_max: int) -> None:
    weights = MAPS[name][:12, :150]
    whole = encode(weights, encoding, 0.9)

    found = list(tiles(weights, encoding, 0.9, bytes_max))

    assert np.array_equal(assembled(found, weights.shape), decode(whole))
    assert max(map(size, found)) <= bytes_max
    assert max(tile.error_max for tile in found) == whole.error_max
    dropped = np.zeros(len(weights))
    for tile in found:
        dropped[tile.row_start : tile.row_start + tile.rows] += tile.dropped
    assert dropped == pytest.approx(whole.dropped.astype(float), rel=1e-5)


@each_encoding
def test_a_tile_ends_where_the_next_row_would_not_fit(encoding: Encoding) -> None:
    weights = MAPS["broad"]

    found = list(tiles(weights, encoding, 0.9, 3_000))

    assert len(found) > 1
    for tile, following in itertools.pairwise(found):
        assert size(tile) + size(encode(weights[following.row_start : following.row_start + 1], encoding, 0.9)) > 3_000


def test_each_tile_states_its_own_error() -> None:
    weights = np.vstack([MAPS["sharp"][:1], MAPS["broad"][:1]])

    sharp, broad = tiles(weights, Encoding.U8, bytes_max=COLUMNS + 4)

    assert sharp.error_max > 10 * broad.error_max > 0


@settings(max_examples=60)
@given(
    rows=st.integers(1, 12),
    columns=st.integers(1, 40),
    encoding=st.sampled_from(list(Encoding)),
    bytes_max=st.integers(13, 700),
    sharpness=st.sampled_from([0.0, 0.5, 5.0]),
)
def test_tiles_in_messages_never_exceed_the_bound(rows: int, columns: int, encoding: Encoding, bytes_max: int, sharpness: float) -> None:
    found = list(tiles(noise(rows * columns, rows, columns, sharpness), encoding, 1.0, bytes_max))

    spent = sum(size(tile) + MESSAGE_BYTES for tile in found)

    assert spent <= encoded_bytes(rows, columns, encoding, bytes_max)
    if encoding != Encoding.TOP_P:
        # Exact, so that no budget is refused in which the tiles would fit.
        assert spent == encoded_bytes(rows, columns, encoding, bytes_max)


@each_encoding
def test_the_other_fields_of_a_message_stay_within_their_bound(encoding: Encoding) -> None:
    # Row values of 2 bytes' length, weights of 3.
    tile = next(tiles(noise(7, 400, COLUMNS, 1), encoding))
    message = pb.AttentionTile(
        layer=-1,
        head=-1,
        aggregation=pb.ATTENTION_AGGREGATION_ROLLOUT_GRADIENT,
        encoding=int(encoding),
        row_start=SIDE_MAX,
        rows=SIDE_MAX,
        column_start=SIDE_MAX,
        columns=SIDE_MAX,
        weights=tile.weights,
        row_values=tile.row_values.tolist(),
        error_max=0.1,
    )
    grpc_frame = 5

    # ClassifyResponse, in it Explanation, in it the tile: at most a tag and three bytes of length each.
    response = pb.ClassifyResponse(explanation=pb.Explanation(tiles=[message]))

    assert response.ByteSize() + grpc_frame <= size(tile) + MESSAGE_BYTES
    assert BYTES_MAX + MESSAGE_BYTES <= 65_536


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, -1e-9, WEIGHT_MAX * 1.01])
@each_encoding
def test_an_invalid_weight_is_refused_with_its_place(encoding: Encoding, wrong: float) -> None:
    weights = MAPS["odd"].copy()
    weights[3, 5] = wrong

    with pytest.raises(ValueError, match=r"row 3, column 5 must be from 0 to 65504, got"):
        encode(weights, encoding)
    with pytest.raises(ValueError, match="row 3, column 5"):
        tiles(weights, encoding)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4)])
def test_an_array_without_two_dimensions_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"the map must have 2 dimensions, got {len(shape)}"):
        encode(np.zeros(shape, np.float32), Encoding.U8)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, SIDE_MAX + 1)])
def test_a_map_with_no_or_too_many_rows_or_columns_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"rows and columns must be from 1 to 65535, got {shape[0]} rows and {shape[1]} columns"):
        encode(np.zeros(shape, np.float32), Encoding.U8)
    with pytest.raises(ValueError, match="rows and columns must be from 1 to 65535"):
        encoded_bytes(*shape, Encoding.U8)


def test_the_widest_map_has_counts_and_columns_that_fit() -> None:
    weights = np.full((1, SIDE_MAX), 1 / 65_536, np.float32)

    tile = encode(weights, Encoding.TOP_P, 1.0)

    assert [columns for columns, _ in rows_of(tile)] == [list(range(SIDE_MAX))]
    assert np.abs(decode(tile) - weights).max() <= 1.001 / 255 / 65_536


@pytest.mark.parametrize("top_p", [0.0, -0.1, 1.01, np.nan])
def test_a_top_p_out_of_range_is_refused(top_p: float) -> None:
    with pytest.raises(ValueError, match=r"top_p must be above 0 and at most 1, got"):
        encode(MAPS["odd"], Encoding.TOP_P, top_p)


@pytest.mark.parametrize(("encoding", "least"), [(Encoding.FP32, 4), (Encoding.FP16, 2), (Encoding.U8, 5), (Encoding.TOP_P, 13)])
def test_bytes_max_must_hold_one_weight(encoding: Encoding, least: int) -> None:
    assert max(map(size, tiles(MAPS["odd"], encoding, 1.0, least))) <= least
    with pytest.raises(ValueError, match=f"bytes_max must be at least {least} \\(one weight\\), got {least - 1}"):
        tiles(MAPS["odd"], encoding, 1.0, least - 1)
    with pytest.raises(ValueError, match=f"must be at least {least}"):
        encoded_bytes(1, 1, encoding, least - 1)


# Two rows: columns 0 and 2 with bytes 9 and 255; column 1 with byte 255.
TOP_P = Tile(0, 2, 0, 3, Encoding.TOP_P, bytes([2, 0, 0, 0, 2, 0, 9, 255, 1, 0, 1, 0, 255]), np.array([1, 0, 1, 0], np.float32), 0.0)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (TOP_P.weights[:-1], "row 1 of the tile ends at byte 13, but the tile has 12 bytes"),
        (TOP_P.weights[:8], "row 1 of the tile ends at byte 10, but the tile has 8 bytes"),
        (TOP_P.weights + b"\0", "must have 13 bytes, got 14"),
        (b"", "row 0 of the tile ends at byte 2, but the tile has 0 bytes"),
        (b"\xff\xff", "row 0 of the tile ends at byte 196607"),
        (bytes([2, 0, 2, 0, 0, 0, 9, 255, 1, 0, 1, 0, 255]), r"columns in row 0 of the tile must ascend and be below 3, got \[2, 0\]"),
        (bytes([2, 0, 2, 0, 2, 0, 9, 255, 1, 0, 1, 0, 255]), r"columns in row 0 .* got \[2, 2\]"),
        (bytes([2, 0, 0, 0, 3, 0, 9, 255, 1, 0, 1, 0, 255]), r"below 3, got \[0, 3\]"),
    ],
)
def test_top_p_rows_that_contradict_their_bytes_are_refused(weights: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(dataclasses.replace(TOP_P, weights=weights))


@pytest.mark.parametrize(
    "change",
    [
        lambda tile: {"rows": tile.rows + 1},
        lambda tile: {"rows": 0},
        lambda tile: {"rows": -1},
        lambda tile: {"columns": 0},
        lambda tile: {"columns": SIDE_MAX + 1},
        lambda tile: {"weights": tile.weights[:-1]},
        lambda tile: {"weights": tile.weights + b"\0"},
        lambda tile: {"row_values": np.append(tile.row_values, np.float32(0))},
        lambda tile: {"row_values": tile.row_values.reshape(-1, 1)},
    ],
)
@each_encoding
def test_a_tile_that_contradicts_its_size_is_refused(encoding: Encoding, change: Callable[[Tile], dict[str, object]]) -> None:
    tile = encode(MAPS["odd"], encoding)

    with pytest.raises(ValueError, match=r"rows and columns must be|a tile of|row values|row \d+ of the tile"):
        decode(dataclasses.replace(tile, **change(tile)))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
@pytest.mark.parametrize("encoding", [Encoding.U8, Encoding.TOP_P])
def test_an_invalid_row_value_is_refused(encoding: Encoding, wrong: float) -> None:
    tile = encode(MAPS["odd"], encoding)
    values = tile.row_values.copy()
    values[-1] = wrong

    with pytest.raises(ValueError, match="row values must be from 0"):
        decode(dataclasses.replace(tile, row_values=values))


@pytest.mark.parametrize("encoding", [Encoding.FP32, Encoding.FP16])
def test_an_invalid_float_is_refused_when_decoded(encoding: Encoding) -> None:
    content = np.array([1, np.nan], "<f4" if encoding == Encoding.FP32 else "<f2").tobytes()

    with pytest.raises(ValueError, match="row 0, column 1 must be from 0 to 65504, got nan"):
        decode(Tile(0, 1, 0, 2, encoding, content, np.zeros(0, np.float32), 0.0))
