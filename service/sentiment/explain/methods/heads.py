"""What each attention head does with one text: the pattern it looks in, and how much the answer depends on it. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from unicodedata import category

import numpy as np
import numpy.typing as npt

from sentiment.model.words import Encoded

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

PATTERNS = ("next", "previous", "self", "sep", "cls", "punctuation", "identical_word", "sentence_internal", "broad")
MIXED = "mixed"
# A head has the pattern with the highest lift if that is so high, and the next one so much lower.
LIFT_MIN = 0.3
MARGIN_MIN = 0.1
# Clark et al. 2019 call a head broad above 3.8 nats on at most 128 tokens: 0.78 of the most that there can be.
BROAD_ENTROPY_MIN = 0.78
# Entropy that comes from looking at special tokens is no bag of words.
BROAD_SPECIAL_MAX = 0.3
# With fewer a token has no two others to choose between.
TOKENS_MIN = 3

_CLS = {"[CLS]", "<cls>", "<s>"}
_SEP = {"[SEP]", "<sep>", "</s>"}
# Uniform attention has a broad lift of 1, and BROAD_ENTROPY_MIN one of LIFT_MIN.
_BROAD_ZERO = (BROAD_ENTROPY_MIN - LIFT_MIN) / (1 - LIFT_MIN)


@dataclass(frozen=True, slots=True, eq=False)
class HeadPattern:
    """How far the attention of each head follows one pattern, on one text.

    ``score`` and ``lift`` are [layers, heads], ``uniform`` is the score of a head that looks everywhere alike. ``lift`` is
    (score - uniform) / (1 - uniform): 0 for such a head, 1 for the pure pattern. Only for broad, where such a head is the pure pattern, it
    is (score - z) / (1 - z) with a z that gives LIFT_MIN at BROAD_ENTROPY_MIN.

    Not ``defined``: the text cannot show this pattern. Then all numbers are 0.
    """

    name: str
    defined: bool
    score: Floats
    uniform: float
    lift: Floats


@dataclass(frozen=True, slots=True, eq=False)
class HeadPatterns:
    """All PATTERNS in their order; ``labels[layer][head]`` is one of them or MIXED."""

    patterns: tuple[HeadPattern, ...]
    labels: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class HeadEffects:
    """Measured changes of the explained logit, against the untouched model.

    ``gated`` [layers, heads]: of each head switched off; ``uniform`` likewise: of each made to look everywhere alike. ``all_uniform``: of
    making all so at once, that is of having no learned attention (Wiegreffe and Pinter 2019, test 1, without training anew);
    ``label_changed``: whether that makes another label the first. ``rows``: how many rows were run for it.
    """

    gated: Floats
    uniform: Floats
    all_uniform: float
    label_changed: bool
    rows: int


@dataclass(frozen=True, slots=True)
class GatePlan:
    """The rows that measure every head of a model, in batches of at most ``rows_max``; made by ``gate_plan``.

    Iterating gives (head_gate, head_uniform), each [rows, layers, heads]. Over all batches the rows are: one untouched, one with all heads
    uniform, one with each head gated off (all of the first layer first), and one with each made uniform.
    """

    layers: int
    heads: int
    rows_max: int

    @property
    def rows(self) -> int:
        """Rows of all batches together."""
        return 2 + 2 * self.layers * self.heads

    def __iter__(self) -> Iterator[tuple[Floats, Floats]]:
        count = self.layers * self.heads
        one = np.eye(count, dtype=np.float32)
        on = np.ones((1, count), np.float32)
        gate = np.concatenate([on, on, 1 - one, np.ones_like(one)]).reshape(-1, self.layers, self.heads)
        uniform = np.concatenate([0 * on, on, np.zeros_like(one), one]).reshape(gate.shape)
        for start in range(0, self.rows, self.rows_max):
            yield gate[start : start + self.rows_max], uniform[start : start + self.rows_max]


def head_patterns(attention: Floats, encoded: Encoded, texts: Sequence[str], sentence: npt.NDArray[np.integer]) -> HeadPatterns:
    """Score every head against every pattern, and label those that follow one.

    All but broad are shares of attention: what a token that is not special gives on average to

    - next, previous, self: the token after it, the one before it, itself (Clark et al. 2019, who call a head positional above 0.5);
    - sep, cls, punctuation: such tokens; a head that looks there often does nothing (Clark et al. 2019, Kobayashi et al. 2020);
    - identical_word: other places of its word, in upper or lower case (Vig 2019), in the mean of the tokens that have any;
    - sentence_internal: tokens of its sentence but itself and its neighbours, in the mean of the tokens that have any.

    The last leaves neighbours out and is a share of all attention, not of that on words: else every head that looks at the token before it,
    and every one that gives all but a thousandth to SEP, would be one of sentences, too.

    broad is the mean entropy of a token's attention divided by ln(tokens), without lift if SEP and CLS get BROAD_SPECIAL_MAX or more.

    Not defined are: every pattern, with fewer than TOKENS_MIN tokens or without a word; next and previous, if no two words stand side by
    side; identical_word, if none comes twice; sentence_internal, in a single sentence; sep, cls and punctuation, without such tokens;
    broad, if even uniform attention gives BROAD_SPECIAL_MAX to SEP and CLS, as it does between these on up to 4 tokens.

    Args:
        attention: [layers, heads, tokens, tokens], rows sum to 1, no padding.
        encoded: the tokens.
        texts: what was encoded: a text, or both of a pair.
        sentence: the number of each token's sentence, [tokens], -1 for special ones; those of the two texts of a pair never count as one.

    Raises:
        ValueError: the shapes do not fit.
    """
    tokens = len(encoded.tokens)
    if attention.ndim != 4 or attention.shape[2:] != (tokens, tokens):
        raise ValueError(f"attention is {list(attention.shape)}; of this text it is [layers, heads, {tokens}, {tokens}]")
    if sentence.shape != (tokens,):
        raise ValueError(f"sentence is {list(sentence.shape)}; of this text it is [{tokens}]")
    content = _content(encoded)
    if tokens < TOKENS_MIN or not content.any():
        found = {name: _undefined(name, attention) for name in PATTERNS}
    else:
        found = {name: _share(name, attention, cells) for name, cells in _cells(encoded, texts, sentence).items()}
        found["broad"] = _broad(attention, content, found["sep"], found["cls"])
    patterns = tuple(found[name] for name in PATTERNS)
    return HeadPatterns(patterns, _labels(patterns))


def first_order_effects(attention: Floats, gradients: Floats) -> Floats:
    """Estimate for every head how the explained logit changes when it is gated off: -sum(A * dA), [layers, heads].

    It is the slope of the logit in the head's gate (Michel et al. 2019, here with its sign), so exact only for a small part of the head.

    Args:
        attention: [layers, heads, tokens, tokens].
        gradients: of the explained logit by it, likewise.

    Raises:
        ValueError: the shapes differ.
    """
    if attention.ndim != 4 or attention.shape != gradients.shape:
        shapes = f"attention is {list(attention.shape)}, gradients are {list(gradients.shape)}"
        raise ValueError(f"{shapes}; both are [layers, heads, tokens, tokens]")
    slopes: Floats = np.einsum("lhij,lhij->lh", attention, gradients, dtype=np.float64).astype(np.float32)
    return -slopes


def gate_plan(layers: int, heads: int, rows_max: int) -> GatePlan:
    """Plan the rows that measure every head exactly.

    Raises:
        ValueError: a number is below 1.
    """
    for name, value in (("layers", layers), ("heads", heads), ("rows_max", rows_max)):
        if value < 1:
            raise ValueError(f"{name} is {value}; the least is 1")
    return GatePlan(layers, heads, rows_max)


def effects_from(plan: GatePlan, logits: Floats, label: int) -> HeadEffects:
    """Assemble the exact changes from the logits of all rows of a plan, [rows, labels] in its order.

    Raises:
        ValueError: logits are missing or not finite, or there is no such label.
    """
    if logits.ndim != 2 or len(logits) != plan.rows:
        raise ValueError(f"logits are {list(logits.shape)}; of this plan they are [{plan.rows}, labels]")
    if not 0 <= label < logits.shape[1]:
        raise ValueError(f"label is {label}; the labels are 0 to {logits.shape[1] - 1}")
    if not np.isfinite(logits).all():
        raise ValueError(f"the logits of {np.count_nonzero(~np.isfinite(logits).all(1))} of {plan.rows} rows are not all finite")
    explained = logits[:, label].astype(np.float64)
    changes = explained[1:] - explained[0]
    gated, uniform = changes[1:].reshape(2, plan.layers, plan.heads).astype(np.float32)
    changed = int(logits[0].argmax()) != int(logits[1].argmax())
    return HeadEffects(gated, uniform, float(changes[0]), changed, plan.rows)


def rank_heads(effects: Floats) -> tuple[tuple[int, int], ...]:
    """All (layer, head) by the size of their effect, [layers, heads], the largest first; the lower one first where equal."""
    order = np.argsort(-np.abs(effects), axis=None, kind="stable")
    return tuple((int(place) // effects.shape[1], int(place) % effects.shape[1]) for place in order)


def _content(encoded: Encoded) -> Flags:
    return np.array([not token.special for token in encoded.tokens], np.bool_)


def _cells(encoded: Encoded, texts: Sequence[str], sentence: npt.NDArray[np.integer]) -> dict[str, Flags]:
    """Which attention counts for each pattern, [tokens, tokens]. Rows without any do not count in its mean."""
    tokens = encoded.tokens
    content = _content(encoded)
    places = np.arange(len(tokens))
    ahead = places - places[:, None]
    neighbours = bool((content[1:] & content[:-1]).any())
    word = np.array([token.word for token in tokens])
    spelling, mark = _spellings(encoded, texts)
    pair = np.array([token.pair for token in tokens], np.bool_)
    same = content & (sentence == sentence[:, None]) & (pair == pair[:, None])
    several = not same[content][:, content].all()
    cells = {
        "next": (ahead == 1) & neighbours,
        "previous": (ahead == -1) & neighbours,
        "self": ahead == 0,
        "sep": np.array([token.special and token.piece in _SEP for token in tokens], np.bool_),
        "cls": np.array([token.special and token.piece in _CLS for token in tokens], np.bool_),
        "punctuation": mark,
        "identical_word": (spelling >= 0) & (spelling == spelling[:, None]) & (word != word[:, None]),
        "sentence_internal": same & (np.abs(ahead) > 1) & several,
    }
    return {name: flags & content[:, None] for name, flags in cells.items()}


def _spellings(encoded: Encoded, texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], Flags]:
    """A number for the spelling of each token's word, -1 if it has no letter or digit; and which tokens are punctuation, both [tokens].

    They are read in the text: the pieces of different unknown words are equal, those of a word after a space and without one are not.
    """
    written = [texts[word.pair][word.start : word.end].casefold() for word in encoded.words]
    numbers = {text: number for number, text in enumerate(written) if any(map(str.isalnum, text))}
    spelling = [numbers.get(written[token.word], -1) if not token.special else -1 for token in encoded.tokens]
    mark = [not token.special and _is_punctuation(written[token.word]) for token in encoded.tokens]
    return np.array(spelling, np.int64), np.array(mark, np.bool_)


def _is_punctuation(text: str) -> bool:
    return text != "" and all(category(sign).startswith("P") for sign in text)


def _share(name: str, attention: Floats, cells: Flags) -> HeadPattern:
    """The attention on ``cells`` [tokens, tokens], in the mean of the rows that have any."""
    rows = int(np.count_nonzero(cells.any(1)))
    # Where all tokens count, as in a text of punctuation without special tokens, every head follows the pattern.
    if rows == 0 or np.count_nonzero(cells) == rows * len(cells):
        return _undefined(name, attention)
    uniform = np.count_nonzero(cells) / (rows * len(cells))
    # A layer at a time, and not as a product of matrices: 512 tokens have 150 MB of attention, and NumPy's products take all cores.
    score = np.array([layer[:, cells].sum(1, dtype=np.float64) for layer in attention]) / rows
    return HeadPattern(name, True, score.astype(np.float32), uniform, ((score - uniform) / (1 - uniform)).astype(np.float32))


def _broad(attention: Floats, content: Flags, sep: HeadPattern, cls: HeadPattern) -> HeadPattern:
    if sep.uniform + cls.uniform >= BROAD_SPECIAL_MAX:
        return _undefined("broad", attention)
    score = np.array([_entropy(layer[:, content]) for layer in attention]) / np.log(len(content))
    lift = (score - _BROAD_ZERO) / (1 - _BROAD_ZERO)
    lift = np.where(sep.score + cls.score < BROAD_SPECIAL_MAX, lift, np.minimum(lift, 0))
    return HeadPattern("broad", True, score.astype(np.float32), 1.0, lift.astype(np.float32))


def _entropy(rows: Floats) -> npt.NDArray[np.float64]:
    """Mean entropy in nats of rows [heads, rows, tokens] that sum to 1."""
    logarithms = np.log(np.maximum(rows, np.finfo(np.float32).tiny))
    entropy: npt.NDArray[np.float64] = -(rows * logarithms).sum(2, dtype=np.float64).mean(1)
    return entropy


def _undefined(name: str, attention: Floats) -> HeadPattern:
    zeros = np.zeros(attention.shape[:2], np.float32)
    return HeadPattern(name, False, zeros, 0.0, zeros)


def _labels(patterns: Sequence[HeadPattern]) -> tuple[tuple[str, ...], ...]:
    """The pattern of each head that has the highest lift, if that is high enough and no other comes near."""
    names = [pattern.name for pattern in patterns if pattern.defined]
    nothing = np.full_like(patterns[0].lift, -np.inf)
    # Two that never win, so that there always is a second.
    lifts = np.stack([*(pattern.lift for pattern in patterns if pattern.defined), nothing, nothing])
    second, best = np.sort(lifts, axis=0)[-2:]
    clear = (best >= LIFT_MIN) & (best >= second + MARGIN_MIN)
    winner = lifts.argmax(0)
    return tuple(
        tuple(names[place] if sure else MIXED for place, sure in zip(*layer, strict=True)) for layer in zip(winner, clear, strict=True)
    )
