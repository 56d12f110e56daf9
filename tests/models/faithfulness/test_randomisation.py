"""Attributions in torch are the service's, and a model with shuffled upper layers has others."""

import copy

import numpy as np
import pytest
import torch

from sentiment.explain.methods.registry import GRADIENT_METHODS
from sentiment.explain.methods.target import Target
from sentiment_models.explanations.subject import Subject
from sentiment_models.study import randomisation
from sentiment_models.study.last_layer import LastLayer, load_last_layer
from sentiment_models.study.randomisation import STEPS, agreement, attribute, randomised
from tests.models.faithfulness.conftest import MakeSubject
from tests.models.faithfulness.layers import TEXTS


@pytest.fixture(scope="module", params=["bert", "roberta"])
def both(request: pytest.FixtureRequest, make_subject: MakeSubject) -> tuple[Subject, LastLayer]:
    """A bundle that is served in fp32, and its weights in torch."""
    subject = make_subject(request.param)
    layer = load_last_layer(subject.bundle, subject.classifier.tokenizer.pad_id)
    assert layer is not None
    return subject, layer


def test_attributions_are_those_of_the_service(both: tuple[Subject, LastLayer]) -> None:
    subject, layer = both
    for text in (*TEXTS, ("the film", "was not good")):
        reading = subject.read(text)

        target, found = attribute(layer.model, reading.encoded, None, subject.classifier.tokenizer.pad_id)

        assert target == reading.target()
        for method in GRADIENT_METHODS:
            told, _ = subject.attribute(reading, method, target, STEPS if method == "integrated_gradients" else 0)
            np.testing.assert_allclose(found[method], told.words, atol=1e-3)


def test_long_texts_are_attributed_in_several_batches(both: tuple[Subject, LastLayer], monkeypatch: pytest.MonkeyPatch) -> None:
    subject, layer = both
    encoded, pad_id = subject.read(TEXTS[0]).encoded, subject.classifier.tokenizer.pad_id
    _, together = attribute(layer.model, encoded, Target(0), pad_id)

    monkeypatch.setattr(randomisation, "BATCH_TOKENS_MAX", 1)
    _, apart = attribute(layer.model, encoded, Target(0), pad_id)

    for method in GRADIENT_METHODS:
        np.testing.assert_allclose(apart[method], together[method], atol=1e-5)


def test_the_upper_half_is_shuffled_and_nothing_else(both: tuple[Subject, LastLayer]) -> None:
    model = both[1].model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    drawn = randomised(model, seed=1).state_dict()

    changed = {name for name, tensor in drawn.items() if not torch.equal(tensor, before[name])}
    upper = {name for name in before if "encoder.layer.1." in name or "pooler" in name or name.startswith("classifier")}
    assert changed == upper
    for name in upper:
        assert torch.equal(drawn[name].flatten().sort().values, before[name].flatten().sort().values)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_model_agrees_with_itself_and_not_with_one_that_forgot(both: tuple[Subject, LastLayer], monkeypatch: pytest.MonkeyPatch) -> None:
    subject, layer = both
    texts = [subject.read(text).encoded for text in TEXTS]
    pad_id = subject.classifier.tokenizer.pad_id

    signed, sizes = agreement(layer.model, texts, pad_id, seed=2)
    monkeypatch.setattr(randomisation, "randomised", lambda model, seed: model)
    same, same_sizes = agreement(layer.model, texts, pad_id, seed=2)

    for method in GRADIENT_METHODS:
        assert abs(signed[method]) < 0.7
        assert abs(sizes[method]) < 0.7
    # "dull" is one word, of which there is no order.
    assert same == pytest.approx(dict.fromkeys(GRADIENT_METHODS, 1.0))
    assert same_sizes == pytest.approx(dict.fromkeys(GRADIENT_METHODS, 1.0))


def test_a_model_turned_round_agrees_in_sizes_alone(both: tuple[Subject, LastLayer], monkeypatch: pytest.MonkeyPatch) -> None:
    subject, layer = both
    turned = copy.deepcopy(layer.model)
    # All that is between a label's logit and the text: its sign is that of every value.
    last = [module for module in turned.modules() if isinstance(module, torch.nn.Linear)][-1]
    last.weight.neg_()
    last.bias.neg_()
    monkeypatch.setattr(randomisation, "randomised", lambda model, seed: turned)

    signed, sizes = agreement(layer.model, [subject.read(TEXTS[0]).encoded], subject.classifier.tokenizer.pad_id, seed=2)

    assert signed == pytest.approx(dict.fromkeys(GRADIENT_METHODS, -1.0))
    assert sizes == pytest.approx(dict.fromkeys(GRADIENT_METHODS, 1.0))
