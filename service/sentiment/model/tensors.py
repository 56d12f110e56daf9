"""Rows to input arrays: padded to the longest row, or packed one after the other."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat

import numpy as np
import numpy.typing as npt

from sentiment.model.tokenizer import Row

Feeds = dict[str, npt.NDArray[np.int64]]
PackedFeeds = dict[str, npt.NDArray[np.int32]]


def pad(rows: Sequence[Row], inputs: Sequence[str], pad_id: int, left: bool, length: int = 0) -> Feeds:
    """Pad rows to the longest of them, or to ``length`` if that is greater. ``left``: padding stands before the text.

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
    """Concatenate rows without padding between them, as the graph of ``packed_graph.pack_graph`` reads them.

    Filler rows at the end bring the number of tokens to a multiple of ``multiple``. Each is at most as long as the longest row. Every
    token must belong to a row: otherwise the attention kernels write out of bounds. The graph returns logits for the filler rows too;
    the first ``len(rows)`` belong to ``rows``.

    Args:
        rows: at least one.
        inputs: the names of the graph's inputs.
        multiple: the number of tokens is a multiple of it, so that there are few distinct shapes.
        longest_min: the least number of columns of token_offset.
        rows_min: the least number of rows of token_offset; empty rows are added. With T = ``multiple`` tokens in at most R rows of at
            most S = ``longest_min`` tokens, R + T / S rows are always enough. Batches of many shapes then share one shape, which a
            CUDA graph needs.

    Returns:
        ``inputs`` among input_ids, position_ids, token_type_ids, each int32 [tokens]; token_offset, int32 [rows, longest]: the index of
        each token in the padded layout, then the indices of the padding in ascending order; cumulative_lengths, int32 [rows + 1]: the
        start of each row, then the number of tokens.
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
    """The indices of the tokens in the padded layout, then those of the padding; [rows, longest]."""
    rows = len(lengths)
    # By row: index in the padded layout minus index in the packed one.
    shift = np.arange(rows, dtype=np.int32) * np.int32(longest) - begins[:-1]
    offsets = np.empty(rows * longest, np.int32)
    np.add(np.arange(tokens, dtype=np.int32), np.repeat(shift, lengths), out=offsets[:tokens])
    padding = np.ones(rows * longest, np.bool_)
    padding[offsets[:tokens]] = False
    offsets[tokens:] = np.flatnonzero(padding)
    return offsets.reshape(rows, longest)
