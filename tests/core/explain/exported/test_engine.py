"""Explanations by a tiny random BERT with its real explain graph, without a time limit."""

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sentiment.call.explain_response import Messages
from sentiment.errors import InvalidInput, Unsupported
from sentiment.explain.budget import Sizes, bytes_most
from sentiment.explain.engine import Explainer
from sentiment.explain.methods.evidence import Evidence, Verdict
from sentiment.explain.methods.heads import GatePlan
from sentiment.explain.methods.registry import ERASURE_METHODS, METHODS
from sentiment.explain.parts import (
    Aggregation,
    AttentionRequest,
    AttentionTile,
    Attribution,
    Counterfactuals,
    ExplanationRequest,
    Header,
    Heads,
    Neuron,
    NeuronRequest,
    Reason,
    Without,
    WordGeometry,
)
from sentiment.model.bundle import Graphs
from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.session import Stop
from sentiment.model.tokenizer import Row
from sentiment.v1 import sentiment_pb2 as pb
from tests.core.explain.explained import TEXT, all_of, explained, logit, one_of
from tests.models.tiny_families import MAX_TOKENS

EVERYTHING = ExplanationRequest(
    TEXT, methods=METHODS, counterfactuals=True, heads=True, attention=AttentionRequest(), neuron=NeuronRequest(), by_embedding=True,
    without=((3,), (5, 2)), geometry=True,
)  # fmt: skip
_text = partial(ExplanationRequest, TEXT)


def _changed(found: Classifier, **changes: object) -> Explainer:
    manifest = found.manifest.model_copy(update=changes)
    return Explainer(Classifier(replace(found.bundle, manifest=manifest), found.graph, found.tokenizer, found.session))


def _without_graph(bundle: Path) -> Explainer:
    found = load_classifier(bundle, "int8")
    return _changed(found, graphs=Graphs(classify=found.manifest.graphs.classify))


@pytest.mark.parametrize("label", [None, "negative", "positive"])
def test_the_header_has_the_served_answer_and_the_explained_label(explainer: Explainer, label: str | None) -> None:
    header, _, _ = explained(explainer, _text(label=label))

    classifier = explainer.classifier
    row = classifier.tokenizer.encode(TEXT)
    assert header.scored == classifier.score(classifier.run([row])[0])
    assert classifier.manifest.labels[header.target.label] == (label or header.scored.label)
    assert header.logit == pytest.approx(logit(classifier, row, header.target.label))
    assert header.agrees
    assert header.texts == (TEXT,)
    assert header.logit_error is not None
    assert (header.logit_error < 1e-5) == (classifier.graph.precision == "fp32")
    assert [TEXT[word.start : word.end] for word in header.encoded.words] == TEXT.split()


def test_parts_have_a_fixed_order(explainer: Explainer) -> None:
    _, parts, summary = explained(explainer, EVERYTHING)

    kinds = list(dict.fromkeys(type(part) for part in parts))
    assert kinds == [AttentionTile, Neuron, Attribution, Evidence, Reason, Counterfactuals, Without, WordGeometry, Heads]
    assert one_of(parts, Reason).method == METHODS[0]
    told = [part for part in parts if isinstance(part, Attribution | Evidence)]
    assert [type(part) for part in told] == [Attribution, Evidence] * len(METHODS)
    assert [part.method for part in told] == [name for name in METHODS for _ in range(2)]
    assert (summary.complete, summary.notes) == (True, ())
    assert summary.run_s > 0


def test_one_run_of_the_explain_graph_serves_attention_neuron_heads_and_gradient_times_input(classifier: Classifier) -> None:
    asked = replace(EVERYTHING, methods=("gradient_x_input",), counterfactuals=False)
    _, parts, summary = explained(Explainer(classifier), asked)

    assert one_of(parts, Heads).effects is not None
    # And one of each golden text.
    assert summary.explained_rows == 1 + len(classifier.manifest.golden) + GatePlan(2, 4, 1).rows


def test_evidence_comes_from_the_served_graph_and_has_an_agreement(explainer: Explainer) -> None:
    _, parts, _ = explained(explainer, _text(methods=METHODS))

    for part in all_of(parts, Evidence):
        assert part.random_sets == 19
        assert part.verdict in Verdict
        # Sentences are compared with nothing.
        assert (part.agreement is None) is (part.method == "two_step_shapley")
        assert -1 <= (part.agreement or 0) <= 1


def test_integrated_gradients_sum_to_the_difference_to_the_baseline(explainer: Explainer) -> None:
    found = one_of(explained(explainer, _text(methods=METHODS[:1], steps=64, evidence=False, by_embedding=True))[1], Attribution)

    assert found.tokens is not None
    assert found.by_embedding is not None
    assert abs(found.residual) < 0.02
    assert (found.steps, found.steps_asked) == (64, 64)
    assert found.words.sum() + found.special_total == pytest.approx(found.tokens.sum())
    assert found.by_embedding.sum(axis=1) == pytest.approx(found.tokens)
    # The special tokens are the same in text and baseline.
    assert found.special_total == pytest.approx(0, abs=1e-6)
    assert np.abs(found.words).max() > 0.01


def test_occlusion_matches_the_served_graph_without_each_word(explainer: Explainer) -> None:
    header, parts, _ = explained(explainer, _text(methods=("occlusion",), evidence=False))

    row = explainer.classifier.tokenizer.encode(TEXT)
    whole = logit(explainer.classifier, row, header.target.label)
    for word, value in zip(header.encoded.words, one_of(parts, Attribution).words, strict=True):
        assert whole - logit(explainer.classifier, row, header.target.label, word.tokens) == pytest.approx(value, abs=1e-5)


def test_shapley_values_sum_to_the_effect_of_all_words_and_depend_only_on_the_seed(explainer: Explainer) -> None:
    def found(seed: int) -> Attribution:
        return one_of(explained(explainer, _text(methods=("shapley",), steps=8, seed=seed, evidence=False))[1], Attribution)

    assert found(1).residual == pytest.approx(0, abs=1e-6)
    assert found(1).words.tolist() == found(1).words.tolist() != found(2).words.tolist()
    assert (found(1).standard_errors > 0).all()
    assert (found(1).steps, found(1).steps_asked) == (8, 8)


def test_estimates_come_before_the_same_shapley_values(explainer: Explainer) -> None:
    asked = _text(methods=("shapley",), steps=20, evidence=False)

    _, parts, _ = explained(explainer, replace(asked, estimates=True))

    *estimates, last = all_of(parts, Attribution)
    assert [one.steps for one in estimates] == [0, 10]
    assert [one.left_s is not None for one in (*estimates, last)] == [True, True, False]
    assert all(one.residual == pytest.approx(0, abs=1e-6) for one in (*estimates, last))
    alone = one_of(explained(explainer, asked)[1], Attribution)
    assert last.words.tolist() == pytest.approx(alone.words.tolist(), abs=1e-5)


def test_the_first_estimate_is_what_a_word_does_to_the_text_and_alone(explainer: Explainer) -> None:
    header, parts, _ = explained(explainer, _text(methods=("shapley",), steps=2, evidence=False, estimates=True))
    first, _ = all_of(parts, Attribution)

    classifier, encoded = explainer.classifier, header.encoded
    row = Row(encoded.ids, encoded.type_ids, truncated=False)
    feeds = classifier.feeds([row])

    def value(*kept: int) -> float:
        feeds["attention_mask"][0] = [token.special or token.word in kept for token in encoded.tokens]
        return float(header.target.logit(classifier.session.run(feeds)[0, : len(classifier.manifest.labels)]))

    every = range(len(encoded.words))
    halves = [(value(*every) - value(*(set(every) - {word})) + value(word) - value()) / 2 for word in every]
    missing = value(*every) - value() - sum(halves)
    assert first.words.tolist() == pytest.approx([half + missing / len(halves) for half in halves], abs=1e-4)
    assert np.isinf(first.standard_errors).all()


def test_shapley_values_of_few_words_are_exact(explainer: Explainer) -> None:
    found = one_of(explained(explainer, ExplanationRequest("not good at all", methods=("shapley",)))[1], Attribution)

    assert found.standard_errors.tolist() == [0] * 4
    assert (found.steps, found.steps_asked) == (0, 0)


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        (ExplanationRequest("the film was not good at all and it was bad . but i liked the end and it was not bad at all"), 12),
        (ExplanationRequest("the film was good and i liked it at the end of it all", "it was not bad at all but i liked not the end"), 14),
    ],
    ids=["sentences", "pair"],
)
def test_a_sentences_words_share_what_the_text_with_and_without_it_does(
    explainer: Explainer, asked: ExplanationRequest, first: int
) -> None:
    header, found, _ = explained(explainer, replace(asked, methods=("two_step_shapley",), evidence=False))

    classifier = explainer.classifier
    encoded = header.encoded

    def value(*kept: range) -> float:
        """The served logit of a text that has the tokens of these words and the special ones only."""
        places = [place for place, token in enumerate(encoded.tokens) if token.special or any(token.word in words for words in kept)]
        types = None if encoded.type_ids is None else [encoded.type_ids[place] for place in places]
        return logit(classifier, Row([encoded.ids[place] for place in places], types, truncated=False), header.target.label)

    values = one_of(found, Attribution)
    parts = (range(first), range(first, len(encoded.words)))
    for one, other in (parts, parts[::-1]):
        expected = (value(one) - value() + value(one, other) - value(other)) / 2
        assert values.words[list(one)].sum() == pytest.approx(expected, abs=1e-4)
    assert values.residual == pytest.approx(0, abs=1e-6)


LONG = " ".join(f"{word} was bad ." for word in ("good", "bad", "end", "not", "film", "all", "it", "i"))


@pytest.fixture
def short_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model reads few tokens: its sentences are valued, however short they are."""
    monkeypatch.setattr("sentiment.explain.methods.two_step.SENTENCE_WORDS_MIN", 2)


def test_no_part_of_a_pair_has_words_of_both_texts(explainer: Explainer) -> None:
    asked = ExplanationRequest("not bad", "it was good", methods=("two_step_shapley",), evidence=False)

    found = one_of(explained(explainer, asked)[1], Attribution)

    assert [one.words for one in found.sentences] == [range(2), range(2, 5)]


@pytest.mark.usefixtures("short_sentences")
def test_values_of_sentences_depend_only_on_the_seed(explainer: Explainer) -> None:
    def found(seed: int, steps: int = 0) -> Attribution:
        asked = ExplanationRequest(LONG, methods=("two_step_shapley",), steps=steps, seed=seed, evidence=False)
        return one_of(explained(explainer, asked)[1], Attribution)

    assert found(1).words.tolist() == found(1).words.tolist() != found(2).words.tolist()
    assert (found(1).steps, found(1).steps_asked, found(1, 40).steps, found(1, 40).steps_asked) == (32, 32, 40, 40)
    assert np.isfinite(found(1).standard_errors).all()


@pytest.mark.usefixtures("short_sentences")
def test_words_share_their_sentences_value_by_what_attention_carries(explainer: Explainer) -> None:
    header, parts, summary = explained(explainer, ExplanationRequest(LONG, methods=("two_step_shapley",), evidence=False, estimates=True))

    *estimates, found = all_of(parts, Attribution)
    assert [one.steps for one in estimates] == [0, 32]
    assert [*itertools.chain(*(one.words for one in found.sentences))] == [*range(len(header.encoded.words))]
    for one in found.sentences:
        own = found.words[list(one.words)]
        assert own.sum() == pytest.approx(one.value, abs=1e-6)
        assert (np.ptp(own) > 1e-6) == one.words_valued == (one.value > 0)
        assert found.standard_errors[list(one.words)] == pytest.approx(np.abs(own / one.value) * one.standard_error)
    assert estimates[-1].sentences == tuple(replace(one, words_valued=one.words_valued) for one in estimates[-1].sentences)
    assert [one.value for one in estimates[-1].sentences] == [one.value for one in found.sentences]
    assert summary.explained_rows == header.target.gradients


@pytest.mark.usefixtures("short_sentences")
def test_without_an_explain_graph_words_share_by_their_sentence_alone(bundle: Path) -> None:
    asked = [ExplanationRequest(LONG, label=label, methods=("two_step_shapley",), evidence=False) for label in ("negative", "positive")]

    found = [one_of(explained(_without_graph(bundle), one)[1], Attribution) for one in asked]

    assert [one.residual for one in found] == pytest.approx([0, 0], abs=1e-6)
    assert any(part.words_valued for one in found for part in one.sentences)


def test_a_counterfactual_is_true_on_the_served_graph(explainer: Explainer) -> None:
    header, parts, _ = explained(explainer, _text(attributions=False, counterfactuals=True, evidence=False))

    # Its seed is given, too.
    assert [type(part) for part in parts] == [Attribution, Counterfactuals]
    found = one_of(parts, Counterfactuals)
    assert found.keep.words is not None
    row = explainer.classifier.tokenizer.encode(TEXT)
    feeds = explainer.classifier.feeds([row])
    kept = [header.encoded.words[word] for word in found.keep.words]
    for index, token in enumerate(header.encoded.tokens):
        feeds["attention_mask"][0, index] = token.special or any(index in word.tokens for word in kept)
    assert int(explainer.classifier.session.run(feeds)[0].argmax()) == header.target.label == found.keep.label


def test_the_answer_without_words_is_that_of_the_served_model(explainer: Explainer) -> None:
    sets = ((3,), (11, 0, 5), tuple(range(13)), (3,))
    header, parts, summary = explained(explainer, _text(attributions=False, without=sets))

    classifier = explainer.classifier
    found = all_of(parts, Without)
    assert parts == found
    assert [part.words for part in found] == [tuple(sorted(words)) for words in sets]
    for part in found:
        feeds = classifier.feeds([classifier.tokenizer.encode(TEXT)])
        for index, token in enumerate(header.encoded.tokens):
            feeds["attention_mask"][0, index] = token.special or token.word not in part.words
        scored = classifier.score(classifier.session.run(feeds)[0].tolist())
        assert classifier.manifest.labels[part.label] == scored.label
        assert part.probability == pytest.approx(scored.score, abs=1e-5)
    # The whole text, and three sets that differ.
    assert (summary.complete, summary.served_rows) == (True, 4)


def test_the_answer_without_words_is_calibrated(classifier: Classifier) -> None:
    calibration = classifier.manifest.calibration
    plain, hot = (
        one_of(explained(_changed(classifier, calibration=told), _text(attributions=False, without=((3,),)))[1], Without)
        for told in (calibration, calibration.model_copy(update={"temperature": 4 * calibration.temperature}))
    )

    odds = [part.probability / (1 - part.probability) for part in (plain, hot)]
    assert odds[0] == pytest.approx(odds[1] ** 4)
    assert odds[0] != pytest.approx(odds[1])


def test_attributions_are_returned_only_if_requested(explainer: Explainer) -> None:
    _, parts, _ = explained(explainer, _text(attributions=False, attention=AttentionRequest(aggregation=Aggregation.ROLLOUT)))

    assert [type(part) for part in parts] == [AttentionTile]


def test_a_pair_is_explained_with_the_words_of_both_texts(explainer: Explainer) -> None:
    header, parts, _ = explained(explainer, ExplanationRequest("good film", "bad end", evidence=False, heads=True))

    assert [word.pair for word in header.encoded.words] == [False, False, True, True]
    assert len(one_of(parts, Attribution).words) == 4
    assert header.texts == ("good film", "bad end")


def test_a_truncated_text_is_explained_up_to_its_last_read_word(explainer: Explainer) -> None:
    header, parts, _ = explained(explainer, ExplanationRequest(TEXT * 20, methods=("occlusion",), evidence=False))

    assert header.encoded.truncated
    assert len(header.encoded.tokens) == MAX_TOKENS
    assert len(one_of(parts, Attribution).words) == len(header.encoded.words)


def test_without_an_explain_graph_only_erasure_methods_are_available(bundle: Path) -> None:
    explainer = _without_graph(bundle)

    assert explainer.methods == ERASURE_METHODS
    header, parts, summary = explained(explainer, _text(counterfactuals=True, without=((0,),)))
    assert (header.agrees, header.logit_error) == (True, None)
    assert [type(part) for part in parts] == [Attribution, Evidence, Reason, Counterfactuals, Without]
    assert one_of(parts, Evidence).agreement is None
    assert summary.complete
    assert (explainer.failure, summary.explained_rows) == ("", 0)


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (_text(methods=("integrated_gradients",)), "integrated_gradients needs"),
        (_text(attention=AttentionRequest()), "attention needs"),
        (_text(heads=True, neuron=NeuronRequest()), "neuron, heads need"),
    ],
)
def test_parts_that_need_the_explain_graph_are_unsupported_without_it(bundle: Path, asked: ExplanationRequest, what: str) -> None:
    with pytest.raises(Unsupported, match=f"{what} an explain graph; bundle tiny/1 has none"):
        next(_without_graph(bundle).explain(asked))


def test_a_text_that_is_too_long_for_the_explain_graph_is_explained_by_erasing_words(
    classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentiment.explain.engine.explainer.WEIGHTS_MAX", 2 * 4 * 4**2)  # four tokens, with 2 layers of 4 heads
    explainer = Explainer(classifier)

    header, parts, summary = explained(explainer, _text(counterfactuals=True))

    assert (one_of(parts, Attribution).method, header.logit_error, summary.explained_rows) == ("two_step_shapley", None, 0)
    named, unnamed = (explainer.predict(_text(methods=methods)).work_s for methods in (("two_step_shapley",), ()))
    assert unnamed == pytest.approx(named)
    with pytest.raises(Unsupported, match=r"attention needs an explain graph; that of bundle tiny/1 reads 4 tokens, this text has \d+$"):
        next(explainer.explain(_text(attention=AttentionRequest())))


def _attention(**chosen: object) -> ExplanationRequest:
    return _text(attention=replace(AttentionRequest(), **chosen))  # type: ignore[arg-type]  # wrong ones are asked for


@pytest.mark.parametrize(
    ("asked", "field", "message"),
    [
        (_text(label="meh"), "label", "is 'meh'; the model's labels are negative, positive"),
        (_text(methods=("occlusion", "magic")), r"options.methods\[1\]", "is 'magic'; the methods are integrated_gradients, "),
        (_text(methods=("shapley", "shapley")), r"options.methods\[1\]", r"is shapley, the same as methods\[0\]"),
        (_text(steps=257), "options.attribution.steps", "is 257; it must be from 0 .* to 256"),
        (_text(steps=-1), "options.attribution.steps", "is -1"),
        (_attention(layers=(0, 99)), r"options.attention.layers\[1\]", "is 99; the layers are 0 to 1"),
        (_attention(layers=(1, 1)), r"options.attention.layers\[1\]", r"is 1, the same as layers\[0\]"),
        (_attention(heads=(-1,)), r"options.attention.heads\[0\]", "is -1; the heads are 0 to 3"),
        (_attention(heads=(2, 0, 2)), r"options.attention.heads\[2\]", r"is 2, the same as heads\[0\]"),
        (
            _attention(layers=(0,), aggregation=Aggregation.ROLLOUT),
            "options.attention.layers",
            "has 1 entries; it must be empty for a rollout",
        ),
        (_attention(top_p=0.0), "options.attention.top_p", "is 0; it must be above 0 and at most 1"),
        (_attention(top_p=float("nan")), "options.attention.top_p", "is nan"),
        (_text(neuron=NeuronRequest(layer=2)), "options.neuron.layer", "is 2; the layers are 0 to 1"),
        (_text(neuron=NeuronRequest(head=4)), "options.neuron.head", "is 4; the heads are 0 to 3"),
        (_text(neuron=NeuronRequest(token=99)), "options.neuron.token", "is 99; the tokens are 0 to "),
        (_text(without=((0,), (1,), (13,))), r"options.without\[2\].words\[0\]", "is 13; the words are 0 to 12"),
        (_text(without=((0, -1),)), r"options.without\[0\].words\[1\]", "is -1; the words are 0 to 12"),
        (_text(without=((0,), (4, 2, 4))), r"options.without\[1\].words\[2\]", r"is 4, the same as words\[0\]"),
        (_text(without=((0,), ())), r"options.without\[1\].words", r"has 0 entries; it must have from 1 to 13 "),
        (_text(without=((0,) * 14,)), r"options.without\[0\].words", "has 14 entries; it must have from 1 to 13"),
        (replace(EVERYTHING, bytes_max=1000), "options.bytes_max", "is 1000; this explanation can take up to"),
    ],
)
def test_an_invalid_request_is_refused_with_its_field_before_the_header(
    plain: Explainer, asked: ExplanationRequest, field: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=f"{field}: {message}"):
        next(plain.explain(asked))


@pytest.mark.parametrize(
    ("asked", "field", "message"),
    [
        (_text(label="meh"), "label", "is 'meh'"),
        (_text(methods=("two_step_shapley",) * 8000), "options.methods", "has 8000 entries; the methods are integrated_gradients, "),
        (_text(steps=257), "options.attribution.steps", "is 257"),
        (_attention(layers=(0,) * 130_000), "options.attention.layers", "has 130000 entries; the limit is 128"),
        (_attention(heads=(1, 1)), r"options.attention.heads\[1\]", r"is 1, the same as heads\[0\]"),
    ],
)
def test_an_invalid_request_is_refused_before_its_text_is_tokenized(
    plain: Explainer, monkeypatch: pytest.MonkeyPatch, asked: ExplanationRequest, field: str, message: str
) -> None:
    monkeypatch.setattr(plain.classifier.tokenizer, "encode", lambda *_: pytest.fail("the text was tokenized"))

    with pytest.raises(InvalidInput, match=f"{field}: {message}"):
        plain.predict(asked)


@pytest.mark.parametrize("text", [TEXT, "😍 " * 100, "didn't, won't - (don't)!"])
def test_the_messages_of_an_explanation_stay_within_its_bound(explainer: Explainer, text: str) -> None:
    graph, manifest = explainer.load(), explainer.classifier.manifest
    assert graph is not None
    messages = Messages(pb.ModelId(name=manifest.name, version=1, digest="d" * 64), manifest.labels)
    header, *parts = explainer.explain(replace(EVERYTHING, text=text))
    assert isinstance(header, Header)

    sizes = Sizes(graph.session.layers, graph.session.heads, graph.width, graph.golden.spellings)
    taken = sum(message.ByteSize() + 5 for part in (header, *parts) for message in messages.of(part))

    most = bytes_most(EVERYTHING, header.encoded, manifest.labels, sizes)
    assert taken <= most
    with pytest.raises(InvalidInput, match=f"can take up to {most}"):
        next(explainer.explain(replace(EVERYTHING, text=text, bytes_max=taken - 1)))


def test_a_stopped_run_ends_with_an_error(explainer: Explainer) -> None:
    explainer.load()
    stop = Stop()
    stop.ask()

    with pytest.raises(Exception, match="terminate"):
        list(explainer.explain(ExplanationRequest(TEXT), stop=stop))
