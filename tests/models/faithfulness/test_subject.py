"""A bundle under study: words are erased as each way says, and answers are those of the served graph."""

import numpy as np
import pytest
from tokenizers import Tokenizer

from sentiment.explain.methods.erasure import without
from sentiment.explain.methods.target import Target
from sentiment.model.scores import probabilities
from sentiment.model.tokenizer import Row
from sentiment_models.explanations.measures import Model
from sentiment_models.explanations.subject import Subject
from tests.models.faithfulness.conftest import MakeSubject

TEXT = "the film was not good at all , but i liked the end"


def logits(subject: Subject, ids: list[int], types: list[int] | None, erased: list[int] = []) -> list[float]:  # noqa: B006  # only read
    feeds = subject.classifier.feeds([Row(ids, types, False)])
    feeds["attention_mask"][0, erased] = 0
    return [float(value) for value in subject.classifier.session.run(feeds)[0]]


@pytest.mark.parametrize("family", ["bert", "xlnet", "roberta"])
def test_each_way_of_erasing_is_the_row_that_it_says(make_subject: MakeSubject, family: str) -> None:
    subject = make_subject(family)
    reading = subject.read(TEXT)
    ids, types = list(reading.encoded.ids), None if reading.encoded.type_ids is None else list(reading.encoded.type_ids)
    words = (1, 4)
    pieces = [piece for word in words for piece in reading.encoded.words[word].tokens]
    left = [place for place in range(len(ids)) if place not in pieces]
    wanted = {
        "attention_mask": logits(subject, ids, types, pieces),
        "deletion": logits(subject, [ids[place] for place in left], None if types is None else [types[place] for place in left]),
    }
    if subject.mask_id is not None:
        masked = [subject.mask_id if place in pieces else token for place, token in enumerate(ids)]
        wanted["mask_token"] = logits(subject, masked, types)

    # Among rows of other lengths.
    masks = without(reading.count, [(), words, tuple(range(reading.count))])
    found = {operator: reading.answers(operator).logits(masks) for operator in wanted}

    for operator, expected in wanted.items():
        assert found[operator][1] == pytest.approx(expected, abs=1e-4)
        assert found[operator][0] == pytest.approx(reading.logits)
    assert len({tuple(np.round(one, 3)) for one in wanted.values()}) == len(wanted)


def test_words_are_erased_in_every_way_that_the_tokenizer_has(make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_subject("bert").operators == ("attention_mask", "mask_token", "deletion")

    monkeypatch.setattr(Tokenizer, "token_to_id", lambda *given: None)
    assert Subject(make_subject("bert").bundle, "fp32").operators == ("attention_mask", "deletion")


def test_two_ways_joined_are_their_mean(subject: Subject) -> None:
    reading = subject.read(TEXT)
    masks = without(reading.count, [(1,), (2, 3)])

    found, masked, deleted = (reading.answers(name).logits(masks) for name in ("mask_token+deletion", "mask_token", "deletion"))

    assert found == pytest.approx((masked + deleted) / 2, abs=1e-6)
    assert np.abs(masked - deleted).max() > 1e-3


def test_nothing_is_run_twice(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = subject.read(TEXT)
    erased = reading.answers("mask_token")
    masks = without(reading.count, [(), (1,), (1,), (2, 3)])

    rows: list[int] = []
    erase = subject.erase
    monkeypatch.setattr(subject, "erase", lambda *given: rows.append(len(given[1])) or erase(*given))

    first, second = erased.logits(masks), erased.logits(masks)

    assert first.tolist() == second.tolist()
    # The whole text was known already.
    assert rows == [2]


def test_a_probability_is_that_of_the_service(subject: Subject) -> None:
    rows = np.array([[1.0, -2.0], [400.0, 401.0]])

    found = Model(Target(1), subject.temperature).probability(rows)

    assert found == pytest.approx([probabilities(row, subject.temperature)[1] for row in rows.tolist()])


def test_a_long_text_is_cut_and_an_empty_one_is_refused_without_a_run(subject: Subject) -> None:
    long = subject.read("good film " * 200)

    assert long.tokens == subject.classifier.manifest.max_tokens
    assert subject.reads(("film", "good"))
    assert not subject.reads(" \n")


def test_a_pair_is_read_with_the_words_of_both(subject: Subject) -> None:
    reading = subject.read(("good film", "bad end"))

    assert reading.words == ("good", "film", "bad", "end")
    assert np.isfinite(reading.answers("deletion").logits(without(4, [(0,), (2, 3)]))).all()


def test_attention_is_shares_and_uniform_attention_changes_the_answer(subject: Subject) -> None:
    reading = subject.read(TEXT)

    arrays, uniform = subject.attention(reading, reading.target()), subject.uniform(reading)

    assert subject.session is not None
    layers, heads = subject.session.layers, subject.session.heads
    assert arrays["attention"].shape == arrays["gradients"].shape == (layers, heads, reading.tokens, reading.tokens)
    assert arrays["attention"].sum(axis=3) == pytest.approx(1, abs=1e-4)
    assert arrays["value_norms"].shape == (layers, heads, reading.tokens)
    assert arrays["logits"] == pytest.approx(reading.logits, abs=1e-3)
    assert uniform.shape == (layers + 1, len(subject.labels))
    alone = np.zeros((1, layers, heads), np.float32)
    alone[0, 1] = 1
    assert uniform[1] == pytest.approx(subject.explained(reading, ["logits"], Target(0), head_uniform=alone)["logits"][0], abs=1e-5)
    everywhere = subject.explained(reading, ["logits"], Target(0), head_uniform=np.ones((1, layers, heads), np.float32))["logits"][0]
    assert uniform[-1] == pytest.approx(everywhere, abs=1e-5)
    assert np.abs(uniform[-1] - reading.logits).max() > 1e-3


def test_an_attribution_is_the_service_s_own(subject: Subject) -> None:
    reading = subject.read(TEXT)

    found, summary = subject.attribute(reading, "occlusion", Target(1))

    erased = reading.answers("attention_mask").logits(without(reading.count, [(word,) for word in range(reading.count)]))
    assert found.words == pytest.approx(reading.logits[1] - erased[:, 1], abs=1e-4)
    assert summary.complete
