"""Masked tokens for BERT's pre-training (Devlin et al. 2019). Knows nothing of torch, files or texts."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

CHOSEN = 0.15
"""Share of the positions to predict."""
HIDDEN, REPLACED = 0.8, 0.1
"""Shares of the chosen positions that show the mask and a random token. The rest show the original token."""
IGNORED = -100
"""Label of a position that is not predicted. torch's cross_entropy ignores it."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token ids for masking: ``mask_id``; ``special``, [vocabulary]; ``plain``, the ids that are not special, in order."""

    mask_id: int
    special: NDArray[np.bool_]
    plain: Ids

    @classmethod
    def of(cls, size: int, mask_id: int, special_ids: list[int]) -> "Vocabulary":
        """Make a vocabulary from the number of ids and the list of special ids."""
        special = np.zeros(size, np.bool_)
        special[special_ids] = True
        return cls(mask_id, special, np.flatnonzero(~special))


def mask(ids: Ids, vocabulary: Vocabulary, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """Choose 15 % of the positions, at least one, and hide their tokens.

    Special tokens are not chosen, not counted and never replace other tokens.

    Args:
        ids: [tokens]; not changed.
        vocabulary: the meaning of the ids.
        rng: source of randomness; equal generators give equal results.

    Returns:
        The model's input and the labels, both [tokens]. A label is -100 at every position that was not chosen, and at all positions if all
        tokens are special.
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
