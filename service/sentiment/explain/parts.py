"""What can be asked of an explanation, and the parts that it is given in. Pure."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from sentiment.explain.encoding import TOP_P_DEFAULT, Encoding, Tile
from sentiment.explain.methods.counterfactuals import Counterfactual
from sentiment.explain.methods.evidence import Evidence
from sentiment.explain.methods.heads import HeadEffects, HeadPatterns
from sentiment.explain.methods.neuron import NeuronView
from sentiment.model.scores import Scored
from sentiment.model.words import Encoded

Floats = npt.NDArray[np.float64]


class Aggregation(IntEnum):
    """What attention maps are made into; the numbers are those of the proto's AttentionAggregation, which says what each is."""

    MAPS = 0
    WORDS = 1
    CLS_ROWS = 2
    HEAD_MEAN = 3
    ROLLOUT = 4
    ROLLOUT_VALUE_NORMS = 5
    ROLLOUT_GRADIENT = 6


ROLLOUTS = (Aggregation.ROLLOUT, Aggregation.ROLLOUT_VALUE_NORMS, Aggregation.ROLLOUT_GRADIENT)


@dataclass(frozen=True, slots=True)
class AttentionAsked:
    """Which attention maps; ``layers`` and ``heads``: empty for all."""

    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    encoding: Encoding = Encoding.U8
    aggregation: Aggregation = Aggregation.MAPS
    top_p: float = TOP_P_DEFAULT


@dataclass(frozen=True, slots=True)
class NeuronAsked:
    """Which token of which head to take apart."""

    layer: int = 0
    head: int = 0
    token: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """What shall be explained, and how.

    ``truncation``: None for the model's default, or refuse, head, head_tail; ``label``: None for the answer; ``methods``: none for the
    default one; ``attributions``: whether there are any; ``steps``: 0 for the method's own; ``seed``: of what is drawn;
    ``bytes_max``: how large all messages together may become, None for no limit; ``without``: sets of words to erase, by their indices.
    """

    text: str
    text_pair: str | None = None
    truncation: str | None = None
    label: str | None = None
    methods: tuple[str, ...] = ()
    attributions: bool = True
    evidence: bool = True
    by_embedding: bool = False
    counterfactuals: bool = False
    heads: bool = False
    attention: AttentionAsked | None = None
    neuron: NeuronAsked | None = None
    steps: int = 0
    seed: int = 0
    bytes_max: int | None = None
    without: tuple[tuple[int, ...], ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, or both of a pair."""
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)


@dataclass(frozen=True, slots=True)
class Header:
    """The answer that is explained.

    ``texts``: what ``encoded`` is of; ``logit``: the explained label's, served; ``agrees``: the explain graph gives the same answer, true
    without one; ``logit_error``: the most that a logit of it differs, None without one; ``unseen``: code points [start, end) of the
    text ``source`` (0, or 1 for the second of a pair) that were not read, as (source, start, end).
    """

    texts: tuple[str, ...]
    encoded: Encoded
    scored: Scored
    label: int
    logit: float
    agrees: bool
    logit_error: float | None
    unseen: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """How much each word moved the explained label's logit, signed; nothing is normalised.

    ``words`` [n]; ``tokens`` [tokens] and ``by_embedding`` [tokens, 3] where the method tells, else None; ``standard_errors`` [n], 0 where
    exact, infinite where nothing says; ``residual``: their sum less what it should be, nan where nothing says; ``steps``: of the path, or
    orders that were drawn; ``steps_asked``: more, where time was short.
    """

    method: str
    words: Floats
    tokens: Floats | None
    by_embedding: Floats | None
    standard_errors: Floats
    residual: float
    special_total: float
    unknown_total: float
    steps: int
    steps_asked: int


@dataclass(frozen=True, slots=True)
class Counterfactuals:
    """The fewest words whose removal changes the answer, and the fewest that alone keep it."""

    flip: Counterfactual
    keep: Counterfactual


@dataclass(frozen=True, slots=True)
class Without:
    """The served answer when ``words``, indices in the order of the text, are erased; ``probability`` is that of ``label``."""

    words: tuple[int, ...]
    label: int
    probability: float


@dataclass(frozen=True, slots=True, eq=False)
class AttentionTile:
    """A rectangle of one map; ``layer`` and ``head`` are -1 where a map combines them or has them as rows."""

    layer: int
    head: int
    aggregation: Aggregation
    tile: Tile


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """Effect and pattern of every head.

    ``effects``: measured, None where time was short; ``first_order`` [layers, heads]: estimated, see ``first_order_effects``.
    """

    patterns: HeadPatterns
    effects: HeadEffects | None
    first_order: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Neuron:
    """One token's attention in one head, taken apart."""

    layer: int
    head: int
    view: NeuronView


@dataclass(frozen=True, slots=True)
class Summary:
    """How the explanation ended. ``notes``: what was left out or shortened, and why; ``run_s``: seconds of work."""

    complete: bool
    notes: tuple[str, ...]
    served_rows: int
    explained_rows: int
    run_s: float
    queue_s: float = 0.0


Part = Header | Attribution | Evidence | Counterfactuals | Without | AttentionTile | Heads | Neuron | Summary
