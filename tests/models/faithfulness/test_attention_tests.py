"""The tests of attention, put together over texts of one bundle."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sentiment.explain.methods.target import Target
from sentiment_models.errors import ModelsError
from sentiment_models.explanations.drawing import drawn
from sentiment_models.explanations.rankings import Scores, attention_scores, attributions
from sentiment_models.explanations.subject import Reading, Subject
from sentiment_models.study import adversarial, attention_tests
from sentiment_models.study.attention_tests import attention_found
from sentiment_models.study.weight_erasure import RANKINGS
from tests.models.faithfulness.layers import TEXTS

Scored = list[dict[str, Scores]]


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """How far a search comes is covered by its own tests."""
    monkeypatch.setattr(adversarial, "STEPS", 20)


@pytest.fixture(scope="module")
def readings(subject: Subject) -> list[Reading]:
    return [subject.read(text) for text in TEXTS]


@pytest.fixture(scope="module")
def scored(subject: Subject, readings: list[Reading]) -> Scored:
    return [
        attributions(subject, one, one.target(), ["gradient_x_input", "occlusion"]) | attention_scores(subject, one, one.target())
        for one in readings
    ]


def test_every_test_has_its_result(subject: Subject, readings: list[Reading], scored: Scored) -> None:
    right = [reading.label for reading in readings]

    found = attention_found(subject, readings, right, scored, seed=3)

    assert found.accuracy == 1
    assert found.adversarial is not None
    assert found.adversarial_shown is not None
    assert list(found.adversarial) == list(found.adversarial_shown) == ["0.01", "0.05"]
    for change, (median, far) in found.adversarial.items():
        assert 0 < found.adversarial_shown[change][0] <= median < math.log(2)
        assert 0 <= far <= 1
    assert found.top_weight is not None
    assert found.top_weight.low <= found.top_weight.mean <= found.top_weight.high
    assert found.flip_share is not None
    assert found.flips is not None
    assert tuple(found.flip_share) == tuple(found.flips) == RANKINGS
    assert found.randomisation is not None
    assert set(found.randomisation) == {"gradient_x_input", "integrated_gradients"}
    # One text has a single word.
    assert (found.adversarial_texts, found.erased_texts, found.randomisation_texts, found.uniform_texts) == (4, 4, 3, 4)
    assert attention_found(subject, readings, right, scored, seed=3) == found


def test_uniform_accuracy_is_of_each_layer_and_of_all(subject: Subject, readings: list[Reading], scored: Scored) -> None:
    layers, heads = 2, 4
    switches = np.zeros((layers + 1, layers, heads), np.float32)
    switches[0, 0] = switches[1, 1] = switches[2] = 1
    uniform = np.array(
        [subject.explained(one, ["logits"], Target(0), 3, head_uniform=switches)["logits"].argmax(axis=1) for one in readings]
    )

    for right in (uniform[:, 0], uniform[:, 2], 1 - uniform[:, 1]):
        found = attention_found(subject, readings, right, scored, seed=3)

        assert found.uniform_accuracy == pytest.approx(tuple((uniform == right[:, None]).mean(axis=0)))
        assert found.accuracy == pytest.approx(np.mean([one.label == label for one, label in zip(readings, right, strict=True)]))


def _score(values: Sequence[float]) -> Scores:
    return Scores(np.array(values), 0, 0.0)


def test_correlations_are_with_the_size_of_an_importance() -> None:
    texts = [
        {
            "attention_last_cls": _score([0.5, 0.3, 0.2]),
            "attention_mean_cls": _score([0.2, 0.3, 0.5]),
            "gradient_x_input": _score([-3.0, 2.0, -1.0]),
        },
        # Of four words one pair of six is the other way round: tau is 4 / 6.
        {
            "attention_last_cls": _score([0.4, 0.3, 0.2, 0.1]),
            "attention_mean_cls": _score([0.4, 0.3, 0.2, 0.1]),
            "gradient_x_input": _score([3.0, -4.0, 2.0, 1.0]),
        },
        # Says nothing.
        {"attention_last_cls": _score([1.0]), "attention_mean_cls": _score([1.0]), "gradient_x_input": _score([1.0])},
    ]

    found = attention_tests._taus(texts, "gradient_x_input")

    assert found == pytest.approx({"attention_last_cls": (1 + 4 / 6) / 2, "attention_mean_cls": (-1 + 4 / 6) / 2})
    # Of one word alone there is no agreement that could be told, not one of 0.
    assert attention_tests._taus(texts[2:], "gradient_x_input") == {}


def test_tests_of_the_last_layer_are_left_out_for_other_architectures(
    subject: Subject, readings: list[Reading], scored: Scored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_tests, "load_last_layer", lambda bundle, pad_id: None)

    found = attention_found(subject, readings, [0] * len(readings), scored, seed=3)

    assert len(found.uniform_accuracy) == 3
    assert (found.adversarial, found.top_weight, found.flip_share, found.randomisation) == (None, None, None, None)


def test_a_bundle_without_an_explain_graph_is_refused(
    subject: Subject, readings: list[Reading], scored: Scored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "session", None)

    with pytest.raises(ModelsError, match="has no explain graph"):
        attention_found(subject, readings, [0] * len(readings), scored, seed=3)


def test_the_torch_model_answers_as_the_explain_graph_does(subject: Subject, readings: list[Reading]) -> None:
    layer = attention_tests.load_last_layer(Path(subject.bundle), subject.classifier.tokenizer.pad_id)
    assert layer is not None

    found = layer.below([reading.row for reading in readings])

    for reading, logits, attention in zip(readings, found.logits, found.attention, strict=True):
        told = subject.attention(reading, reading.target())
        np.testing.assert_allclose(logits, told["logits"], atol=1e-4)
        np.testing.assert_allclose(attention[:, : reading.tokens], told["attention"][-1, :, 0], atol=1e-4)


def test_the_texts_that_fit_are_drawn() -> None:
    rng = np.random.default_rng(1)
    tokens = [10, 20, 30, 40, 50]

    for texts_max, tokens_max in ((2, 1_000), (5, 70), (5, 150), (5, 1)):
        for _ in range(50):
            found = drawn(tokens, texts_max, tokens_max, rng)

            assert found == sorted(set(found))
            assert 1 <= len(found) <= texts_max
            assert len(found) == 1 or sum(tokens[place] for place in found) <= tokens_max
    assert drawn(tokens, 5, 150, rng) == [0, 1, 2, 3, 4]
    assert {place for _ in range(200) for place in drawn(tokens, 1, 1_000, rng)} == {0, 1, 2, 3, 4}
