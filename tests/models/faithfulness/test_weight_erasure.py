"""Weights that are taken away are gone, the rest sums to 1 again, and what flips is counted as by hand."""

import numpy as np
import pytest
import torch

from sentiment.model.tokenizer import Row
from sentiment_models.study.last_layer import LastLayer
from sentiment_models.study.weight_erasure import RANKINGS, _answers, erase_weights, share_to_flip, without
from tests.models.faithfulness.layers import Votes

NO_ROWS = [Row((), None, False)]


def _js(first: list[float], second: list[float]) -> float:
    p, q = np.array(first), np.array(second)
    m = (p + q) / 2
    return float((p * np.log(p / m) + q * np.log(q / m)).sum() / 2)


def _p(logit: float) -> list[float]:
    share = 1 / (1 + np.exp(-logit))
    return [1 - share, share]


def test_what_is_left_sums_to_1_again_in_each_head() -> None:
    attention = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    removed = torch.tensor([[True, False, False], [False, False, True], [False, False, False]])

    found = without(attention, removed)

    expected = [[[0, 0.6, 0.4], [0, 1 / 9, 8 / 9]], [[5 / 8, 3 / 8, 0], [0.5, 0.5, 0]], attention.tolist()]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_a_head_with_nothing_left_reads_nothing() -> None:
    found = without(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[True, False], [True, True]]))

    assert found.tolist() == [[[0, 0], [0, 1]], [[0, 0], [0, 0]]]


@pytest.mark.parametrize(("decisions", "share"), [([1, 0, 1, 1], 0.5), ([0, 1, 1, 1], 0.25), ([1, 1, 1, 1], 1.0), ([1, 1, 1, 0], 1.0)])
def test_the_share_is_that_of_the_first_flip_and_1_without_one(decisions: list[int], share: float) -> None:
    assert share_to_flip(np.array(decisions), 1) == share


def test_single_weights_do_what_is_counted_by_hand() -> None:
    layer = Votes([[0.5, 0.3, 0.2]], votes=[4.0, -2.0, 1.0], state=-0.5)

    found = erase_weights(layer, NO_ROWS, 2.0, seed=0)  # type: ignore[arg-type]

    whole = 0.5 * 4 - 0.3 * 2 + 0.2 - 0.5
    left = [0.6 * -2 + 0.4 - 0.5, (0.5 * 4 + 0.2) / 0.7 - 0.5, (0.5 * 4 - 0.3 * 2) / 0.8 - 0.5]
    apart = [_js(_p(whole / 2), _p(logit / 2)) for logit in left]
    assert found.top == pytest.approx([apart[0]], rel=1e-4)
    assert found.other == pytest.approx([(apart[1] + apart[2]) / 2], rel=1e-4)
    # Only without the first is the other label ahead.
    assert found.top_flips.tolist() == [1]
    assert found.other_flips.tolist() == [0]


def test_each_ranking_takes_away_in_its_own_order() -> None:
    # Attention goes to the second token first, which speaks against the answer; the gradient and the product to the third.
    layer = Votes([[0.1, 0.5, 0.4, 0.0]], votes=[0.0, -1.0, 4.0, 0.0], state=-0.2)

    found = erase_weights(layer, NO_ROWS, 1.0, seed=0)  # type: ignore[arg-type]

    assert {name: share.tolist() for name, share in found.shares.items() if name != "random"} == {
        "attention": [0.5],
        "gradient": [0.25],
        "attention_x_gradient": [0.25],
    }
    assert 0.25 <= found.shares["random"][0] <= 1
    assert {name: flips.tolist() for name, flips in found.flips.items()} == {name: [1.0] for name in RANKINGS}


def test_the_product_differs_from_the_gradient_where_the_weight_does() -> None:
    # The gradient prefers the last token, of which hardly anything is read; taking it away does nothing.
    layer = Votes([[0.05, 0.55, 0.4]], votes=[5.0, 2.0, -2.0], state=-0.3)

    found = erase_weights(layer, NO_ROWS, 1.0, seed=0)  # type: ignore[arg-type]

    assert found.shares["gradient"].tolist() == pytest.approx([2 / 3])
    assert found.shares["attention_x_gradient"].tolist() == pytest.approx([1 / 3])


def test_a_decision_that_the_layer_does_not_make_never_flips() -> None:
    found = erase_weights(Votes([[0.9, 0.1]], votes=[1.0, 1.0], state=5.0), NO_ROWS, 1.0, seed=0)  # type: ignore[arg-type]

    assert {name: share.tolist() for name, share in found.shares.items()} == {name: [1.0] for name in RANKINGS}
    assert {name: flips.tolist() for name, flips in found.flips.items()} == {name: [0.0] for name in RANKINGS}


def test_without_weights_the_whole_model_answers_the_same(tiny_bert_layer: tuple[LastLayer, list[Row]]) -> None:
    layer, rows = tiny_bert_layer
    below = layer.below(rows[:1])
    removed = torch.zeros(1, rows[0].tokens, dtype=torch.bool)
    removed[0, [0, 3, 4]] = True

    found = _answers(layer, below.text(0), removed)

    assert float(without(below.attention[0], removed)[0, :, [0, 3, 4]].abs().sum()) == 0
    torch.testing.assert_close(found, layer.whole(rows[:1], without(below.attention[0], removed)), atol=1e-4, rtol=0)
    assert (found - below.logits).abs().max() > 0.01


def test_texts_do_not_depend_on_each_other_and_the_seed_fixes_the_random_orders(
    tiny_bert_layer: tuple[LastLayer, list[Row]],
) -> None:
    layer, rows = tiny_bert_layer

    together, again = (erase_weights(layer, rows, 1.3, seed=4) for _ in range(2))
    alone = erase_weights(layer, rows[-1:], 1.3, seed=4)

    assert together.top.shape == (len(rows),)
    assert together.top[-1] == pytest.approx(alone.top[0], abs=1e-5)
    for name in RANKINGS[:3]:
        assert together.shares[name][-1] == alone.shares[name][0]
    assert together.shares["random"].tolist() == again.shares["random"].tolist()
