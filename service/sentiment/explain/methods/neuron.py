"""The data of a neuron view: the numbers that one head computes for one query token (Vig 2019). Pure."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class NeuronView:
    """What one head computes for the query token ``token``. Arrays run over the key tokens.

    ``query`` [width]; ``key`` [tokens, width]. ``product`` [tokens, width]: query x key per dimension; ``dot``: its sum; ``scaled``:
    ``scale`` x dot. ``bias``: score - scaled, which is relative positions and the mask, and otherwise 0 except for rounding. ``score``: the
    input of softmax. ``softmax``: its output in float64. ``attention``: what the model used. ``max_abs_error``: the largest difference
    between the last two; above about 1e-5, the view does not show what the model did.
    """

    token: int
    scale: float
    query: Floats
    key: Floats
    product: Floats
    dot: Floats
    scaled: Floats
    bias: Floats
    score: Floats
    softmax: Floats
    attention: Floats
    max_abs_error: float


def neuron_view(query: Floats, key: Floats, score: Floats, attention: Floats, *, scale: float, token: int) -> NeuronView:
    """Compute the neuron view of ``token`` in one layer and head.

    Args:
        query: [tokens, width of the head].
        key: [tokens, width of the head].
        score: input of softmax, [tokens, tokens], one row per query; may be -inf where masked.
        attention: output of softmax, [tokens, tokens].
        scale: factor of query . key: 1 / sqrt(width) in BERT (Vaswani et al. 2017), 1 if the queries are already scaled.
        token: index of the query token.

    Raises:
        ValueError: the highest score of the token is not finite.
    """
    product = query[token].astype(np.float64) * key
    dot = product.sum(1)
    given = score[token].astype(np.float64)
    softmax = _softmax(given, token)
    return NeuronView(
        token=token,
        scale=scale,
        query=query[token],
        key=key,
        product=product.astype(np.float32),
        dot=dot.astype(np.float32),
        scaled=(scale * dot).astype(np.float32),
        bias=(given - scale * dot).astype(np.float32),
        # Copies; otherwise the view keeps the whole matrices in memory.
        score=score[token].copy(),
        softmax=softmax.astype(np.float32),
        attention=attention[token].copy(),
        max_abs_error=float(np.abs(softmax - attention[token]).max()),
    )


def _softmax(score: npt.NDArray[np.float64], token: int) -> npt.NDArray[np.float64]:
    top = score.max()
    # NaN if any score is NaN, -inf if all are masked.
    if not np.isfinite(top):
        raise ValueError(f"the highest score of token {token} must be finite, got {top}")
    weights = np.exp(score - top)
    softmax: npt.NDArray[np.float64] = weights / weights.sum()
    return softmax
