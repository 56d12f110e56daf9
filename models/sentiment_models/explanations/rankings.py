"""Word scores of a text: the service's attributions, five attention methods, and baselines.

A larger score means stronger support for the explained label. ``random`` has no scores: its orders are drawn in ``one_text``.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sentiment.explain.methods.attention import rollout, rollout_gradient, rollout_value_norms
from sentiment.explain.methods.erasure import Floats
from sentiment.explain.methods.gradients import RESIDUAL_FLOOR
from sentiment.explain.methods.registry import GRADIENT_METHODS
from sentiment.explain.methods.target import Target
from sentiment.explain.parts import Attribution
from sentiment_models.data.carving import without_overlap
from sentiment_models.data.labelled import Example, TextOrPair, read_examples
from sentiment_models.explanations.findings import ATTRIBUTION, KINDS
from sentiment_models.explanations.subject import EXPLAIN_ROWS, Arrays, Reading, Subject

# Orders for Shapley values of long texts, one and its reverse: 20 orders of 400 words would take 8,000 rows of 512 tokens.
SHAPLEY_ORDERS_LONG = 2
# A text with more tokens counts as long: measurements that take rows for every word are reduced, see also ``measures``.
LONG_TOKENS = 128

_WORD = re.compile(r"\w+(?:['\u2019\u2010\u2011-]\w+)*|[^\w\s]")


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """One method's word scores [n] of a text, and their cost.

    ``rows``: forward rows, those of the explain graph counted as EXPLAIN_ROWS. ``seconds``: time on one core. ``residual``: the
    relative residual of integrated gradients, None for other methods.
    """

    values: Floats
    rows: float
    seconds: float
    residual: float | None = None


@dataclass(frozen=True, slots=True)
class WordCounts:
    """The number of texts with a word, per label: ``words`` [labels] by lower-case word; ``texts`` [labels]: all texts."""

    words: dict[str, npt.NDArray[np.int64]]
    texts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, texts: Iterable[tuple[TextOrPair, int]], labels: int) -> "WordCounts":
        """Count labelled texts; a word counts once per text."""
        counts = [Counter[str]() for _ in range(labels)]
        totals = np.zeros(labels, np.int64)
        for text, label in texts:
            counts[label].update(_words(text))
            totals[label] += 1
        known = set[str]().union(*counts)
        return cls({word: np.array([count[word] for count in counts], np.int64) for word in known}, totals)

    def inverse_frequency(self, words: Sequence[str]) -> Floats:
        """Return log((texts + 1) / (texts with the word + 1)), [n]."""
        total = int(self.texts.sum()) + 1
        return np.array([math.log(total / (int(self._count(word).sum()) + 1)) for word in words])

    def log_odds(self, words: Sequence[str], target: Target, own: int | None = None) -> Floats:
        """Return the log ratio of the share of the label's texts with the word to that of other texts, with add-one smoothing, [n].

        Of a target against another label, the other texts are those of that label. Of one that no counted text has, they are those of
        all other labels: without it, the words would be ranked by how frequent they are.

        Args:
            words: the words of the text.
            target: what is explained.
            own: the correct label of the text if it is among the counted texts; its own words are then subtracted.
        """
        texts, mine = self.texts.copy(), np.zeros_like(self.texts)
        if own is not None:
            texts[own] -= 1
            mine[own] = 1
        label, labels = target.label, np.arange(len(texts))
        against = target.against if target.against is not None and texts[target.against] else None
        others = labels != label if against is None else labels == against
        found = []
        for word in words:
            # At least 0: the tokenizer may split words differently from ``of``.
            count = np.maximum(self._count(word) - mine, 0)
            share = (count[label] + 1) / (texts[label] + 2)
            share_of_others = (count[others].sum() + 1) / (texts[others].sum() + 2)
            found.append(math.log(share / share_of_others))
        return np.array(found)

    def _count(self, word: str) -> npt.NDArray[np.int64]:
        return self.words.get(word.lower(), np.zeros_like(self.texts))


def lexicon_of(train: Sequence[Path], labels: Sequence[str], drawn: Sequence[Example]) -> WordCounts:
    """Count labelled files without the drawn texts of a study, phrases of them, and sentences that contain them.

    Raises:
        BadData: a file cannot be used.
    """
    examples = without_overlap([example for path in train for example in read_examples(path, labels)], drawn)
    return WordCounts.of(((example.whole, example.label) for example in examples), len(labels))


def scores(
    subject: Subject,
    reading: Reading,
    target: Target,
    frequencies: WordCounts | None = None,
    lexicon: WordCounts | None = None,
    own: int | None = None,
    seed: int = 0,
    methods: Sequence[str] | None = None,
) -> dict[str, Scores]:
    """Score the words of a text by every available method with scores, in the order of KINDS.

    Args:
        subject: the bundle; without an explain graph, gradient and attention methods are left out.
        reading: the text.
        target: what is explained.
        frequencies: word counts of the run's texts; None: no inverse_frequency.
        lexicon: word counts of labelled texts; None: no lexicon.
        own: the correct label of the text if ``lexicon`` includes it.
        seed: of the orders of Shapley values.
        methods: the attributions; None: all that the bundle offers.
    """
    found = attributions(subject, reading, target, methods, seed)
    if subject.session is not None:
        found |= attention_scores(subject, reading, target)
    n = reading.count
    found |= {
        "uniform": Scores(np.zeros(n), 0, 0.0),
        "position_first": Scores(np.arange(n, 0, -1).astype(np.float64), 0, 0.0),
        "position_last": Scores(np.arange(1, n + 1).astype(np.float64), 0, 0.0),
    }
    if frequencies is not None:
        found["inverse_frequency"] = Scores(frequencies.inverse_frequency(reading.words), 0, 0.0)
    if lexicon is not None:
        found["lexicon"] = Scores(lexicon.log_odds(reading.words, target, own), 0, 0.0)
    return found


def attributions(
    subject: Subject, reading: Reading, target: Target, methods: Sequence[str] | None = None, seed: int = 0
) -> dict[str, Scores]:
    """Score by the service's attributions, each in a separate explanation: ``methods``, or all that the bundle offers."""
    long = reading.tokens > LONG_TOKENS
    found = {}
    for method in methods or [name for name, kind in KINDS.items() if kind == ATTRIBUTION and name in subject.explainer.methods]:
        steps = SHAPLEY_ORDERS_LONG if method == "shapley" and long else 0
        attribution, summary = subject.attribute(reading, method, target, steps, seed)
        # The explain graph runs once for every explanation, even if the method does not need it.
        explained = summary.explained_rows if method in GRADIENT_METHODS else 0
        residual = _relative(attribution) if method == "integrated_gradients" else None
        found[method] = Scores(attribution.words, summary.served_rows + EXPLAIN_ROWS * explained, summary.run_s, residual)
    return found


def attention_scores(subject: Subject, reading: Reading, target: Target) -> dict[str, Scores]:
    """Score by attention from the token that the classifier reads, summed over a word's tokens.

    The cost of each method includes the run of the explain graph, which they share.
    """
    begun = time.thread_time()
    arrays = subject.attention(reading, target)
    run_s = time.thread_time() - begun
    attention, token = arrays["attention"], token_read(arrays)
    ways: dict[str, Callable[[], npt.NDArray[np.float32]]] = {
        "attention_last_cls": lambda: attention[-1, :, token].mean(axis=0),
        "attention_mean_cls": lambda: attention[:, :, token].mean(axis=(0, 1)),
        "rollout": lambda: rollout(attention)[token],
        "rollout_value_norms": lambda: rollout_value_norms(attention, arrays["value_norms"])[token],
        "rollout_gradient": lambda: rollout_gradient(attention, arrays["gradients"])[token],
    }
    found = {}
    for method, way in ways.items():
        begun = time.thread_time()
        values = reading.word_sums(way())
        found[method] = Scores(values, EXPLAIN_ROWS, run_s + time.thread_time() - begun)
    return found


def token_read(arrays: Arrays) -> int:
    """Return the token whose last state the classifier reads: only its row of the last layer's attention affects the logit."""
    return int(np.abs(arrays["gradients"][-1]).sum(axis=(0, 2)).argmax())


def order(values: Floats, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return the words by descending score, [n]; words with equal scores are in random order."""
    drawn = rng.permutation(len(values))
    found: npt.NDArray[np.int64] = drawn[np.argsort(-values[drawn], kind="stable")]
    return found


def _relative(attribution: Attribution) -> float:
    """Return the residual relative to the sum that the values should have, as ``TokenValues.relative_residual`` does."""
    total = float(attribution.words.sum()) + attribution.special_total
    return abs(attribution.residual) / max(abs(total - attribution.residual), RESIDUAL_FLOOR)


def _words(text: TextOrPair) -> set[str]:
    return {word for part in ((text,) if isinstance(text, str) else text) for word in _WORD.findall(part.lower())}
