"""Small encoders and bags of embeddings: what freezing freezes, what is read, what weights do."""

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification

from sentiment_models.data.labelled import Example
from sentiment_models.study.bag import Bag, read_bag, train_bag, uniform_weights
from sentiment_models.study.small_encoder import (
    Batch,
    Course,
    Texts,
    answer,
    encode,
    fit,
    freeze_uniform,
    make_encoder,
    over_words,
    padded,
    read,
)
from sentiment_models.training.recipe import Shape
from sentiment_models.training.scratch import train_tokenizer
from tests.models.tiny_bert import BAD, GOOD, sentences

TOKENS_MAX = 24
EXAMPLES = [Example(text, label) for label, text in sentences(120, seed=6, words_max=12)]
TOKENIZER = train_tokenizer([example.text for example in EXAMPLES], 150, TOKENS_MAX)
TEXTS = encode(TOKENIZER, EXAMPLES, TOKENS_MAX)


def encoder(seed: int = 1) -> BertForSequenceClassification:
    return make_encoder(Shape(2, 2, 16), len(TOKENIZER), TOKENS_MAX, 2, 0.1, seed)


def trained(model: BertForSequenceClassification) -> BertForSequenceClassification:
    def loss(batch: Batch) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(answer(model, batch)[0], batch.labels)

    fit(model, TEXTS, loss, Course(epochs=2, learning_rate=1e-2, batch_rows=16, seed=1), "test")
    return model


def attentions(model: BertForSequenceClassification, batch: Batch) -> list[torch.Tensor]:
    with torch.no_grad():
        return list(model(input_ids=batch.ids, attention_mask=batch.mask, output_attentions=True).attentions)


def test_tokens_know_their_word_and_texts_without_one_are_left_out() -> None:
    tokenizer = train_tokenizer(["ab ab ab"], 20, 16)

    texts = encode(tokenizer, [Example("ba ab", 1), Example(" \u200b ", 0), Example("ab ab ab ab ab", 0)], 6)

    assert texts.words == [[0, 1, 1, 2, 0], [0, 1, 2, 3, 4, 0]]
    assert texts.labels.tolist() == [1, 0]
    assert texts.counts().tolist() == [2, 4]


def test_weights_are_summed_over_pieces_and_shared_among_words_alone() -> None:
    weights = torch.tensor([[0.5, 0.1, 0.1, 0.2, 0.1], [0.6, 0.2, 0.2, 0.0, 0.0]])
    words = torch.tensor([[0, 1, 1, 2, 0], [0, 1, 0, 0, 0]])

    found = over_words(weights, words, 3)

    assert found.numpy() == pytest.approx(np.array([[0.5, 0.5, 0], [1, 0, 0]]))


@pytest.mark.parametrize(("layers", "learned"), [((0, 1), ()), ((1,), (0,))])
def test_frozen_layers_attend_uniformly_after_training_and_others_learn(layers: tuple[int, ...], learned: tuple[int, ...]) -> None:
    model = encoder()
    freeze_uniform(model, layers)
    batch = padded(TEXTS, range(20))
    even = (batch.mask / batch.mask.sum(1, keepdim=True))[:, None, None, :]

    found = attentions(trained(model), batch)

    assert len({len(TEXTS.ids[index]) for index in range(20)}) > 1
    for layer in layers:
        assert torch.allclose(found[layer], even.expand_as(found[layer]), atol=1e-7)
    for layer in learned:
        assert (found[layer] - even).abs().max() > 0.01


def test_equal_seeds_train_to_equal_encoders_and_others_differ() -> None:
    first, again, other = (read(trained(encoder(seed)), TEXTS) for seed in (1, 1, 2))

    assert np.array_equal(first.weights, again.weights)
    assert np.array_equal(first.probabilities, again.probabilities)
    assert np.abs(first.weights - other.weights).max() > 1e-3


def test_the_result_of_a_text_does_not_depend_on_the_others() -> None:
    model = trained(encoder())
    whole = read(model, TEXTS)

    for index in (0, 7, 50):
        alone = read(model, Texts([TEXTS.ids[index]], [TEXTS.words[index]], TEXTS.labels[index : index + 1]))
        words = max(TEXTS.words[index])
        assert alone.weights[0] == pytest.approx(whole.weights[index, :words], abs=1e-5)
        assert alone.probabilities[0] == pytest.approx(whole.probabilities[index], abs=1e-5)
        assert whole.weights[index, words:].sum() == 0
    assert whole.weights.sum(1) == pytest.approx(np.ones(len(TEXTS.ids)))
    assert 0.3 < whole.on_words < 1


def test_a_bag_reads_what_its_weights_point_at_and_nothing_else() -> None:
    torch.manual_seed(4)
    bag = Bag(20, 8, 2, 0.0, seed=4).eval()
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    words = torch.tensor([[0, 1, 2, 2, 0]])

    pointed = bag(ids, words, torch.tensor([[0.0, 1.0]]))
    alone = bag(torch.tensor([[8, 9]]), torch.tensor([[1, 1]]), torch.tensor([[1.0]]))
    turned = bag(torch.tensor([[2, 9, 8, 7, 3]]), torch.tensor([[0, 1, 1, 2, 0]]), torch.tensor([[1.0, 0.0]]))

    assert torch.allclose(pointed, alone, atol=1e-6)
    assert torch.allclose(pointed, turned, atol=1e-6)
    assert not torch.allclose(pointed, bag(ids, words, torch.tensor([[1.0, 0.0]])), atol=1e-3)


def test_a_bag_that_learns_its_weights_ignores_padding() -> None:
    bag = Bag(20, 8, 2, 0.0, seed=4).eval()

    short = bag(torch.tensor([[7, 8]]), torch.tensor([[1, 2]]), None)
    both = bag(torch.tensor([[7, 8, 0], [7, 8, 9]]), torch.tensor([[1, 2, 0], [1, 2, 3]]), None)

    assert torch.allclose(short[0], both[0], atol=1e-6)
    assert torch.isfinite(both).all()


def test_a_bag_learns_from_weights_on_telling_words_and_not_from_weights_on_others() -> None:
    telling = np.zeros_like(uniform_weights(TEXTS))
    for row, example in enumerate(EXAMPLES):
        for place, word in enumerate(example.text.split()):
            telling[row, place] = word in GOOD + BAD
    telling /= telling.sum(1, keepdims=True)
    others = uniform_weights(TEXTS) * (telling == 0)
    others /= np.maximum(others.sum(1, keepdims=True), 1e-9)
    right = {}

    for name, weights in {"telling": telling, "others": others, "learned": None}.items():
        bag = Bag(len(TOKENIZER), 16, 2, 0.0, seed=1)
        train_bag(bag, TEXTS, weights, Course(epochs=6, learning_rate=3e-2, batch_rows=16, seed=1), name)
        right[name] = (read_bag(bag, TEXTS, weights).argmax(1) == TEXTS.labels).mean()

    assert right["telling"] > 0.95
    assert right["learned"] > 0.95
    assert right["others"] < 0.85


def test_uniform_weights_are_equal_on_words_and_0_on_padding() -> None:
    texts = Texts([[1, 5, 6, 2], [1, 5, 2]], [[0, 1, 2, 0], [0, 1, 0]], np.array([0, 1]))

    assert uniform_weights(texts).tolist() == [[0.5, 0.5], [1.0, 0.0]]
