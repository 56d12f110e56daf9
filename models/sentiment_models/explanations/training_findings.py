"""The results of ``attention-tests`` on small encoders, as written to results.json and read by a card.

Wiegreffe and Pinter 2019, "Attention is not not Explanation". Accuracy is on held-out texts. Attention is that of the first token in the
last layer over words, the mean over the heads. Divergence is Jensen-Shannon in nats, from 0 to ln 2 = 0.693, the mean over texts. Output
change is the total variation distance of the probabilities, from 0 to 1, the mean over texts. Intervals are 95 %, by bootstrap over the
held-out texts; they do not cover other draws of training texts.
"""

import math

from pydantic import Field

from sentiment_models.explanations.findings import Difference
from sentiment_models.stored import Stored

DIVERGENCE_MAX = math.log(2)
# Sources of a bag's weights: uniform, learned by the bag, attention of the encoder with the same seed, attention of the adversary.
UNIFORM, LEARNED, ATTENTION, ADVERSARY = "uniform", "learned", "attention", "adversary"


class Accuracy(Stored):
    """The mean accuracy of models that differ only in their seed, with its interval, and the accuracy of each."""

    mean: float
    low: float
    high: float
    seeds: tuple[float, ...] = Field(min_length=1)


class SeedPair(Stored):
    """Two encoders that differ only in their seed: divergence of attention, output change, share of texts with the same answer."""

    first: int
    second: int
    divergence: float
    output_change: float
    agreement: float


class SeedsFound(Stored):
    """How much attention differs between trainings: the noise floor for all other comparisons.

    ``divergence`` and ``output_change``: means over the pairs. ``divergence_from_uniform``: from uniform weights, the mean over the
    encoders. ``on_words``: the share of attention on words; the rest is on special tokens.
    """

    accuracy: Accuracy
    pairs: tuple[SeedPair, ...] = Field(min_length=1)
    divergence: float
    output_change: float
    divergence_from_uniform: float
    on_words: float


class UniformFound(Stored):
    """Encoders trained with uniform attention, in the last layer only and in all layers.

    ``last_loss`` and ``all_loss``: accuracy with learned attention minus theirs, on the same texts.
    """

    learned: Accuracy
    last_layer: Accuracy
    all_layers: Accuracy
    last_loss: Difference
    all_loss: Difference


class AdversaryFound(Stored):
    """An encoder trained to give the base's answers with other attention.

    ``weight``: weight of the attention term in training; 0 shows the effect of further training alone. ``kl``: Kullback-Leibler divergence
    of its attention from the base's, in nats. ``agreement``: the share of texts with the base's answer. ``on_words``: the share of
    attention on words.
    """

    weight: float
    output_change: float
    divergence: float
    kl: float
    agreement: float
    accuracy: float
    on_words: float


class AdversariesFound(Stored):
    """The trained adversaries by rising weight in the loss ``TVD - weight * KL``; ``base``: accuracy of the base.

    ``allowed``: the output change between seeds. ``chosen``: the weight of the adversary whose attention the bag uses. It is the one
    with the largest divergence among those that change the output by at most ``allowed``; if there is none, the one that changes the
    output least. The choice uses no labels.
    """

    base: float
    curve: tuple[AdversaryFound, ...] = Field(min_length=1)
    chosen: float
    allowed: float


class FrozenFound(Stored):
    """Bags of embeddings with given word weights, by source of the weights.

    Each seed's bag gets the attention of that seed's encoder; there is only one adversary. ``over_uniform``: accuracy minus that with
    uniform weights on the same texts. ``attention_over_adversary``: accuracy with the encoders' attention minus that with the adversary's.
    """

    accuracy: dict[str, Accuracy]
    over_uniform: dict[str, Difference]
    attention_over_adversary: Difference


class TrainingFindings(Stored):
    """All four tests; None: not done yet.

    ``files``: SHA-256 by name. ``train_texts`` and ``heldout_texts``: number of drawn texts. ``words``: mean words per held-out text.
    ``settings``: as given, without folders. ``seconds``: time of each test, including training.
    """

    files: dict[str, str]
    fingerprint: str
    train_texts: int
    heldout_texts: int
    words: float
    vocabulary: int
    parameters: int
    majority: float
    settings: dict[str, int | float | str | tuple[float, ...] | tuple[str, ...]]
    seconds: dict[str, float] = Field(default_factory=dict)
    seeds: SeedsFound | None = None
    uniform: UniformFound | None = None
    adversaries: AdversariesFound | None = None
    frozen: FrozenFound | None = None
