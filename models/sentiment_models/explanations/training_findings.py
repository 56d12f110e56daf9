"""What training small encoders told of attention, as ``attention-tests`` writes it to results.json and a card reads it.

Wiegreffe and Pinter 2019, "Attention is not not Explanation". Accuracy is on held-out texts. Attention is the first token's in the last
layer, the mean of the heads, over words. Divergence is Jensen-Shannon's in nats, from 0 to ln 2 = 0.693, the mean over texts. Output change
is the total variation distance of the stated probabilities, from 0 to 1, the mean over texts. Intervals are of 95 % by bootstrap over the
held-out texts: they do not cover other draws of training texts.
"""

import math

from pydantic import BaseModel, ConfigDict, Field

from sentiment_models.explanations.findings import Difference

DIVERGENCE_MAX = math.log(2)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Accuracy(_Part):
    """The mean accuracy of models that differ in their seed alone, with its interval, and that of each."""

    mean: float
    low: float
    high: float
    seeds: tuple[float, ...] = Field(min_length=1)


class SeedPair(_Part):
    """Two encoders that differ in their seed alone: the divergence of their attention, output change, share of texts of one answer."""

    first: int
    second: int
    divergence: float
    output_change: float
    agreement: float


class SeedsFound(_Part):
    """How much attention differs between trainings: the noise floor of whatever is said about it.

    ``divergence`` and ``output_change``: means over the pairs. ``divergence_from_uniform``: that of an encoder's attention from weights
    that are all alike, the mean over the encoders. ``on_words``: the share of the attention that words get; special tokens get the rest.
    """

    accuracy: Accuracy
    pairs: tuple[SeedPair, ...] = Field(min_length=1)
    divergence: float
    output_change: float
    divergence_from_uniform: float
    on_words: float


class UniformFound(_Part):
    """Encoders trained with attention frozen uniform, in the last layer alone and in all.

    ``last_loss`` and ``all_loss``: accuracy with learned attention less theirs, on the same texts.
    """

    learned: Accuracy
    last_layer: Accuracy
    all_layers: Accuracy
    last_loss: Difference
    all_loss: Difference


class AdversaryFound(_Part):
    """An encoder trained to answer as the base does with other attention; ``weight``: how much its attention counted in training, 0: not
    at all, which tells what going on with training changes by itself.

    ``kl``: Kullback-Leibler divergence of its attention from the base's, in nats. ``agreement``: the share of texts that it answers as
    the base does. ``on_words``: the share of its attention that words get.
    """

    weight: float
    output_change: float
    divergence: float
    kl: float
    agreement: float
    accuracy: float
    on_words: float


class AdversariesFound(_Part):
    """The curve of trained adversaries, by growing weight of attention in ``TVD - weight * KL``; ``base``: the base's accuracy.

    ``chosen``: the weight whose adversary lends its attention to the bag: of those that change the output by at most ``allowed``, what
    another seed changes it by, the one with the farthest attention; where none does, the one that changes the output least. No label
    has a part in it.
    """

    base: float
    curve: tuple[AdversaryFound, ...] = Field(min_length=1)
    chosen: float
    allowed: float


class FrozenFound(_Part):
    """A bag of embeddings that weighs words by given weights, by whose they are; it sees no order and no other word.

    Each seed's bag gets the attention of that seed's encoder; the adversary is a single one, the base's. ``over_uniform``: accuracy less
    that with uniform weights on the same texts. ``attention_over_adversary``: with the encoders' attention less with the adversary's.
    """

    accuracy: dict[str, Accuracy]
    over_uniform: dict[str, Difference]
    attention_over_adversary: Difference


class TrainingFindings(_Part):
    """All four tests; a test that has not been done yet is None.

    ``files``: SHA-256 by name. ``train_texts`` and ``heldout_texts``: how many were drawn. ``words``: mean words of a held-out text.
    ``settings``: as given, without folders. ``seconds``: of each test, training included.
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
