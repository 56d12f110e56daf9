"""How one token's attention in one head comes about, number by number: the data of a neuron view (Vig 2019). Pure."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class NeuronView:
    """What one head computes for query token ``token``; arrays over the ``tokens`` that it may look at.

    ``query`` [width], ``key`` [tokens, width]; ``product`` [tokens, width] is query x key in each dimension and ``dot`` its sum;
    ``scaled`` is ``scale`` x dot. ``bias`` is score - scaled: relative positions and the mask, else 0 but for rounding. ``score`` is what
    softmax was given, ``softmax`` what it gives in float64, ``attention`` what the model used, and ``max_abs_error`` the largest difference
    between these two: above 1e-5 or so, the view does not show what the model did.

    ``top_dimensions`` int32 [tokens, n]: where |product| is largest, the largest first.
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
    top_dimensions: npt.NDArray[np.int32]


def neuron_view(query: Floats, key: Floats, score: Floats, attention: Floats, *, scale: float, token: int, top: int) -> NeuronView:
    """Take the attention of ``token`` in one layer and head apart.

    Args:
        query: [tokens, width of the head].
        key: likewise.
        score: what softmax was given, [tokens, tokens], rows belong to queries; may have -inf where the mask is.
        attention: what it gave, likewise.
        scale: what query . key is multiplied with: 1 / sqrt(width) in BERT (Vaswani et al. 2017), 1 if queries come scaled.
        token: which query.
        top: how many dimensions to name for each key.

    Raises:
        ValueError: the shapes do not fit, there is no such token, there are fewer dimensions, or the scores of the token are not numbers.
    """
    tokens, width = _check_shapes(query, key, score, attention)
    if not 0 <= token < tokens:
        raise ValueError(f"token is {token}; the tokens are 0 to {tokens - 1}")
    if not 1 <= top <= width:
        raise ValueError(f"top is {top}; the dimensions are 1 to {width}")
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
        # Copies, or the view would keep the whole matrices.
        score=score[token].copy(),
        softmax=softmax.astype(np.float32),
        attention=attention[token].copy(),
        max_abs_error=float(np.abs(softmax - attention[token]).max()),
        top_dimensions=np.argsort(-np.abs(product), axis=1, kind="stable")[:, :top].astype(np.int32),
    )


def _check_shapes(query: Floats, key: Floats, score: Floats, attention: Floats) -> tuple[int, int]:
    if query.ndim != 2 or key.shape != query.shape:
        raise ValueError(f"query is {list(query.shape)}, key {list(key.shape)}; both are [tokens, width]")
    square = (len(query), len(query))
    for name, matrix in (("score", score), ("attention", attention)):
        if matrix.shape != square:
            raise ValueError(f"{name} is {list(matrix.shape)}; for this query it is {list(square)}")
    return query.shape[0], query.shape[1]


def _softmax(score: npt.NDArray[np.float64], token: int) -> npt.NDArray[np.float64]:
    top = score.max()
    # NaN if any score is, -inf if all are masked.
    if not np.isfinite(top):
        raise ValueError(f"the highest score of token {token} is {top}; it is finite")
    weights = np.exp(score - top)
    softmax: npt.NDArray[np.float64] = weights / weights.sum()
    return softmax
