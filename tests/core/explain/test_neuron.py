"""The neuron view against loops over keys and dimensions."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from sentiment.explain.methods.neuron import NeuronView, neuron_view

Floats = npt.NDArray[np.float32]
SEEDS = pytest.mark.parametrize("seed", range(5))
TOKENS, WIDTH = 7, 16
SCALE = WIDTH**-0.5


class Head:
    """One head as a model in float32 computes it. ``bias`` is added to its scores."""

    def __init__(self, seed: int, bias: Floats | None = None) -> None:
        rng = np.random.default_rng(seed)
        self.query, self.key = rng.normal(0, 2, (2, TOKENS, WIDTH)).astype(np.float32)
        self.score: Floats = self.query @ self.key.T * np.float32(SCALE)
        if bias is not None:
            self.score = self.score + bias
        weights = np.exp(self.score - self.score.max(1, keepdims=True))
        self.attention: Floats = weights / weights.sum(1, keepdims=True)

    def view(self, token: int = 2, scale: float = SCALE) -> NeuronView:
        return neuron_view(self.query, self.key, self.score, self.attention, scale=scale, token=token)


@SEEDS
def test_every_number_matches_a_loop_over_keys_and_dimensions(seed: int) -> None:
    head = Head(seed)
    for token in range(TOKENS):
        view = head.view(token)

        scores = []
        for other in range(TOKENS):
            products = [float(head.query[token, place]) * float(head.key[other, place]) for place in range(WIDTH)]
            scores.append(SCALE * math.fsum(products))
            assert view.product[other] == pytest.approx(products, abs=1e-5)
            assert view.dot[other] == pytest.approx(math.fsum(products), abs=1e-5)
            assert view.scaled[other] == pytest.approx(scores[-1], abs=1e-5)
        weights = [math.exp(score) for score in scores]
        assert view.softmax == pytest.approx([weight / math.fsum(weights) for weight in weights], abs=1e-5)
        assert view.bias == pytest.approx(np.zeros(TOKENS), abs=1e-5)
        assert view.max_abs_error < 1e-6
        np.testing.assert_array_equal(view.query, head.query[token])
        np.testing.assert_array_equal(view.key, head.key)
        np.testing.assert_array_equal(view.score, head.score[token])
        np.testing.assert_array_equal(view.attention, head.attention[token])


@SEEDS
def test_relative_positions_are_the_bias_and_in_the_softmax(seed: int) -> None:
    places = np.arange(TOKENS)
    bias = np.float32(0.5) * (places - places[:, None]).astype(np.float32)

    view = Head(seed, bias).view(4)

    assert view.bias == pytest.approx(bias[4], abs=1e-5)
    assert view.scaled + view.bias == pytest.approx(view.score, abs=1e-5)
    assert view.max_abs_error < 1e-6


@pytest.mark.parametrize("masked", [-math.inf, float(np.finfo(np.float32).min)])
def test_a_masked_key_gets_no_attention(masked: float) -> None:
    bias = np.zeros((TOKENS, TOKENS), np.float32)
    bias[:, 5] = masked

    view = Head(0, bias).view()

    assert view.softmax[5] == 0
    assert view.bias[5] == masked
    assert view.softmax.sum() == pytest.approx(1)
    assert view.max_abs_error < 1e-6


def test_scores_of_hundreds_do_not_overflow() -> None:
    bias = np.zeros((TOKENS, TOKENS), np.float32)
    bias[:, 3] = 900

    view = Head(0, bias).view()

    assert view.softmax[3] == 1
    assert view.max_abs_error == 0


@pytest.mark.parametrize("error", [1e-3, -0.2])
def test_max_abs_error_shows_attention_that_is_not_the_softmax_of_the_scores(error: float) -> None:
    head = Head(1)
    head.attention[2, 6] += np.float32(error)

    assert head.view(2).max_abs_error == pytest.approx(abs(error), abs=1e-6)
    assert head.view(3).max_abs_error < 1e-6


def test_a_wrong_scale_shows_as_bias() -> None:
    head = Head(1)

    assert np.abs(head.view(scale=1.0).bias).max() > 1


def test_all_arrays_of_numbers_are_float32() -> None:
    view = Head(0).view()

    for name in ("query", "key", "product", "dot", "scaled", "bias", "score", "softmax", "attention"):
        assert getattr(view, name).dtype == np.float32, name


@pytest.mark.parametrize(("keys", "wrong"), [(1, math.nan), (1, math.inf), (slice(None), -math.inf)], ids=["nan", "inf", "all masked"])
def test_scores_without_a_finite_maximum_are_refused(keys: int | slice, wrong: float) -> None:
    head = Head(0)
    head.score[2, keys] = wrong

    with pytest.raises(ValueError, match=f"the highest score of token 2 must be finite, got {wrong}"):
        head.view(2)
