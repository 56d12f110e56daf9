"""Rows to padded arrays."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sentiment.model.tokenizer import Row

Feeds = dict[str, npt.NDArray[np.int64]]


def pad(rows: Sequence[Row], inputs: Sequence[str], pad_id: int, left: bool) -> Feeds:
    """Pad rows to the longest of them.

    Returns:
        ``inputs`` among input_ids, attention_mask, token_type_ids, each int64 [rows, longest].
    """
    length = max(row.tokens for row in rows)
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
