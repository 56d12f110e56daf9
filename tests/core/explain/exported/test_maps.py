"""Attention maps, neuron view and heads match the outputs of the explain graph, selected and aggregated as requested."""

import numpy as np
import numpy.typing as npt
import pytest

from sentiment.explain.encoding import Encoding, decode
from sentiment.explain.engine import Explainer
from sentiment.explain.engine.maps import _scale, map_count
from sentiment.explain.methods.attention import rollout, rollout_gradient, rollout_value_norms, to_words
from sentiment.explain.methods.heads import HeadEffects, first_order_effects, head_patterns
from sentiment.explain.methods.sentences import sentence_numbers
from sentiment.explain.parts import (
    Aggregation,
    AttentionRequest,
    AttentionTile,
    ExplanationRequest,
    Header,
    Heads,
    Neuron,
    NeuronRequest,
    Part,
)
from tests.core.explain.explained import TEXT, all_of, explained, one_of

Floats = npt.NDArray[np.float32]
TWO = "It was not good. I liked the good end."


def _graph(explainer: Explainer, text: str, label: int) -> dict[str, Floats]:
    """All outputs of the graph for a text, with layers stacked."""
    graph = explainer.load()
    assert graph is not None
    row = explainer.classifier.tokenizer.encode(text)
    found = graph.session.run(explainer.classifier.feeds([row]), graph.session.outputs, np.array([label]))
    kinds = ("attention", "attention_gradient", "value_norm")
    return {kind: np.concatenate([found[f"{kind}.{layer}"] for layer in range(2)]) for kind in kinds}


def _decoded(parts: list[Part]) -> dict[tuple[int, int], Floats]:
    found: dict[tuple[int, int], Floats] = {}
    for part in all_of(parts, AttentionTile):
        rows = decode(part.tile)
        before = found.get((part.layer, part.head), np.zeros((0, rows.shape[1]), np.float32))
        assert part.tile.row_start == len(before)
        found[part.layer, part.head] = np.concatenate([before, rows])
    return found


def _given(explainer: Explainer, asked: AttentionRequest, text: str = TEXT) -> tuple[Header, dict[tuple[int, int], Floats]]:
    header, parts, _ = explained(explainer, ExplanationRequest(text, attributions=False, attention=asked))
    assert {part.aggregation for part in all_of(parts, AttentionTile)} == {asked.aggregation}
    return header, _decoded(parts)


def test_maps_are_in_the_requested_order_of_layers_and_heads(plain: Explainer) -> None:
    header, found = _given(plain, AttentionRequest((1, 0), (3, 1), Encoding.FP32))

    attention = _graph(plain, TEXT, header.target.label)["attention"]
    assert list(found) == [(1, 3), (1, 1), (0, 3), (0, 1)]
    for (layer, head), weights in found.items():
        np.testing.assert_allclose(weights, attention[layer, head], atol=1e-6)


@pytest.mark.parametrize("encoding", Encoding)
def test_every_encoding_stays_within_its_stated_error(plain: Explainer, encoding: Encoding) -> None:
    header, parts, _ = explained(plain, ExplanationRequest(TEXT, attributions=False, attention=AttentionRequest(encoding=encoding)))

    attention = _graph(plain, TEXT, header.target.label)["attention"]
    tiles = all_of(parts, AttentionTile)
    assert len(tiles) == 8
    for part in tiles:
        assert part.tile.encoding == encoding
        weights = decode(part.tile)
        kept = weights > 0
        np.testing.assert_allclose(weights[kept], attention[part.layer, part.head][kept], atol=part.tile.error_max + 1e-6)


def test_words_cls_rows_and_head_means_use_the_requested_heads(plain: Explainer) -> None:
    heads, text = (2, 0), "unforgettable film , didn't like"
    header, words = _given(plain, AttentionRequest((1,), heads, Encoding.FP32, Aggregation.WORDS), text)
    _, rows = _given(plain, AttentionRequest((1,), heads, Encoding.FP32, Aggregation.CLS_ROWS), text)
    _, means = _given(plain, AttentionRequest((), heads, Encoding.FP32, Aggregation.HEAD_MEAN), text)

    attention = _graph(plain, text, header.target.label)["attention"]
    assert list(words) == [(1, 2), (1, 0)]
    np.testing.assert_allclose(words[1, 0], to_words(attention[1, 0], header.encoded), atol=1e-6)
    assert list(rows) == [(1, -1)]
    np.testing.assert_allclose(rows[1, -1], attention[1, [2, 0], 0], atol=1e-6)
    assert list(means) == [(0, -1), (1, -1)]
    np.testing.assert_allclose(means[0, -1], attention[0, [2, 0]].mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("heads", [(), (1, 3)])
def test_rollouts_use_all_layers_and_the_requested_heads(plain: Explainer, heads: tuple[int, ...]) -> None:
    chosen = list(heads or range(4))
    kinds = (Aggregation.ROLLOUT, Aggregation.ROLLOUT_VALUE_NORMS, Aggregation.ROLLOUT_GRADIENT)
    maps = {}
    for kind in kinds:
        header, found = _given(plain, AttentionRequest((), heads, Encoding.FP32, kind))
        assert list(found) == [(-1, -1)]
        maps[kind] = found[-1, -1]

    whole = {name: array[:, chosen] for name, array in _graph(plain, TEXT, header.target.label).items()}
    attention = whole["attention"]
    expected = (
        rollout(attention),
        rollout_value_norms(attention, whole["value_norm"]),
        rollout_gradient(attention, whole["attention_gradient"]),
    )
    for kind, wanted in zip(kinds, expected, strict=True):
        np.testing.assert_allclose(maps[kind], wanted, atol=1e-5)
    assert np.abs(expected[0] - expected[1]).max() > 1e-4


@pytest.mark.parametrize("aggregation", Aggregation)
def test_map_count_is_the_number_of_maps(plain: Explainer, aggregation: Aggregation) -> None:
    asked = AttentionRequest((), (1, 2, 3), aggregation=aggregation)

    assert len(_given(plain, asked)[1]) == map_count(asked, 2, 4)


def test_the_neuron_view_explains_the_attention_that_the_model_used(plain: Explainer) -> None:
    header, parts, _ = explained(plain, ExplanationRequest(TEXT, attributions=False, neuron=NeuronRequest(1, 2, 3)))

    found = one_of(parts, Neuron)
    attention = _graph(plain, TEXT, header.target.label)["attention"]
    assert (found.layer, found.head, found.view.token) == (1, 2, 3)
    np.testing.assert_allclose(found.view.attention, attention[1, 2, 3], atol=1e-6)
    assert found.view.scale == pytest.approx(8**-0.5)
    assert np.abs(found.view.bias).max() < 1e-5
    assert found.view.max_abs_error < 1e-6


@pytest.mark.parametrize("scale", [1.0, 64**-0.5])
def test_the_scale_relates_dot_products_to_scores(scale: float) -> None:
    rng = np.random.default_rng(5)
    query, keys = rng.normal(size=64).astype(np.float32), rng.normal(size=(20, 64)).astype(np.float32)
    score = (scale * (keys @ query) + rng.normal(size=20) + 3).astype(np.float32)

    assert _scale(query, keys, score) == pytest.approx(scale)


def test_heads_cover_all_layers(plain: Explainer) -> None:
    header, parts, _ = explained(plain, ExplanationRequest(TWO, attributions=False, heads=True))

    found = one_of(parts, Heads)
    whole = _graph(plain, TWO, header.target.label)
    expected = head_patterns(whole["attention"], header.encoded, [TWO], sentence_numbers(header.encoded, [TWO]))
    assert found.patterns.labels == expected.labels
    for part, wanted in zip(found.patterns.patterns, expected.patterns, strict=True):
        assert (part.name, part.defined, part.uniform) == (wanted.name, wanted.defined, wanted.uniform)
        np.testing.assert_allclose(part.lift, wanted.lift, atol=1e-5)
    assert {part.name for part in found.patterns.patterns if part.defined} >= {"identical_word", "sentence_internal"}
    np.testing.assert_allclose(found.first_order, first_order_effects(whole["attention"], whole["attention_gradient"]), atol=1e-5)


def test_measured_effects_match_switching_heads_off(plain: Explainer) -> None:
    header, parts, _ = explained(plain, ExplanationRequest(TEXT, attributions=False, heads=True))
    graph = plain.load()
    assert graph is not None
    feeds = plain.classifier.feeds([plain.classifier.tokenizer.encode(TEXT)])
    gate = np.ones((1, 2, 4), np.float32)
    whole, off = (
        graph.session.run(feeds, ["logits"], np.array([0]), head_gate=np.where(np.arange(8).reshape(1, 2, 4) == place, 0, gate))
        for place in (-1, 6)
    )

    effects = one_of(parts, Heads).effects
    assert isinstance(effects, HeadEffects)
    change = (off["logits"] - whole["logits"])[0, header.target.label]
    assert effects.gated[1, 2] == pytest.approx(change, abs=1e-5)
    assert abs(change) > 1e-4
