"""What a study of explanations found, as ``evaluate --explanations --json`` writes it and tables, page, card and manifest read it.

Values are in calibrated probability of the predicted label unless said otherwise. Intervals are of 95 %, by paired bootstrap over texts.
"""

from pydantic import BaseModel, ConfigDict, Field

# Shares of the words that are erased or kept, each at least one word (DeYoung et al. 2020, "ERASER").
FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)
# Ways of erasing. A method is called better only if it is under two of them.
OPERATORS = ("attention_mask", "mask_token", "deletion")
ATTRIBUTION, ATTENTION, BASELINE, BOUND, CONTROL = "attribution", "attention", "baseline", "bound", "control"
# The default attribution ranked by the size of its values: what it is worth without the sign, which most of attention lacks too.
UNSIGNED = "default_unsigned"
# Orders by nothing; what they come to is chance.
CHANCE = ("random", "uniform")
KINDS = {
    "integrated_gradients": ATTRIBUTION,
    "gradient_x_input": ATTRIBUTION,
    "occlusion": ATTRIBUTION,
    "shapley": ATTRIBUTION,
    "attention_last_cls": ATTENTION,
    "attention_mean_cls": ATTENTION,
    "rollout": ATTENTION,
    "rollout_value_norms": ATTENTION,
    "rollout_gradient": ATTENTION,
    "random": BASELINE,
    "uniform": BASELINE,
    "position_first": BASELINE,
    "position_last": BASELINE,
    "inverse_frequency": BASELINE,
    "lexicon": BASELINE,
    "greedy": BOUND,
    UNSIGNED: CONTROL,
}


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Difference(_Part):
    """A mean difference over texts with its interval; ``clear``: the interval leaves out 0."""

    mean: float
    low: float
    high: float
    texts: int = Field(gt=0)

    @property
    def clear(self) -> bool:
        """Whether it is more than chance."""
        return self.low > 0 or self.high < 0


class Faithfulness(_Part):
    """One ranking of words under one way of erasing.

    ``comprehensiveness`` (higher is better) and ``sufficiency`` (lower is better) are means over FRACTIONS (AOPC) and texts,
    ``by_fraction`` are their means at each. Fractions that are as many words count once in a text's mean. Normalised ones
    are shares from 0 to 1 of what the whole text moves the probability by, taken by the first words and kept by them alone (of both
    more is better), over the texts where that is more than 0.05; ``naopc``: between the worst and the best order that beam search
    finds (Edin et al. 2025), over up to 100 of the texts, None where none was short enough. ``greedy``, an order searched word by word
    for comprehensiveness, is of those texts alone that have up to 40 words: how many tells ``over_random``.
    ``flip``: the mean share of words to erase until the label changes, 1 where it never does. ``tau_loo``: Kendall's tau-b with
    leave-one-out by the same way of erasing, None where there is none; of texts over 128 tokens with occlusion, and only by the
    attention mask. ``over_random``: comprehensiveness less that of random orders; ``under_random``: their sufficiency less this one.
    """

    comprehensiveness: float
    sufficiency: float
    comprehensiveness_by_fraction: tuple[float, ...]
    sufficiency_by_fraction: tuple[float, ...]
    normalised_comprehensiveness: float | None
    normalised_sufficiency: float | None
    naopc: float | None
    flip: float
    tau_loo: float | None
    over_random: Difference | None
    under_random: Difference | None


class EvidenceFound(_Part):
    """The verdicts of the service's own evidence over the texts.

    ``tested``: not flat and with 19 random sets; ``better_of_tested``: the share of those that are better than random, with its interval.
    Words are erased by the attention mask, which is how occlusion and Shapley values score them.
    """

    better_than_random: int
    inconclusive: int
    not_faithful: int
    flat: int
    tested: int
    better_of_tested: float | None
    better_interval: tuple[float, float] | None = None


class MethodFound(_Part):
    """One method over all texts.

    ``operators``: by way of erasing. ``rows``: forward rows a text, the explain graph's counted as 3 (its backward part); ``ms``:
    the median time of a text on one core. ``stability``: mean Spearman correlation of word values before and after a change that
    means nothing, by change, of the texts in which the tokenizer sees it. ``residual``: median and 95th
    percentile of the relative completeness residual, of integrated gradients.
    """

    kind: str
    operators: dict[str, Faithfulness]
    rows: float
    ms: float
    evidence: EvidenceFound | None = None
    stability: dict[str, float] | None = None
    residual: tuple[float, float] | None = None


class Comparison(_Part):
    """Comprehensiveness of ``better`` less that of ``than`` on the same texts.

    ``holds``: above 0 and clear of it by every way of erasing.
    """

    better: str
    than: str
    operators: dict[str, Difference]
    holds: bool


class AttentionFound(_Part):
    """Jain and Wallace 2019, Serrano and Smith 2019, and what is left without learned attention.

    ``tau_gradient`` and ``tau_loo``: mean Kendall's tau-b of attention methods with |gradient x input| and with leave-one-out.
    ``adversarial``: by the largest change of the output allowed (total variation distance, as text): median Jensen-Shannon distance in
    nats between the model's last-layer attention and the farthest found, in the mean of the heads, and the share of texts where it is
    above half of ln 2; ``adversarial_shown``: likewise between the means of the heads, which is what a map shows.
    ``top_weight``: mean JS(p, p without the top weight) less JS(p, p without a random one) with its interval; ``top_weight_flips``: the
    share of texts whose decision flips without either. ``flip_share``: mean share of last-layer weights to remove until the decision
    flips, by ranking, 1 where it never does; ``flips``: the share of texts where it does. ``erased_texts``: of these three.
    ``uniform_accuracy``: accuracy with a layer's attention made uniform, all layers' last, and ``accuracy`` with learned attention, both
    by the explain graph over ``uniform_texts``.
    ``randomisation``: tau-b of values with those of the same model with last layers drawn anew, by method; ``randomisation_sizes``: of
    their sizes, without the signs. None: not measured, for this architecture, or, of ``randomisation`` alone, where no text has two
    words. Correlations that no text has are left out.
    """

    accuracy: float
    uniform_accuracy: tuple[float, ...]
    uniform_texts: int = 0
    tau_gradient: dict[str, float]
    tau_loo: dict[str, float]
    adversarial: dict[str, tuple[float, float]] | None = None
    adversarial_shown: dict[str, tuple[float, float]] | None = None
    adversarial_texts: int = 0
    top_weight: Difference | None = None
    top_weight_flips: tuple[float, float] | None = None
    flip_share: dict[str, float] | None = None
    flips: dict[str, float] | None = None
    erased_texts: int = 0
    randomisation: dict[str, float] | None = None
    randomisation_sizes: dict[str, float] | None = None
    randomisation_texts: int = 0


class HeadsFound(_Part):
    """Heads over a corpus, [layers][heads]: mean size of the estimated effect in logits, the most frequent pattern, its share of texts.

    ``lift``: by pattern, the mean over the texts that can show it; 0 for a head that looks everywhere alike, 1 for the pure pattern.
    Patterns that no text can show are left out.
    """

    texts: int
    effect: tuple[tuple[float, ...], ...]
    pattern: tuple[tuple[str, ...], ...]
    pattern_share: tuple[tuple[float, ...], ...]
    lift: dict[str, tuple[tuple[float, ...], ...]] = {}


class Plausible(_Part):
    """Agreement with what people marked: mean area under the precision-recall curve and token F1 at the rationale's share and at 20 %."""

    auprc: float
    auprc_interval: tuple[float, float]
    f1_at_share: float
    f1_at_20: float


class PlausibilityFound(_Part):
    """Agreement with people over ``documents``; it says nothing of faithfulness.

    ``prevalence``: the share of words that people marked. ``methods`` has ``random``, the mean over all orders of words: in AUPRC it is
    above the prevalence, the more so the fewer words are marked.
    """

    documents: int
    prevalence: float
    sha256: str
    methods: dict[str, Plausible]


class DatasetFound(_Part):
    """The study of one file: ``texts`` of its ``rows``, by the seed. ``agreement``: mean tau-b of word scores, by method and method.

    ``comparisons``: of the default with attention, attributions and baselines, and of ``default_unsigned`` with attention. ``unseen``:
    by change that means nothing, in how many texts the tokenizer does not see it, so that nothing could move. ``words``: in the mean;
    ``words_max``: of the longest text, as it is read.
    """

    texts: int = Field(gt=0)
    rows: int
    sha256: str
    words: float
    words_max: int
    accuracy: float
    methods: dict[str, MethodFound]
    comparisons: tuple[Comparison, ...]
    attention: AttentionFound | None = None
    heads: HeadsFound | None = None
    agreement: dict[str, dict[str, float]] | None = None
    unseen: dict[str, int] = {}
    seconds: float = 0.0


class Findings(_Part):
    """A whole study of one bundle. ``default_method``: the attribution that the bundle serves first, or shall."""

    bundle: str
    digest: str
    graph: str
    graph_sha256: str
    operators: tuple[str, ...]
    default_method: str
    seed: int
    datasets: dict[str, DatasetFound] = Field(min_length=1)
    plausibility: PlausibilityFound | None = None
