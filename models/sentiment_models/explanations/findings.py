"""The results of a study of explanations, as ``evaluate --explanations --json`` writes them. Tables, page, card and manifest read them.

Values are in calibrated probability of the predicted label unless stated otherwise; see ``Findings.against_runner_up``. Intervals are 95 %,
by paired bootstrap over texts.
"""

from pydantic import Field

from sentiment.explain.methods.registry import METHODS
from sentiment_models.stored import Stored

# Shares of the words that are erased or kept, at least one word each (DeYoung et al. 2020, "ERASER").
FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)
# Operators: ways of erasing words. A method is called better only if it is better with all of them.
OPERATORS = ("attention_mask", "mask_token", "deletion")
ATTRIBUTION, ATTENTION, BASELINE, BOUND, CONTROL = "attribution", "attention", "baseline", "bound", "control"
# The default attribution ranked by absolute value: its worth without the sign, which most attention rankings lack too.
UNSIGNED = "default_unsigned"
# Random orders: their results are chance level.
CHANCE = ("random", "uniform")
KINDS = {
    **dict.fromkeys(METHODS, ATTRIBUTION),
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

# With fewer texts the interval excludes 0 by chance in more than 5 % of studies; with a single text, in half of the studies.
TEXTS_MIN = 20


class Difference(Stored):
    """A mean difference over texts with its interval."""

    mean: float
    low: float
    high: float
    texts: int = Field(gt=0)

    @property
    def shown(self) -> int:
        """1 if the mean is shown to be above 0, -1 if below, else 0: the interval has 0 in it, or there are too few texts to tell."""
        if self.texts < TEXTS_MIN:
            return 0
        return (self.low > 0) - (self.high < 0)


class Faithfulness(Stored):
    """One ranking of words with one operator.

    ``comprehensiveness`` (higher is better) and ``sufficiency`` (lower is better) are means over FRACTIONS (AOPC) and texts;
    ``by_fraction`` has their means at each fraction. Fractions that round to the same number of words count once in a text's mean.
    Normalised values are shares, from 0 to 1, of the change of probability by the whole text: removed by the first words, and kept by
    them alone (higher is better for both). They are means over the texts where that change is above 0.05. ``naopc``: the position
    between the worst and the best order that beam search finds (Edin et al. 2025), over up to 100 texts; None if none was short
    enough. ``greedy``, an order searched word by word for comprehensiveness, covers only texts of up to 40 words: ``over_random`` has
    their number. ``flip``: the mean share of words to erase until the label changes, 1 if it never does. ``tau_loo``: Kendall's
    tau-b with leave-one-out by the same operator, None if undefined; for texts over 128 tokens it is tau with occlusion, and only for
    attention_mask. ``over_random``: comprehensiveness minus that of random orders. ``under_random``: sufficiency of random orders
    minus this one.
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


class EvidenceFound(Stored):
    """The verdicts of the service's own evidence over the texts.

    ``tested``: texts that are not flat and have 19 random sets. ``better_of_tested``: the share of them with a ranking better than
    random, with its interval. The evidence erases by attention_mask, as occlusion and Shapley values do.
    """

    better_than_random: int
    inconclusive: int
    not_faithful: int
    flat: int
    tested: int
    better_of_tested: float | None
    better_interval: tuple[float, float] | None = None


class MethodFound(Stored):
    """One method over all texts.

    ``operators``: results by operator. ``rows``: forward rows per text, a row of the explain graph counted as 3 for its backward part.
    ``ms``: the median time per text on one core. ``stability``: mean Spearman correlation of word values before and after a change
    without meaning, by change, over the texts whose tokens change. ``residual``: median and 95th percentile of the relative
    completeness residual of integrated gradients.
    """

    kind: str
    operators: dict[str, Faithfulness]
    rows: float
    ms: float
    evidence: EvidenceFound | None = None
    stability: dict[str, float] | None = None
    residual: tuple[float, float] | None = None


class Comparison(Stored):
    """Comprehensiveness of ``better`` minus that of ``than`` on the same texts.

    ``holds``: the interval is above 0 with every operator.
    """

    better: str
    than: str
    operators: dict[str, Difference]
    holds: bool


class AttentionFound(Stored):
    """Results of the tests of attention (Jain and Wallace 2019, Serrano and Smith 2019, and others).

    ``tau_gradient`` and ``tau_loo``: mean Kendall's tau-b of attention methods with |gradient x input| and with leave-one-out;
    undefined ones are left out.
    ``adversarial``: by the allowed change of the output (total variation distance, as text), the median Jensen-Shannon divergence in
    nats between the model's last-layer attention and the farthest found, averaged over the heads, and the share of texts where it is
    above half of ln 2. ``adversarial_shown``: the same between the means of the heads, which a map shows.
    ``top_weight``: mean JS(p, p without the top weight) minus JS(p, p without a random weight), with its interval.
    ``top_weight_flips``: the share of texts whose decision flips without the top and without a random weight. ``flip_share``: by
    ranking, the mean share of last-layer weights to remove until the decision flips, 1 if it never does. ``flips``: the share of texts
    where it does. ``erased_texts``: texts of these three tests.
    ``uniform_accuracy``: accuracy with uniform attention in each single layer, then in all layers. ``accuracy``: with learned
    attention. Both are the explain graph's on ``uniform_texts``.
    ``randomisation``: by method, tau-b of values with those of the model with randomised upper layers. ``randomisation_sizes``: tau-b
    of the absolute values. None: not measured for this architecture; ``randomisation`` also if no text has two words.
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


class HeadsFound(Stored):
    """Heads over a corpus, [layers][heads]: mean absolute estimated effect in logits, most frequent pattern, its share of texts.

    ``lift``: by pattern, the mean over the texts that can show it, from 0 for uniform attention to 1 for the pure pattern. Patterns
    that no text can show are left out.
    """

    texts: int
    effect: tuple[tuple[float, ...], ...]
    pattern: tuple[tuple[str, ...], ...]
    pattern_share: tuple[tuple[float, ...], ...]
    lift: dict[str, tuple[tuple[float, ...], ...]] = Field({})


class Plausible(Stored):
    """Agreement with human rationales: mean area under the precision-recall curve, word F1 at the rationale's share and at 20 %."""

    auprc: float
    auprc_interval: tuple[float, float]
    f1_at_share: float
    f1_at_20: float


class PlausibilityFound(Stored):
    """Agreement with human rationales over ``documents``. It does not measure faithfulness.

    ``prevalence``: the share of marked words. ``methods`` includes ``random``, the mean over all orders of words; its AUPRC is above
    the prevalence, the more so the fewer words are marked.
    """

    documents: int
    prevalence: float
    sha256: str
    methods: dict[str, Plausible]


class DatasetFound(Stored):
    """The study of one file: ``texts`` texts drawn from its ``rows``.

    ``agreement``: mean tau-b of word scores for each pair of methods. ``deciding``: the verdicts of the words that the service searches
    as deciding, of the texts where it does; they erase by the mask token and by deletion. ``comparisons``: the default with attention,
    attributions and baselines, and ``default_unsigned`` with attention. ``unseen``: by change without meaning, the number of texts whose
    tokens it does not change. ``words``: mean number of words; ``words_max``: words of the longest text, after truncation.
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
    unseen: dict[str, int] = Field({})
    deciding: EvidenceFound | None = None
    seconds: float = 0.0


class Findings(Stored):
    """A study of one bundle. ``default_method``: the attribution that the bundle serves, or will serve, by default.

    ``against_runner_up``: whether answers were explained against the runner-up, as the service does with three labels or more. Then the
    probability is the share of the predicted label in what both have together. Studies before 0.2.0 never did.
    """

    bundle: str
    digest: str
    graph: str
    graph_sha256: str
    operators: tuple[str, ...]
    default_method: str
    seed: int
    datasets: dict[str, DatasetFound] = Field(min_length=1)
    plausibility: PlausibilityFound | None = None
    against_runner_up: bool = False
