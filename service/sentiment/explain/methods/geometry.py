"""Where the words of a text lie among known words, after one layer: principal components, and the closest words. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentiment.model.words import Word

Floats = npt.NDArray[np.float32]

# Closest known words that are named for each word.
NEAREST = 5


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """Places of a text's words after one layer.

    ``points`` [words, 2], in the plane of ``Plane.points``. ``nearest`` int32 [words, n], n at most NEAREST: the known words with the
    largest ``cosines`` [words, n], the closest first, each spelling once.
    """

    points: Floats
    nearest: npt.NDArray[np.int32]
    cosines: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """The two directions in which the known words differ most.

    ``mean`` [width] and ``axes`` [2, width]; ``points`` [known, 2]. ``variance`` [2]: shares of the known words' variance along the axes.
    ``directions`` [known, width]: the known words less their mean, of length 1.
    """

    mean: Floats
    axes: Floats
    points: Floats
    variance: Floats
    directions: Floats


def word_states(hidden: Floats, words: Sequence[Word]) -> Floats:
    """The mean of each word's tokens, [words, width], from hidden states [tokens, width]."""
    states = np.empty((len(words), hidden.shape[1]), np.float32)
    for index, word in enumerate(words):
        states[index] = hidden[word.first : word.last].mean(axis=0)
    return states


def plane_of(states: Floats, before: Plane | None = None) -> Plane:
    """The plane of known words [known, width], at least one. Oriented as that of the layer ``before``, so that neither axis is mirrored."""
    mean = states.mean(axis=0)
    centred = (states - mean).astype(np.float64)
    _, lengths, found = np.linalg.svd(centred, full_matrices=False)
    axes = np.zeros((2, states.shape[1]))
    axes[: len(found[:2])] = found[:2]
    points = centred @ axes.T
    # A principal component has no sign. The first plane has its outermost word on the positive side.
    likeness = points[np.abs(points).argmax(axis=0), [0, 1]] if before is None else (before.points * points).sum(axis=0)
    signs = np.where(likeness < 0, -1.0, 1.0)
    squares = np.zeros(2)
    squares[: len(lengths[:2])] = lengths[:2] ** 2
    shares = squares / max(float((lengths**2).sum()), np.finfo(np.float64).tiny)
    return Plane(
        mean,
        (axes * signs[:, None]).astype(np.float32),
        (points * signs).astype(np.float32),
        shares.astype(np.float32),
        _directions(centred).astype(np.float32),
    )


def locate(states: Floats, plane: Plane, spellings: Sequence[str]) -> Geometry:
    """Locate the words [words, width] of a text. ``spellings``: of the known words; case makes no difference."""
    centred = states - plane.mean
    cosines = _directions(centred.astype(np.float64)) @ plane.directions.T.astype(np.float64)
    alike: dict[str, list[int]] = {}
    for index, spelling in enumerate(spellings):
        alike.setdefault(spelling.casefold(), []).append(index)
    # For each spelling the closest of its words.
    best = np.empty((len(states), len(alike)))
    of = np.empty((len(states), len(alike)), np.int32)
    for column, known in enumerate(alike.values()):
        closest = cosines[:, known].argmax(axis=1)
        of[:, column] = np.array(known, np.int32)[closest]
        best[:, column] = cosines[np.arange(len(states)), of[:, column]]
    order = np.argsort(-best, axis=1, kind="stable")[:, :NEAREST]
    return Geometry(
        (centred @ plane.axes.T).astype(np.float32),
        np.take_along_axis(of, order, axis=1),
        np.take_along_axis(best, order, axis=1).astype(np.float32),
    )


def _directions(vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Scaled to length 1; a vector of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: npt.NDArray[np.float64] = vectors / np.maximum(lengths, np.finfo(np.float64).tiny)
    return scaled
