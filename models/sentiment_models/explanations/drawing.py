"""Which texts a costly test takes. Pure."""

from collections.abc import Sequence

import numpy as np


def drawn(tokens: Sequence[int], texts_max: int, tokens_max: int, rng: np.random.Generator) -> list[int]:
    """Random texts, by their places in rising order: at most so many, with at most so many tokens together, but always one.

    Args:
        tokens: of each text, at least one text.
        texts_max: at least 1.
        tokens_max: of all that are drawn.
        rng: draws them; every text is as likely as any other to come first.
    """
    places = rng.permutation(len(tokens))[:texts_max]
    fit = int(np.searchsorted(np.cumsum([tokens[place] for place in places]), tokens_max, side="right"))
    return sorted(int(place) for place in places[: max(1, fit)])
