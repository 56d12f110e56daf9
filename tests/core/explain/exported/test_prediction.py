"""What an explanation takes is predicted before it starts, from its own rows and the usual pace of texts of its length."""

import math
from dataclasses import replace

import pytest

from sentiment.explain.engine import Explainer
from sentiment.explain.engine.prediction import MAPS_BYTES_MAX, SHORT_S, Prediction, predict
from sentiment.explain.engine.runs import EXPLAINED, RUN_TOKENS_MAX, SERVED, TOKEN_S, UsualPaces
from sentiment.explain.methods.registry import METHODS
from sentiment.explain.parts import AttentionRequest, ExplanationRequest
from sentiment.model.classifier import Classifier
from tests.core.explain.explained import TEXT, explained

LAYERS, HEADS = 12, 12
ALONE = {"attributions": False}
LONG = ". ".join(["the film was not good at all but i liked the end"] * 4)


def paces(tokens: int, served_s: float = 0.0, explained_s: float = 0.0) -> UsualPaces:
    usual = UsualPaces()
    usual.tell(SERVED, tokens, served_s)
    usual.tell(EXPLAINED, tokens, explained_s)
    return usual


def of(tokens: int = 24, **asked: object) -> Prediction:
    """At 1 ms a row of the served graph and 10 ms a row of the explain graph."""
    return predict(ExplanationRequest("", **asked), tokens, LAYERS, HEADS, paces(tokens, 1e-3, 1e-2))  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize("text", ["good film", TEXT, LONG])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("more", [{}, {"evidence": False}, {"steps": 4}, {"without": ((0,), (1,))}])
def test_a_method_runs_no_more_rows_than_predicted(explainer: Explainer, text: str, method: str, more: dict[str, object]) -> None:
    asked = ExplanationRequest(text, methods=(method,), **more)  # type: ignore[arg-type]  # by name
    tokens = explainer.classifier.tokenizer.encode(text).tokens
    graph = explainer.load()
    assert graph is not None

    _, _, summary = explained(explainer, asked)
    rows = predict(asked, tokens, graph.session.layers, graph.session.heads, paces(tokens, served_s=1.0)).work_s

    # Two steps run rows that are shorter than the text.
    assert summary.served_rows * (0.125 if method == "two_step_shapley" else 1) <= rows + 2


def test_the_rows_of_the_explain_graph_are_predicted(explainer: Explainer) -> None:
    asked = ExplanationRequest(TEXT, methods=("integrated_gradients", "shapley"), steps=8, heads=True)
    tokens = explainer.classifier.tokenizer.encode(TEXT).tokens
    graph = explainer.load()
    assert graph is not None

    _, _, summary = explained(explainer, asked)
    rows = predict(asked, tokens, graph.session.layers, graph.session.heads, paces(tokens, explained_s=1.0)).work_s

    # The agreement of Shapley values needs no gradients of its own here.
    assert summary.explained_rows <= rows <= summary.explained_rows + 9


def test_a_request_without_methods_is_predicted_by_the_default(explainer: Explainer) -> None:
    named = ExplanationRequest(TEXT, methods=explainer.methods[:1])

    assert explainer.predict(replace(named, methods=())).work_s == pytest.approx(explainer.predict(named).work_s)
    assert explainer.predict(ExplanationRequest(TEXT, **ALONE)).work_s < explainer.predict(named).work_s  # type: ignore[arg-type]


def test_a_graph_that_is_not_loaded_yet_is_predicted_by_its_own_layers_and_heads(classifier: Classifier) -> None:
    explainer, asked = Explainer(classifier), ExplanationRequest(TEXT, heads=True)

    before = explainer.predict(asked)
    explainer.load()

    assert explainer.predict(asked) == before


def test_without_an_explain_graph_only_the_served_graph_takes_time() -> None:
    asked = ExplanationRequest("", methods=("shapley",))

    assert predict(asked, 24, 0, 0, paces(24, explained_s=1.0)).work_s == 0


def test_the_part_that_adaptive_effort_reads_is_predicted_too() -> None:
    usual = paces(128, served_s=1.0)
    usual.tell(SERVED, 64, 0.25)

    without, found = (predict(ExplanationRequest("", **ALONE), 128, 0, 0, usual, part=part) for part in (0, 64))  # type: ignore[arg-type]

    assert found.work_s == pytest.approx(without.work_s + 0.25)
    assert found.least_s == pytest.approx(without.least_s + 0.25)


def test_the_least_of_use_is_the_first_method_in_few_steps() -> None:
    all_of_it = of(methods=("shapley", "occlusion"), steps=256, counterfactuals=True, heads=True, without=((0,),))

    assert all_of_it.least_s == of(methods=("shapley",), steps=4).work_s
    assert all_of_it.least_s < all_of_it.work_s / 10
    assert of(methods=("shapley",), steps=2).least_s == of(methods=("shapley",), steps=2).work_s


@pytest.mark.parametrize("steps", [-5, 0, 10**9])
def test_steps_that_are_refused_later_can_be_predicted(steps: int) -> None:
    for method in METHODS:
        found = of(methods=(method,), steps=steps)

        assert 0 < found.least_s <= found.work_s < math.inf


def test_a_short_explanation_has_short_runs_and_takes_little() -> None:
    assert of(methods=("shapley",)).short
    assert of(methods=("shapley",), steps=256).work_s > SHORT_S
    assert not of(methods=("shapley",), steps=256).short
    assert of(RUN_TOKENS_MAX, **ALONE).short
    assert not of(RUN_TOKENS_MAX + 1, **ALONE).short


def test_an_explanation_that_keeps_large_maps_is_heavy_and_not_short() -> None:
    maps = AttentionRequest()
    edge = math.isqrt(MAPS_BYTES_MAX // (4 * LAYERS * HEADS))

    assert (of(edge, attention=maps, **ALONE).heavy, of(edge, attention=maps, **ALONE).short) == (False, True)
    assert (of(edge + 1, attention=maps, **ALONE).heavy, of(edge + 1, attention=maps, **ALONE).short) == (True, False)
    assert of(edge, heads=True, **ALONE).heavy
    assert not of(512, geometry=True, **ALONE).heavy


def test_a_pace_is_that_of_the_nearest_length_by_tokens() -> None:
    usual = UsualPaces()
    assert usual.expected_s(SERVED, 100) == 100 * TOKEN_S[SERVED]
    usual.tell(SERVED, 10, 1.0)
    usual.tell(SERVED, 400, 80.0)

    assert (usual.of(SERVED, 12), usual.of(SERVED, 300), usual.of(SERVED, 100)) == (pytest.approx(1.2), pytest.approx(60), math.inf)
    assert usual.expected_s(SERVED, 20) == pytest.approx(2)
    assert usual.expected_s(SERVED, 200) == pytest.approx(40)
    assert usual.expected_s(EXPLAINED, 200) == 200 * TOKEN_S[EXPLAINED]


def test_a_pace_is_half_the_latest_observation() -> None:
    usual = UsualPaces()
    for seconds in (1.0, 2.0, 4.0):
        usual.tell(SERVED, 10, seconds)

    assert usual.of(SERVED, 10) == pytest.approx(2.75)


def test_dear_texts_do_not_change_the_prediction_of_short_ones(explainer: Explainer) -> None:
    explained(explainer, ExplanationRequest("good film"))
    before = explainer.predict(ExplanationRequest("good film"))
    for _ in range(3):
        explained(explainer, ExplanationRequest(LONG, methods=("shapley",), steps=64))

    assert explainer.predict(ExplanationRequest("good film")) == before
