"""The attention that is found is far from the model's, and the whole model answers with it as claimed."""

import math

import numpy as np
import pytest
import torch

from sentiment.model.tokenizer import Row
from sentiment_models.errors import ModelsError
from sentiment_models.study import adversarial
from sentiment_models.study.adversarial import CHANGES_MAX, find_adversarial, search
from sentiment_models.study.last_layer import Below, LastLayer, jensen_shannon
from tests.models.faithfulness.layers import Votes

TEMPERATURE = 1.3


def _probabilities(logits: torch.Tensor) -> np.ndarray:
    weights = np.exp(logits.numpy().astype(np.float64) / TEMPERATURE)
    return weights / weights.sum(-1, keepdims=True)


def test_the_whole_model_moves_by_no_more_than_allowed_with_what_is_found(tiny_bert_layer: tuple[LastLayer, list[Row]]) -> None:
    layer, rows = tiny_bert_layer
    own = layer.below(rows)

    found = find_adversarial(layer, rows, TEMPERATURE, seed=1)

    assert tuple(found) == CHANGES_MAX
    for change, one in found.items():
        weights = one.weights.numpy()
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
        assert (weights * ~own.real.numpy()[:, None] == 0).all()
        moved = np.abs(_probabilities(layer.whole(rows, one.weights)) - _probabilities(own.logits)).sum(-1) / 2
        assert moved.max() <= change + 1e-4
        torch.testing.assert_close(one.divergence, jensen_shannon(one.weights, own.attention).mean(1))
        torch.testing.assert_close(one.shown, jensen_shannon(one.weights.mean(1), own.attention.mean(1)))
        # Far, and the mean of the heads never farther than the heads are.
        assert one.divergence.min() > 0.1
        assert (one.shown <= one.divergence + 1e-6).all()
    # What answers within 0.01 does within 0.05, where the search has more room.
    assert found[0.05].divergence.mean() > found[0.01].divergence.mean()


def test_where_attention_decides_nothing_the_farthest_there_is_is_found() -> None:
    layer = Votes([[0.6, 0.3, 0.1], [0.1, 0.1, 0.8]], votes=[0.0, 0.0, 0.0], state=1.0)
    own = layer.below([])

    found = search(layer, own, TEMPERATURE, seed=2)  # type: ignore[arg-type]

    # All on the token that each head looks at least.
    least = jensen_shannon(torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), own.attention[0]).mean()
    for one in found:
        assert float(jensen_shannon(one[0], own.attention[0]).mean()) == pytest.approx(float(least), abs=0.005)


def test_where_every_change_shows_the_search_keeps_close() -> None:
    layer = Votes([[0.5, 0.5]], votes=[-20.0, 20.0])

    found = search(layer, layer.below([]), 1.0, seed=3)  # type: ignore[arg-type]

    # The probability is 1 / (1 + exp(20 a - 20 b)): 0.51 and 0.55 are at b - a = ln(0.51 / 0.49) / 20 and ln(0.55 / 0.45) / 20.
    for change, one in zip(CHANGES_MAX, found, strict=True):
        most = math.log((0.5 + change) / (0.5 - change)) / 20
        apart = float((one[0, 0, 1] - one[0, 0, 0]).abs())
        assert 0.4 * most < apart <= most + 1e-6


def test_without_an_allowed_change_the_models_own_attention_is_found(
    tiny_bert_layer: tuple[LastLayer, list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, rows = tiny_bert_layer
    monkeypatch.setattr(adversarial, "CHANGES_MAX", (-1.0,))
    monkeypatch.setattr(adversarial, "STEPS", 3)

    found = find_adversarial(layer, rows, TEMPERATURE, seed=1)

    torch.testing.assert_close(found[-1.0].weights, layer.below(rows).attention)
    assert found[-1.0].divergence.abs().max() < 1e-6


def test_a_claim_that_the_whole_model_does_not_keep_ends_the_search(
    tiny_bert_layer: tuple[LastLayer, list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, rows = tiny_bert_layer
    monkeypatch.setattr(adversarial, "STEPS", 3)
    honest = layer.logits

    def lies(below: Below, weights: torch.Tensor) -> torch.Tensor:
        return honest(below, weights) + torch.tensor([0.01, 0.0])

    monkeypatch.setattr(layer, "logits", lies)

    with pytest.raises(ModelsError, match=r"the search and the whole model differ by .* in probability; the limit is 1e-04"):
        find_adversarial(layer, rows, TEMPERATURE, seed=1)


def test_texts_of_several_batches_keep_their_order(tiny_bert_layer: tuple[LastLayer, list[Row]], monkeypatch: pytest.MonkeyPatch) -> None:
    layer, rows = tiny_bert_layer
    monkeypatch.setattr(adversarial, "TEXTS_AT_ONCE", 1)
    monkeypatch.setattr(adversarial, "STEPS", 20)

    found = find_adversarial(layer, rows, TEMPERATURE, seed=1)[0.05]

    real = layer.below(rows).real
    assert found.weights.shape[-1] == max(row.tokens for row in rows)
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(len(rows), 4))
    assert (found.weights * ~real[:, None]).sum() == 0
