"""Masked tokens as BERT learns from them (Devlin et al. 2019). Knows nothing of torch, files or texts."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

CHOSEN = 0.15
"""The share of the positions that are to be predicted."""
HIDDEN, REPLACED = 0.8, 0.1
"""Of these, the share that shows the mask and the share that shows a random token; the rest shows what stands there."""
IGNORED = -100
"""The label of a position that is not to be predicted; the one that torch leaves out of a loss."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What masking knows of the tokens: the mask's id, which ids are special ([vocabulary]), and the others, in order."""

    mask_id: int
    special: NDArray[np.bool_]
    plain: Ids

    @classmethod
    def of(cls, size: int, mask_id: int, special_ids: list[int]) -> "Vocabulary":
        """Make it of the number of ids and of those that are special."""
        special = np.zeros(size, np.bool_)
        special[special_ids] = True
        return cls(mask_id, special, np.flatnonzero(~special))


def mask(ids: Ids, vocabulary: Vocabulary, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """Choose 15 % of the positions, at least one, and hide what stands there.

    Special tokens are neither chosen nor counted, nor do they replace others.

    Args:
        ids: [tokens]; not changed.
        vocabulary: what the ids are.
        rng: what chooses; equal generators choose equally.

    Returns:
        What the model reads and what it shall answer, both [tokens]; the answer is -100 where nothing was chosen, and
        everywhere if all tokens are special.
    """
    candidates = np.flatnonzero(~vocabulary.special[ids])
    count = min(len(candidates), max(1, round(CHOSEN * len(candidates))))
    chosen = rng.permutation(candidates)[:count]
    read, labels = ids.copy(), np.full_like(ids, IGNORED)
    labels[chosen] = ids[chosen]
    draw = rng.random(count)
    read[chosen[draw < HIDDEN]] = vocabulary.mask_id
    replaced = chosen[(draw >= HIDDEN) & (draw < HIDDEN + REPLACED)]
    read[replaced] = rng.choice(vocabulary.plain, len(replaced))
    return read, labels
