"""Head patterns against plain loops over the text, and head effects against a small model that runs for each head."""

import math
import re
from collections.abc import Callable
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from sentiment.explain.methods.heads import (
    LIFT_MIN,
    MIXED,
    PATTERNS,
    GatePlan,
    HeadPattern,
    HeadPatterns,
    effects_from,
    first_order_effects,
    head_patterns,
)
from sentiment.explain.methods.target import Target
from sentiment.model.words import Encoded, Piece, group

Floats = npt.NDArray[np.float32]
REVIEW = "the film was good , but Film fans will leave early . nobody laughed at the unbelievable plot ! a good cast cannot save it ."
SEEDS = pytest.mark.parametrize("seed", range(5))


def encode(*texts: str, cls: str = "[CLS]", sep: str = "[SEP]") -> tuple[Encoded, npt.NDArray[np.int64]]:
    """Words in pieces of at most 6 letters, all of them unknown, and sentences that are numbered from 0 in each text."""
    pieces = [Piece(cls, 0, 0, None, None, False)]
    sentence = [-1]
    for source, text in enumerate(texts):
        number = 0
        for word, found in enumerate(re.finditer(r"\S+", text)):
            for start in range(found.start(), found.end(), 6):
                pieces.append(Piece("[UNK]", start, min(start + 6, found.end()), word, source, True))
                sentence.append(number)
            number += found[0] in ".!"
        pieces.append(Piece(sep, 0, 0, None, None, False))
        sentence.append(-1)
    tokens, words = group(texts, pieces)
    return Encoded((0,) * len(tokens), None, tokens, words, False), np.array(sentence)


class Text:
    """A text, and which tokens each pattern means, found token by token."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.encoded, self.sentence = encode(*texts)
        self.tokens = self.encoded.tokens
        self.count = len(self.tokens)
        self.content = [place for place, token in enumerate(self.tokens) if not token.special]

    def word(self, place: int) -> str:
        word = self.encoded.words[self.tokens[place].word]
        return self.texts[word.pair][word.start : word.end].lower()

    def meant(self, name: str, place: int) -> list[int]:
        def fits(other: int) -> bool:
            here, there = self.tokens[place], self.tokens[other]
            if name in ("next", "previous", "self"):
                return other - place == {"next": 1, "previous": -1, "self": 0}[name]
            if name in ("sep", "cls"):
                return there.piece == f"[{name.upper()}]"
            if there.special:
                return False
            if name == "punctuation":
                return self.word(other) in (".", ",", "!")
            if name == "identical_word":
                return here.word != there.word and self.word(place) == self.word(other) and self.word(place).isalpha()
            together = here.pair == there.pair and self.sentence[place] == self.sentence[other]
            return together and abs(place - other) > 1

        return [other for other in range(self.count) if fits(other)]

    def score(self, name: str, attention: npt.NDArray[np.floating]) -> float:
        """The score of one head, [tokens, tokens]."""
        if name == "broad":
            rows = [-sum(weight * math.log(weight) for weight in attention[place] if weight > 0) for place in self.content]
            return math.fsum(rows) / len(rows) / math.log(self.count)
        found = [(place, self.meant(name, place)) for place in self.content]
        shares = [math.fsum(attention[place, other] for other in others) for place, others in found if others]
        return math.fsum(shares) / len(shares)

    def even(self) -> Floats:
        return np.full((self.count, self.count), 1 / self.count, np.float32)

    def pure(self, name: str) -> Floats:
        """A head that looks where the pattern says, and from other tokens in equal parts at the token, at the one before and at SEP."""
        if name == "broad":
            return self.even()
        attention = np.zeros((self.count, self.count), np.float32)
        for place in range(self.count):
            others = self.meant(name, place) or [place, max(place - 1, 0), self.count - 1]
            for other in others:
                attention[place, other] += 1 / len(others)
        return attention

    def random(self, rng: np.random.Generator, layers: int, heads: int) -> Floats:
        """Rows from nearly even to nearly all in one place."""
        sharpness = rng.uniform(0.05, 2, (layers, heads, 1, 1))
        weights = rng.gamma(np.broadcast_to(sharpness, (layers, heads, self.count, self.count))) + 1e-12
        return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)

    def patterns(self, *heads: Floats) -> HeadPatterns:
        return self.patterns_of(np.stack(heads)[None])

    def patterns_of(self, attention: Floats) -> HeadPatterns:
        return head_patterns(attention, self.encoded, self.texts, self.sentence)

    def label(self, head: Floats) -> str:
        return self.patterns(head).labels[0][0]


def named(found: HeadPatterns) -> dict[str, HeadPattern]:
    assert tuple(pattern.name for pattern in found.patterns) == PATTERNS
    return {pattern.name: pattern for pattern in found.patterns}


@pytest.mark.parametrize("texts", [(REVIEW,), (REVIEW, "the plot is thin . the cast is bad , too !")])
@SEEDS
def test_scores_match_loops_over_the_tokens(texts: tuple[str, ...], seed: int) -> None:
    text = Text(*texts)
    attention = text.random(np.random.default_rng(seed), 2, 3)

    found = named(text.patterns_of(attention))

    for name, pattern in found.items():
        assert pattern.defined
        assert pattern.score.shape == pattern.lift.shape == (2, 3)
        assert pattern.uniform == pytest.approx(text.score(name, text.even()), abs=1e-6)
        for layer, head in product(range(2), range(3)):
            score = text.score(name, attention[layer, head])
            assert pattern.score[layer, head] == pytest.approx(score, abs=1e-6)
            if name != "broad":
                assert pattern.lift[layer, head] == pytest.approx((score - pattern.uniform) / (1 - pattern.uniform), abs=1e-6)


@pytest.mark.parametrize("name", PATTERNS)
@SEEDS
def test_a_label_survives_a_little_noise(name: str, seed: int) -> None:
    text = Text(REVIEW)
    noise = text.random(np.random.default_rng(seed), 2, 4)

    found = text.patterns_of(0.85 * text.pure(name) + 0.15 * noise)

    assert {label for layer in found.labels for label in layer} == {name}


def test_labels_are_in_the_order_of_the_heads() -> None:
    text = Text(REVIEW)
    heads = np.stack([text.pure(name) for name in ("next", "self", "sep", "broad", "cls", "previous")])

    assert text.patterns_of(heads.reshape(3, 2, text.count, text.count)).labels == (("next", "self"), ("sep", "broad"), ("cls", "previous"))


@pytest.mark.parametrize(("first", "second"), [("next", "previous"), ("sep", "self"), ("cls", "punctuation"), ("sep", "punctuation")])
def test_a_head_with_two_equal_patterns_is_mixed(first: str, second: str) -> None:
    text = Text(REVIEW)

    assert text.label(0.5 * text.pure(first) + 0.5 * text.pure(second)) == MIXED
    assert text.label(0.65 * text.pure(first) + 0.35 * text.pure(second)) == first


@pytest.mark.parametrize(("lift", "label"), [(LIFT_MIN - 0.01, MIXED), (LIFT_MIN + 0.01, "next")])
def test_a_lift_below_the_minimum_gets_no_label(lift: float, label: str) -> None:
    text = Text(REVIEW)
    # The rest is spread over patterns that each stay more than the margin below.
    others = [text.pure(name) for name in ("previous", "self", "sep", "cls", "punctuation")]
    rest = sum(others[1:], others[0]) / 5
    score, given = lift + (1 - lift) / text.count, text.score("next", rest)
    share = (score - given) / (1 - given)

    found = text.patterns((share * text.pure("next") + (1 - share) * rest).astype(np.float32))

    assert named(found)["next"].lift[0, 0] == pytest.approx(lift, abs=1e-6)
    assert found.labels[0][0] == label


def test_the_minimum_entropy_of_broad_has_the_minimum_lift() -> None:
    text = Text(REVIEW)
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if text.score("broad", middle * text.even() + (1 - middle) * text.pure("self")) < 0.78 else (low, middle)

    found = named(text.patterns(high * text.even() + (1 - high) * text.pure("self")))

    assert found["broad"].lift[0, 0] == pytest.approx(LIFT_MIN, abs=1e-4)


def test_uniform_attention_with_much_on_special_tokens_is_not_broad() -> None:
    text = Text(REVIEW)
    head = 0.65 * text.even() + 0.25 * text.pure("sep") + 0.1 * text.pure("cls")

    found = named(text.patterns(head))

    assert found["broad"].score[0, 0] > 0.78
    assert found["broad"].lift[0, 0] == 0


def test_a_head_on_sep_is_not_labelled_by_its_small_rest() -> None:
    text = Text(REVIEW)
    head = 0.99 * text.pure("sep") + 0.01 * text.pure("sentence_internal")

    assert text.label(head) == "sep"
    assert named(text.patterns(head))["sentence_internal"].lift[0, 0] < 0


def test_patterns_that_the_text_cannot_show_are_undefined() -> None:
    text = Text("nobody liked this boring and long film")
    attention = text.random(np.random.default_rng(0), 2, 2)

    found = named(text.patterns_of(attention))

    assert {name for name, pattern in found.items() if not pattern.defined} == {"identical_word", "sentence_internal", "punctuation"}
    for name in ("identical_word", "sentence_internal", "punctuation"):
        assert found[name].uniform == 0
        assert not found[name].score.any()
        assert not found[name].lift.any()


@pytest.mark.parametrize("text", ["", "film", "bad film", "...", "! ! !", "film film", "bad , bad film ."])
@SEEDS
def test_short_texts_have_finite_scores_and_only_defined_labels(text: str, seed: int) -> None:
    short = Text(text)

    found = short.patterns_of(short.random(np.random.default_rng(seed), 3, 4))

    for pattern in found.patterns:
        assert np.isfinite(pattern.score).all()
        assert np.isfinite(pattern.lift).all()
        assert 0 <= pattern.uniform <= 1
    defined = {pattern.name for pattern in found.patterns if pattern.defined}
    assert {label for layer in found.labels for label in layer} <= defined | {MIXED}
    assert "broad" not in defined or short.count > 6
    assert not defined or text


def test_with_one_or_two_tokens_no_pattern_is_defined() -> None:
    pieces = [Piece("film", 0, 4, 0, 0, False), Piece("</s>", 0, 0, None, None, False)]
    for count in (1, 2):
        tokens, words = group(["film"], pieces[:count])
        encoded = Encoded((0,) * count, None, tokens, words, False)

        found = head_patterns(np.full((1, 2, count, count), 1 / count, np.float32), encoded, ["film"], np.zeros(count, np.int64))

        assert found.labels == ((MIXED, MIXED),)
        assert not any(pattern.defined for pattern in found.patterns)


def test_a_piece_without_characters_is_neither_punctuation_nor_a_word() -> None:
    written = "a bad film"
    pieces = [Piece("\u2581", 0, 0, 0, 0, False), Piece("film", 6, 10, 1, 0, False), Piece("\u2581", 10, 10, 2, 0, False)]
    tokens, words = group([written], pieces)
    encoded = Encoded((0,) * 3, None, tokens, words, False)

    found = named(head_patterns(np.full((1, 1, 3, 3), 1 / 3, np.float32), encoded, [written], np.zeros(3, np.int64)))

    assert len(words) == 3
    assert not found["punctuation"].defined
    assert not found["identical_word"].defined


def test_in_a_text_of_one_word_the_head_on_sep_is_not_labelled_next() -> None:
    text = Text("film")

    assert text.label(text.pure("sep")) == "sep"
    assert text.label(text.pure("cls")) == "cls"
    assert not named(text.patterns(text.even()))["next"].defined


def test_special_tokens_are_known_by_the_names_of_each_family() -> None:
    for cls, sep in (("[CLS]", "[SEP]"), ("<s>", "</s>"), ("<cls>", "<sep>")):
        encoded, sentence = encode("a bad film", cls=cls, sep=sep)
        heads = np.zeros((1, 2, 5, 5), np.float32)
        heads[0, 0, :, 0] = heads[0, 1, :, 4] = 1

        assert head_patterns(heads, encoded, ["a bad film"], sentence).labels == (("cls", "sep"),)


def test_identical_words_are_compared_by_their_spelling_in_the_text() -> None:
    # All pieces are [UNK]; "unbelievable" has two.
    text = Text("Zork . unbelievable quux . zork")
    attention = np.zeros((text.count, text.count), np.float32)
    attention[:, 1] = 0.75
    attention[:, 6] = 0.25

    found = named(text.patterns(attention))["identical_word"]

    assert [token.piece for token in text.tokens[1:-1]] == ["[UNK]"] * 7
    # Of the tokens of "zork" the first gives 0 to the other, the second 0.75 to the first.
    assert found.score[0, 0] == pytest.approx(0.375)
    assert found.uniform == pytest.approx(1 / text.count)


def test_the_texts_of_a_pair_share_words_but_no_sentences() -> None:
    text = Text("the long film was good", "the short play was better")

    found = named(text.patterns(text.pure("identical_word"), text.pure("sentence_internal")))

    assert text.sentence.tolist() == [-1, *[0] * 5, -1, *[0] * 5, -1]
    assert found["identical_word"].score[0, 0] == pytest.approx(1)
    assert found["sentence_internal"].defined
    assert found["sentence_internal"].score[0] == pytest.approx([text.score("sentence_internal", text.pure("identical_word")), 1])


class Attending:
    """Two layers of two heads over five tokens, and three labels, in float64."""

    LAYERS, HEADS, TOKENS, WIDTH, LABELS = 2, 2, 5, 4, 3

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.embedded = rng.normal(size=(self.TOKENS, 2 * self.WIDTH))
        self.queries, self.keys, self.values = rng.normal(0, 0.6, (3, self.LAYERS, self.HEADS, 2 * self.WIDTH, self.WIDTH))
        self.out = rng.normal(size=(2 * self.WIDTH, self.LABELS))

    def run(self, gate: Floats, uniform: Floats, nudge: Floats) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The logits, and the attention before gate, uniform and ``nudge``, which is added to it."""
        state = self.embedded
        attention = np.zeros((self.LAYERS, self.HEADS, self.TOKENS, self.TOKENS))
        for layer in range(self.LAYERS):
            heads = []
            for head in range(self.HEADS):
                scores = (state @ self.queries[layer, head]) @ (state @ self.keys[layer, head]).T
                weights = np.exp(scores - scores.max(1, keepdims=True))
                attention[layer, head] = weights / weights.sum(1, keepdims=True)
                share = uniform[layer, head]
                used = gate[layer, head] * ((1 - share) * attention[layer, head] + share / self.TOKENS) + nudge[layer, head]
                heads.append(used @ state @ self.values[layer, head])
            state = np.tanh(state + np.concatenate(heads, axis=1))
        return state[0] @ self.out, attention

    def logits(self, gate: Floats, uniform: Floats) -> npt.NDArray[np.float64]:
        return self.run(gate, uniform, np.zeros((self.LAYERS, self.HEADS, self.TOKENS, self.TOKENS), np.float32))[0]


def switches(value: float) -> Floats:
    return np.full((Attending.LAYERS, Attending.HEADS), value, np.float32)


def central(function: Callable[[float], float]) -> float:
    return (function(2**-10) - function(-(2**-10))) / 2**-9


@SEEDS
def test_the_first_order_effect_is_the_slope_of_the_logit_with_respect_to_the_gate(seed: int) -> None:
    model = Attending(seed)
    nothing = np.zeros((2, 2, 5, 5), np.float32)
    gradients = nothing.copy()
    for place in np.ndindex(gradients.shape):
        nudge = nothing.copy()

        def nudged(size: float, place: tuple[int, ...] = place, nudge: Floats = nudge) -> float:
            nudge[place] = size
            return float(model.run(switches(1), switches(0), nudge)[0][1])

        gradients[place] = central(nudged)
    attention = model.run(switches(1), switches(0), nothing)[1].astype(np.float32)

    found = first_order_effects(attention, gradients)

    for layer, head in product(range(2), range(2)):

        def gated(size: float, layer: int = layer, head: int = head) -> float:
            gate = switches(1)
            gate[layer, head] -= size
            return float(model.logits(gate, switches(0))[1])

        assert found[layer, head] == pytest.approx(central(gated), abs=1e-4)


@pytest.mark.parametrize("rows_max", [1, 3, 10, 64])
@SEEDS
def test_effects_match_switching_one_head_off_at_a_time(seed: int, rows_max: int) -> None:
    model = Attending(seed)
    plan = GatePlan(2, 2, rows_max)
    batches = list(plan)
    logits = np.array([model.logits(gate, uniform) for batch in batches for gate, uniform in zip(*batch, strict=True)], np.float32)

    effects = effects_from(plan, logits, Target(1))

    whole = model.logits(switches(1), switches(0))
    for layer, head in product(range(2), range(2)):
        off, even = switches(1), switches(0)
        off[layer, head], even[layer, head] = 0, 1
        assert effects.gated[layer, head] == pytest.approx(model.logits(off, switches(0))[1] - whole[1], abs=1e-5)
        assert effects.uniform[layer, head] == pytest.approx(model.logits(switches(1), even)[1] - whole[1], abs=1e-5)
    unlearned = model.logits(switches(1), switches(1))
    assert effects.all_uniform == pytest.approx(unlearned[1] - whole[1], abs=1e-5)
    assert effects.label_changed == (unlearned.argmax() != whole.argmax())
    assert effects.rows == sum(len(gate) for gate, _ in batches) == 10


@pytest.mark.parametrize(("layers", "heads", "rows_max"), [(1, 1, 1), (2, 3, 4), (12, 12, 32), (3, 1, 1000)])
def test_a_plan_respects_rows_max_and_can_be_iterated_again(layers: int, heads: int, rows_max: int) -> None:
    plan = GatePlan(layers, heads, rows_max)

    sizes = [len(gate) for gate, _ in plan]

    assert max(sizes) <= rows_max
    assert sum(sizes) == plan.rows == 2 * layers * heads + 2
    assert all(size == rows_max for size in sizes[:-1])
    for gate, uniform in plan:
        assert gate.dtype == uniform.dtype == np.float32
        assert gate.shape == uniform.shape == (len(gate), layers, heads)


def test_a_changed_label_is_that_of_the_row_with_all_heads_uniform() -> None:
    plan = GatePlan(1, 1, 4)

    assert effects_from(plan, np.array([[1, 0], [0, 1], [1, 0], [1, 0]], np.float32), Target(0)).label_changed is True
    assert effects_from(plan, np.array([[1, 0], [1, 0], [0, 1], [0, 1]], np.float32), Target(0)).label_changed is False


def test_logits_that_are_not_finite_are_refused() -> None:
    broken = np.zeros((6, 3), np.float32)
    broken[4, 1] = np.nan

    with pytest.raises(ValueError, match="logits must be finite, but 1 of 6 rows are not"):
        effects_from(GatePlan(1, 2, 4), broken, Target(0))
