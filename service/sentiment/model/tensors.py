"""Rows to arrays: padded to the longest, or packed one after the other."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat

import numpy as np
import numpy.typing as npt

from sentiment.model.tokenizer import Row

Feeds = dict[str, npt.NDArray[np.int64]]
PackedFeeds = dict[str, npt.NDArray[np.int32]]


def pad(rows: Sequence[Row], inputs: Sequence[str], pad_id: int, left: bool, length: int = 0) -> Feeds:
    """Pad rows to the longest of them, or to ``length`` if that is more.

    Returns:
        ``inputs`` among input_ids, attention_mask, token_type_ids, each int64 [rows, longest].
    """
    length = max(length, *(row.tokens for row in rows))
    shape = (len(rows), length)
    ids = np.full(shape, pad_id, np.int64)
    mask = np.zeros(shape, np.int64)
    types = np.zeros(shape, np.int64)
    for index, row in enumerate(rows):
        place = slice(length - row.tokens, length) if left else slice(0, row.tokens)
        ids[index, place] = row.ids
        mask[index, place] = 1
        if row.type_ids is not None:
            types[index, place] = row.type_ids
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: feeds[name] for name in inputs}


def pack(rows: Sequence[Row], inputs: Sequence[str], multiple: int = 64, longest_min: int = 0, rows_min: int = 0) -> PackedFeeds:
    """Put rows one behind the other, without padding between them, as the graph of ``packed_graph.pack_graph`` reads them.

    The tokens are filled up to a multiple of ``multiple`` by rows of their own, at the end and no longer than the longest: attention's
    kernels write beyond their memory where a token is in no row. The graph gives logits for those rows too; the first ``len(rows)``
    are those of ``rows``.

    Args:
        rows: at least one.
        inputs: what the graph reads.
        multiple: the number of tokens is a multiple of it, so that few shapes come up.
        longest_min: columns of token_offset, at least.
        rows_min: rows of token_offset, at least, empty ones if need be. With T = ``multiple`` tokens of at most R rows of at most
            S = ``longest_min`` tokens, R + T / S rows always do: that gives batches of many shapes one and the same, for a CUDA graph.

    Returns:
        ``inputs`` among input_ids, position_ids, token_type_ids, each int32 [tokens]; token_offset, int32 [rows, longest]: where each
        token would stand if the rows were padded, then, in order, the places that are padding; cumulative_lengths, int32 [rows + 1]:
        where each row begins, and the number of tokens.
    """
    own = [row.tokens for row in rows]
    used = sum(own)
    tokens = -(-used // multiple) * multiple
    longest = max(longest_min, *own)
    whole, rest = divmod(tokens - used, longest)
    own += [*[longest] * whole, *[rest] * (rest > 0)]
    lengths = np.array(own + [0] * (rows_min - len(own)), np.int32)
    begins = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=begins[1:])
    positions = np.arange(tokens, dtype=np.int32) - np.repeat(begins[:-1], lengths)
    positions[used:] = 0
    given: dict[str, Callable[[], npt.NDArray[np.int32]]] = {
        "input_ids": lambda: _filled(chain.from_iterable(row.ids for row in rows), used, tokens),
        "position_ids": lambda: positions,
        "token_type_ids": lambda: _types(rows, used, tokens),
        "token_offset": lambda: _offsets(begins, lengths, tokens, longest),
        "cumulative_lengths": lambda: begins,
    }
    return {name: given[name]() for name in inputs}


def _filled(values: Iterable[int], used: int, tokens: int) -> npt.NDArray[np.int32]:
    filled = np.zeros(tokens, np.int32)
    filled[:used] = np.fromiter(values, np.int32, used)
    return filled


def _types(rows: Sequence[Row], used: int, tokens: int) -> npt.NDArray[np.int32]:
    if all(row.type_ids is None for row in rows):
        return np.zeros(tokens, np.int32)
    return _filled(chain.from_iterable(repeat(0, row.tokens) if row.type_ids is None else row.type_ids for row in rows), used, tokens)


def _offsets(begins: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32], tokens: int, longest: int) -> npt.NDArray[np.int32]:
    """Where tokens stand in padded rows, and then the places of the padding; [rows, longest]."""
    rows = len(lengths)
    # A row's tokens stand that much further than they lie.
    shift = np.arange(rows, dtype=np.int32) * np.int32(longest) - begins[:-1]
    offsets = np.empty(rows * longest, np.int32)
    np.add(np.arange(tokens, dtype=np.int32), np.repeat(shift, lengths), out=offsets[:tokens])
    padding = np.ones(rows * longest, np.bool_)
    padding[offsets[:tokens]] = False
    offsets[tokens:] = np.flatnonzero(padding)
    return offsets.reshape(rows, longest)
