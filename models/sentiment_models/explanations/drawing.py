"""Draw the texts of a costly test. Pure."""

from collections.abc import Sequence

import numpy as np


def drawn(tokens: Sequence[int], texts_max: int, tokens_max: int, rng: np.random.Generator) -> list[int]:
    """Draw texts at random within limits, but at least one. Return their indices in rising order.

    Args:
        tokens: the tokens of each text; at least one text.
        texts_max: the most texts, at least 1.
        tokens_max: the most tokens of all drawn texts together.
        rng: random generator.
    """
    places = rng.permutation(len(tokens))[:texts_max]
    fit = int(np.searchsorted(np.cumsum([tokens[place] for place in places]), tokens_max, side="right"))
    return sorted(int(place) for place in places[: max(1, fit)])
