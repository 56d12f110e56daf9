"""The attention pattern of each head on one text, and how much the answer depends on the head. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from unicodedata import category

import numpy as np
import numpy.typing as npt

from sentiment.explain.methods.target import Target
from sentiment.model.words import Encoded

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

PATTERNS = ("next", "previous", "self", "sep", "cls", "punctuation", "identical_word", "sentence_internal", "broad")
MIXED = "mixed"
# A head has the pattern with the highest lift if that lift is at least LIFT_MIN and exceeds the next by MARGIN_MIN.
LIFT_MIN = 0.3
MARGIN_MIN = 0.1
# Clark et al. 2019 call a head broad above 3.8 nats on at most 128 tokens: 0.78 of the maximum.
BROAD_ENTROPY_MIN = 0.78
# Above this share on SEP and CLS, the entropy comes from special tokens and not from a broad look at words.
BROAD_SPECIAL_MAX = 0.3
# With fewer tokens, a token has no two others to choose between.
TOKENS_MIN = 3

_CLS = {"[CLS]", "<cls>", "<s>"}
_SEP = {"[SEP]", "<sep>", "</s>"}
# Zero of the broad lift: uniform attention has a lift of 1, and BROAD_ENTROPY_MIN a lift of LIFT_MIN.
_BROAD_ZERO = (BROAD_ENTROPY_MIN - LIFT_MIN) / (1 - LIFT_MIN)


@dataclass(frozen=True, slots=True, eq=False)
class HeadPattern:
    """How well the attention of each head matches one pattern, on one text.

    ``score`` and ``lift`` are [layers, heads]. ``uniform``: the score of a head with uniform attention. ``lift`` is (score - uniform) /
    (1 - uniform): 0 for uniform attention, 1 for the pure pattern. For broad, uniform attention is the pure pattern, so the lift is
    (score - z) / (1 - z), with z such that BROAD_ENTROPY_MIN has the lift LIFT_MIN.

    ``defined``: whether the text can show the pattern. If not, all numbers are 0.
    """

    name: str
    defined: bool
    score: Floats
    uniform: float
    lift: Floats


@dataclass(frozen=True, slots=True, eq=False)
class HeadPatterns:
    """All PATTERNS, in their order. ``labels[layer][head]`` is one of them, or MIXED."""

    patterns: tuple[HeadPattern, ...]
    labels: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class HeadEffects:
    """Measured changes of the explained logit against the unchanged model.

    ``gated`` [layers, heads]: with each head switched off. ``uniform`` [layers, heads]: with uniform attention in each head.
    ``all_uniform``: with uniform attention in all heads, that is without learned attention (Wiegreffe and Pinter 2019, test 1, without
    retraining). ``label_changed``: whether the latter changes the label. ``rows``: how many rows were run.
    """

    gated: Floats
    uniform: Floats
    all_uniform: float
    label_changed: bool
    rows: int


@dataclass(frozen=True, slots=True)
class GatePlan:
    """The rows that measure every head of a model, in batches of at most ``rows_max``.

    Iteration yields (head_gate, head_uniform), each [rows, layers, heads]. The rows of all batches are: one unchanged, one with all heads
    uniform, one per head switched off (layer by layer), and one per head made uniform.
    """

    layers: int
    heads: int
    rows_max: int

    @property
    def rows(self) -> int:
        """Total rows of all batches."""
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
    """Score every head against every pattern, and label the heads that follow one.

    Except for broad, a score is the mean share of attention that a token (not special) gives to:

    - next, previous, self: the token after it, the token before it, itself (Clark et al. 2019, who call a head positional above 0.5);
    - sep, cls, punctuation: such tokens; a head that looks there often does nothing (Clark et al. 2019, Kobayashi et al. 2020);
    - identical_word: other occurrences of its word, ignoring case (Vig 2019), averaged over the tokens that have any;
    - sentence_internal: tokens of its sentence except itself and its neighbours, averaged over the tokens that have any.

    sentence_internal excludes neighbours, and is a share of all attention. Otherwise each head that looks at the previous token, and each
    that gives almost everything to SEP, would match it.

    The score of broad is the mean entropy of a token's attention divided by ln(tokens). Its lift is at most 0 if SEP and CLS get
    BROAD_SPECIAL_MAX or more.

    Patterns are undefined in these cases: all, with fewer than TOKENS_MIN tokens or without a word; next and previous, if no two words are
    adjacent; identical_word, if no word occurs twice; sentence_internal, in a single sentence; sep, cls and punctuation, without such
    tokens; broad, if uniform attention gives BROAD_SPECIAL_MAX to SEP and CLS, as with both of them among up to 4 tokens.

    Args:
        attention: [layers, heads, tokens, tokens], rows sum to 1, no padding.
        encoded: the tokens.
        texts: the encoded text, or both texts of a pair.
        sentence: sentence number of each token, [tokens]; -1 for special tokens. The two texts of a pair never share a sentence.
    """
    content = _content(encoded)
    if len(encoded.tokens) < TOKENS_MIN or not content.any():
        found = {name: _undefined(name, attention) for name in PATTERNS}
    else:
        found = {name: _share(name, attention, cells) for name, cells in _cells(encoded, texts, sentence).items()}
        found["broad"] = _broad(attention, content, found["sep"], found["cls"])
    patterns = tuple(found[name] for name in PATTERNS)
    return HeadPatterns(patterns, _labels(patterns))


def first_order_effects(attention: Floats, gradients: Floats) -> Floats:
    """Estimate how the explained logit changes when each head is switched off: -sum(A * dA), [layers, heads].

    This is the slope of the logit with respect to the head's gate (Michel et al. 2019, here signed). It is exact only for small changes.

    Args:
        attention: [layers, heads, tokens, tokens].
        gradients: of the explained logit with respect to ``attention``, same shape.
    """
    slopes: Floats = np.einsum("lhij,lhij->lh", attention, gradients, dtype=np.float64).astype(np.float32)
    return -slopes


def effects_from(plan: GatePlan, logits: Floats, target: Target) -> HeadEffects:
    """Compute the measured changes from the logits of all rows of a plan, [rows, labels] in the plan's order.

    Raises:
        ValueError: logits are not finite.
    """
    if not np.isfinite(logits).all():
        raise ValueError(f"logits must be finite, but {np.count_nonzero(~np.isfinite(logits).all(1))} of {plan.rows} rows are not")
    explained = target.logit(logits.astype(np.float64))
    changes = explained[1:] - explained[0]
    gated, uniform = changes[1:].reshape(2, plan.layers, plan.heads).astype(np.float32)
    changed = int(logits[0].argmax()) != int(logits[1].argmax())
    return HeadEffects(gated, uniform, float(changes[0]), changed, plan.rows)


def _content(encoded: Encoded) -> Flags:
    return np.array([not token.special for token in encoded.tokens], np.bool_)


def _cells(encoded: Encoded, texts: Sequence[str], sentence: npt.NDArray[np.integer]) -> dict[str, Flags]:
    """Which attention weights count for each pattern, [tokens, tokens]. Rows without any are left out of the mean."""
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
    """A number for the spelling of each token's word (-1 without a letter or digit), and which tokens are punctuation; both [tokens].

    Uses the text and not the pieces: different unknown words have the same piece, and a word after a space has other pieces than without.
    """
    written = [texts[word.pair][word.start : word.end].casefold() for word in encoded.words]
    numbers = {text: number for number, text in enumerate(written) if any(map(str.isalnum, text))}
    spelling = [numbers.get(written[token.word], -1) if not token.special else -1 for token in encoded.tokens]
    mark = [not token.special and _is_punctuation(written[token.word]) for token in encoded.tokens]
    return np.array(spelling, np.int64), np.array(mark, np.bool_)


def _is_punctuation(text: str) -> bool:
    return text != "" and all(category(sign).startswith("P") for sign in text)


def _share(name: str, attention: Floats, cells: Flags) -> HeadPattern:
    """The attention on ``cells`` [tokens, tokens], averaged over the rows that have any."""
    rows = int(np.count_nonzero(cells.any(1)))
    # If all tokens count, as in a text of punctuation without special tokens, every head follows the pattern.
    if rows == 0 or np.count_nonzero(cells) == rows * len(cells):
        return _undefined(name, attention)
    uniform = np.count_nonzero(cells) / (rows * len(cells))
    # One layer at a time, and no matrix product: the attention of 512 tokens takes 150 MB, and NumPy's matrix products use all cores.
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
    """Mean entropy in nats, [heads], of rows [heads, rows, tokens] that sum to 1."""
    logarithms = np.log(np.maximum(rows, np.finfo(np.float32).tiny))
    entropy: npt.NDArray[np.float64] = -(rows * logarithms).sum(2, dtype=np.float64).mean(1)
    return entropy


def _undefined(name: str, attention: Floats) -> HeadPattern:
    zeros = np.zeros(attention.shape[:2], np.float32)
    return HeadPattern(name, False, zeros, 0.0, zeros)


def _labels(patterns: Sequence[HeadPattern]) -> tuple[tuple[str, ...], ...]:
    """The pattern with the highest lift of each head, or MIXED if that lift is too low or another pattern is close."""
    names = [pattern.name for pattern in patterns if pattern.defined]
    nothing = np.full_like(patterns[0].lift, -np.inf)
    # Two placeholders that never win, so that there is always a second.
    lifts = np.stack([*(pattern.lift for pattern in patterns if pattern.defined), nothing, nothing])
    second, best = np.sort(lifts, axis=0)[-2:]
    clear = (best >= LIFT_MIN) & (best >= second + MARGIN_MIN)
    winner = lifts.argmax(0)
    return tuple(
        tuple(names[place] if sure else MIXED for place, sure in zip(*layer, strict=True)) for layer in zip(winner, clear, strict=True)
    )
