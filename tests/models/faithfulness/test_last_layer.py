"""The last layer in torch answers as the model does: with the model's own attention, and with any other put into the whole model."""

import json
import math
from pathlib import Path

import pytest
import torch

from sentiment.model.tokenizer import Row
from sentiment_models.study import last_layer
from sentiment_models.study.last_layer import LastLayer, jensen_shannon, load_last_layer, total_variation
from tests.models.faithfulness.layers import tiny_layer
from tests.models.tiny_families import TINY, save_tiny


@pytest.fixture(scope="module", params=["bert", "bert-deep", "roberta", "electra"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LastLayer, list[Row]]:
    return tiny_layer(tmp_path_factory.mktemp(request.param), request.param)


def _weights(like: torch.Tensor, real: torch.Tensor, seed: int) -> torch.Tensor:
    drawn = 3 * torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))
    return torch.softmax(drawn.masked_fill(~real[:, None], -torch.inf), -1)


def test_the_models_own_attention_gives_the_models_own_logits(tiny: tuple[LastLayer, list[Row]]) -> None:
    layer, rows = tiny
    below = layer.below(rows)

    found = layer.logits(below, below.attention)

    with torch.no_grad():
        alone = torch.cat([layer.model(input_ids=torch.tensor([row.ids])).logits for row in rows])
    torch.testing.assert_close(found, alone, atol=1e-4, rtol=0)
    torch.testing.assert_close(below.logits, alone, atol=1e-4, rtol=0)
    torch.testing.assert_close(below.attention.sum(-1), torch.ones(below.attention.shape[:2]))
    assert (below.attention * ~below.real[:, None]).sum() == 0


def test_the_last_layer_with_other_attention_gives_the_whole_models_logits(tiny: tuple[LastLayer, list[Row]]) -> None:
    layer, rows = tiny
    below = layer.below(rows)
    weights = _weights(below.attention, below.real, 3)

    found = layer.logits(below, weights)

    torch.testing.assert_close(found, layer.whole(rows, weights), atol=1e-4, rtol=0)
    assert (found - below.logits).abs().max() > 0.01
    # What was put in is taken out again.
    torch.testing.assert_close(layer.below(rows).logits, below.logits)


def test_batches_and_padding_change_nothing(tiny: tuple[LastLayer, list[Row]], monkeypatch: pytest.MonkeyPatch) -> None:
    layer, rows = tiny
    together = layer.below(rows)
    weights = _weights(together.attention, together.real, 4)
    whole = layer.whole(rows, weights)

    monkeypatch.setattr(last_layer, "BATCH_TOKENS_MAX", 1)
    apart = layer.below(rows)

    for name in ("values", "state", "attention", "logits"):
        mask = together.real[:, None, :, None] if name == "values" else torch.tensor(True)
        torch.testing.assert_close(getattr(apart, name) * mask, getattr(together, name) * mask, atol=1e-5, rtol=0)
    torch.testing.assert_close(layer.whole(rows, weights), whole, atol=1e-5, rtol=0)
    for index, row in enumerate(rows):
        one = together.text(index)
        assert one.attention.shape[-1] == row.tokens
        torch.testing.assert_close(layer.logits(one, one.attention), one.logits, atol=1e-5, rtol=0)


def test_batches_keep_the_token_limit_and_leave_no_row_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_layer, "BATCH_TOKENS_MAX", 12)
    rows = [Row(range(tokens), None, False) for tokens in (3, 4, 5, 2, 20, 6, 6, 1)]

    found = list(last_layer._batches(rows))

    assert found == [range(2), range(2, 4), range(4, 5), range(5, 7), range(7, 8)]


@pytest.mark.parametrize("family", ["distilbert", "albert", "mpnet", "xlnet"])
def test_other_families_are_not_measured(family: str, tmp_path: Path) -> None:
    assert load_last_layer(save_tiny(tmp_path / family, TINY[family]), 0) is None


def test_a_bundle_without_its_weights_is_not_measured(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))

    assert load_last_layer(tmp_path, 0) is None


def test_the_divergence_is_that_of_the_definition() -> None:
    first = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.2, 0.8]], dtype=torch.float64)
    second = torch.tensor([[0.0, 1.0], [0.5, 0.5], [0.2, 0.8]], dtype=torch.float64)

    found = jensen_shannon(first, second)

    half = (math.log(1 / 0.75) + 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)) / 2
    assert found.tolist() == pytest.approx([math.log(2), half, 0.0], abs=1e-12)
    torch.testing.assert_close(jensen_shannon(second, first), found)
    assert total_variation(first, second).tolist() == pytest.approx([1.0, 0.5, 0.0])


def test_the_divergence_has_a_gradient_where_weights_are_nothing() -> None:
    free = torch.tensor([0.0, -200.0, 3.0], requires_grad=True)

    jensen_shannon(torch.softmax(free, -1), torch.tensor([1.0, 0.0, 0.0])).backward()

    assert free.grad is not None
    assert torch.isfinite(free.grad).all()
    assert free.grad.abs().max() > 0.01
