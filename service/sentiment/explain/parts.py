"""The request for an explanation, and the parts of its answer. Pure."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from sentiment.explain.encoding import TOP_P_DEFAULT, Encoding, Tile
from sentiment.explain.methods.counterfactuals import Counterfactual
from sentiment.explain.methods.deciding import DecidingWords
from sentiment.explain.methods.evidence import Evidence
from sentiment.explain.methods.geometry import Geometry, Plane
from sentiment.explain.methods.heads import HeadEffects, HeadPatterns
from sentiment.explain.methods.neuron import NeuronView
from sentiment.explain.methods.target import Target
from sentiment.model.bundle import GraphSpec
from sentiment.model.scores import Scored
from sentiment.model.words import Encoded

Floats = npt.NDArray[np.float64]


class Aggregation(IntEnum):
    """How attention maps are aggregated. Values are those of the proto's AttentionAggregation, which describes each."""

    MAPS = 0
    WORDS = 1
    CLS_ROWS = 2
    HEAD_MEAN = 3
    ROLLOUT = 4
    ROLLOUT_VALUE_NORMS = 5
    ROLLOUT_GRADIENT = 6


ROLLOUTS = (Aggregation.ROLLOUT, Aggregation.ROLLOUT_VALUE_NORMS, Aggregation.ROLLOUT_GRADIENT)


@dataclass(frozen=True, slots=True)
class AttentionRequest:
    """Which attention maps to return. Empty ``layers`` or ``heads``: all."""

    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    encoding: Encoding = Encoding.U8
    aggregation: Aggregation = Aggregation.MAPS
    top_p: float = TOP_P_DEFAULT


@dataclass(frozen=True, slots=True)
class NeuronRequest:
    """The query token and the head of a neuron view."""

    layer: int = 0
    head: int = 0
    token: int = 0


@dataclass(frozen=True, slots=True)
class ExplanationRequest:
    """What to explain, and how.

    ``truncation``: refuse, head or head_tail; None: the model's default. ``label``: None: the predicted label. ``against`` and
    ``label_alone``: as for ``target_of``. ``methods``: empty: the default method. ``attributions``: whether to return any. ``steps``: 0:
    the method's default. ``estimates``: of the first attribution, before it is known. ``seed``: of random samples. ``bytes_max``: limit on
    all messages together; None: no limit. ``without``: sets of words to erase, by word index.
    ``target``: explain the answer towards it; None: to the whole text.
    """

    text: str
    text_pair: str | None = None
    truncation: str | None = None
    label: str | None = None
    against: str | None = None
    label_alone: bool = False
    methods: tuple[str, ...] = ()
    attributions: bool = True
    evidence: bool = True
    by_embedding: bool = False
    counterfactuals: bool = False
    heads: bool = False
    attention: AttentionRequest | None = None
    neuron: NeuronRequest | None = None
    geometry: bool = False
    steps: int = 0
    estimates: bool = False
    seed: int = 0
    bytes_max: int | None = None
    without: tuple[tuple[int, ...], ...] = ()
    target: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, or both texts of a pair."""
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)


@dataclass(frozen=True, slots=True)
class Header:
    """The answer that is explained.

    ``texts``: the texts that ``encoded`` holds. ``logit``: the explained logit of the served graph. ``agrees``: whether the
    explain graph predicts the same label; true without an explain graph. ``logit_error``: the largest difference between the logits of both
    graphs; None without an explain graph. ``unseen``: ranges that the model did not read, as (source, start, end): code points [start, end)
    of text ``source`` (0, or 1 for the second text of a pair). ``graph`` on ``provider`` gives the answer and all evidence;
    ``explain_provider`` runs the explain graph, empty without one. ``adaptive``: the answer of a part of the text that suffices for
    adaptive effort, if it tells callers something else than ``scored``.
    """

    texts: tuple[str, ...]
    encoded: Encoded
    scored: Scored
    target: Target
    logit: float
    agrees: bool
    logit_error: float | None
    unseen: tuple[tuple[int, int, int], ...]
    graph: GraphSpec
    provider: str
    explain_provider: str
    adaptive: Scored | None = None


@dataclass(frozen=True, slots=True)
class SentenceValue:
    """The value of the ``words`` of a sentence together, and its standard error, infinite where unknown.

    ``words_valued``: whether the words have values of their own; otherwise each has an equal part.
    """

    words: range
    value: float
    standard_error: float
    words_valued: bool


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """How much each word moved the explained logit: signed, not normalised.

    ``words`` [n]. ``tokens`` [tokens] and ``by_embedding`` [tokens, 3]: None if the method does not compute them. ``standard_errors`` [n]:
    0 where values are exact, infinite where unknown. ``residual``: the sum of the values minus the sum that they should have; nan if that
    is unknown. ``steps``: steps of the path, or sampled orders. ``steps_asked``: the number requested, larger if time ran out.
    ``sentences``: if whole sentences were erased. ``left_s``: of an estimate, about how many seconds of work are left; otherwise None.
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
    sentences: tuple[SentenceValue, ...] = ()
    left_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """The explanation in one sentence, by the attribution of ``method``: see ``sentiment.explain.reason``."""

    text: str
    method: str


@dataclass(frozen=True, slots=True)
class Counterfactuals:
    """The fewest words whose removal changes the answer (flip), and the fewest that alone preserve it (keep)."""

    flip: Counterfactual
    keep: Counterfactual


@dataclass(frozen=True, slots=True)
class Without:
    """The served answer when ``words`` (ascending word indices) are erased. ``probability`` is that of ``label``."""

    words: tuple[int, ...]
    label: int
    probability: float


@dataclass(frozen=True, slots=True, eq=False)
class AttentionTile:
    """A rectangle of one map. ``layer`` or ``head`` is -1 if the map combines layers or heads, or if its rows are heads."""

    layer: int
    head: int
    aggregation: Aggregation
    tile: Tile


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """Effect and pattern of every head.

    ``effects``: measured; None if there was no time. ``first_order`` [layers, heads]: estimated, see ``first_order_effects``.
    """

    patterns: HeadPatterns
    effects: HeadEffects | None
    first_order: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Neuron:
    """How one token's attention in one head comes about."""

    layer: int
    head: int
    view: NeuronView


@dataclass(frozen=True, slots=True, eq=False)
class WordGeometry:
    """Where the words lie after ``layer`` of ``layers`` (0: the embeddings) among the words ``golden``, whose places are in ``plane``."""

    layer: int
    layers: int
    golden: tuple[str, ...]
    plane: Plane
    found: Geometry


@dataclass(frozen=True, slots=True)
class Summary:
    """How the explanation ended. ``notes``: what was left out or shortened, and why. ``run_s``: seconds of work."""

    complete: bool
    notes: tuple[str, ...]
    served_rows: int
    explained_rows: int
    run_s: float
    queue_s: float = 0.0


Part = (
    Header
    | Attribution
    | Evidence
    | DecidingWords
    | Reason
    | Counterfactuals
    | Without
    | AttentionTile
    | Heads
    | Neuron
    | WordGeometry
    | Summary
)
