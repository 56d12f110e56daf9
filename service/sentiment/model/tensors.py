"""Rows to arrays: padded to the longest, or packed one after the other."""

from collections.abc import Sequence

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
    used = sum(row.tokens for row in rows)
    tokens = -(-used // multiple) * multiple
    longest = max(longest_min, *(row.tokens for row in rows))
    whole, rest = divmod(tokens - used, longest)
    lengths = [*(row.tokens for row in rows), *[longest] * whole, *[rest] * (rest > 0)]
    lengths += [0] * (rows_min - len(lengths))
    begins = np.cumsum([0, *lengths], dtype=np.int32)
    ids, types, positions = (np.zeros(tokens, np.int32) for _ in range(3))
    for row, begin in zip(rows, begins, strict=False):
        place = slice(begin, begin + row.tokens)
        ids[place] = row.ids
        positions[place] = np.arange(row.tokens)
        if row.type_ids is not None:
            types[place] = row.type_ids
    stands = np.arange(longest) < np.array(lengths)[:, None]
    offsets = np.concatenate([np.flatnonzero(stands), np.flatnonzero(~stands)])
    feeds = {
        "input_ids": ids,
        "position_ids": positions,
        "token_type_ids": types,
        "token_offset": offsets.astype(np.int32).reshape(stands.shape),
        "cumulative_lengths": begins,
    }
    return {name: feeds[name] for name in inputs}
