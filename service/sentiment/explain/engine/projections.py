"""Random projections of a text's mean hidden state after one layer: a few numbers that are distributed otherwise for other kinds of texts.

The directions are fixed: signs from a hash, so that a bundle's references stay valid with every version of every library. Signs keep
distances as well as normal numbers do (Achlioptas 2003, "Database-friendly random projections").
"""

import hashlib
import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sentiment.model.bundle import PROJECTIONS
from sentiment.model.classifier import Classifier
from sentiment.model.execute import Execute, here
from sentiment.model.session import ExplainSession, Stop
from sentiment.model.tensors import pad
from sentiment.model.tokenizer import Row


def layer_of(layers: int) -> int:
    """The layer to project: a third of the way up. It sees the order of words, which the last layers have turned into an answer."""
    return max(1, round(layers / 3))


def project(
    classifier: Classifier, session: ExplainSession, row: Row, layer: int, stop: Stop | None = None, execute: Execute = here
) -> list[float]:
    """The PROJECTIONS projections of a row: of the mean of its tokens' hidden states after ``layer``.

    ``stop`` ends the run with an error; ``execute`` runs the graph.

    Raises:
        OutOfMemory: too little memory for a row of this length.
    """
    feeds = pad([row], session.inputs, classifier.tokenizer.pad_id, classifier.manifest.padding_side == "left")
    name = f"hidden.{layer}"
    states = session.run(feeds, [name], np.zeros(1, np.int64), stop=stop, execute=execute)[name][0]
    mean = states.mean(axis=0, dtype=np.float64)
    found: list[float] = (mean @ _directions(len(mean))).tolist()
    return found


@lru_cache
def _directions(width: int) -> npt.NDArray[np.float64]:
    """Signs over the square root of the width, [width, PROJECTIONS]."""
    digest = hashlib.shake_256(b"sentiment hidden states").digest(-(-width * PROJECTIONS // 8))
    bits = np.unpackbits(np.frombuffer(digest, np.uint8))[: width * PROJECTIONS]
    signs = np.where(bits, 1.0, -1.0) / math.sqrt(width)
    return signs.reshape(width, PROJECTIONS)
