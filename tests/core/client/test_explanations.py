"""Explanations as the clients return them, and their exports for other tools."""

import html
import json
import math
import pickle
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from sentiment.client import AttentionOptions, CallFailed, ExplainOptions, Explanation, NeuronOptions, requests
from sentiment.client.explained import explained_of, explanation_of
from sentiment.client.explanation_reader import Reader, messages_of
from sentiment.client.explanations import Counterfactual, span_of, with_notes
from sentiment.explain.encoding import Encoding
from sentiment.v1 import sentiment_pb2 as pb
from tests.core.client.explained import (
    HEADS,
    LAYERS,
    READ,
    TEXT,
    TOKENS,
    VALUES,
    attention,
    attribution,
    decoded,
    evidence,
    geometry,
    header,
    messages,
    span,
    summary,
    weights,
)

ALL = [pb.ExplainResponse(attribution=attribution()), pb.ExplainResponse(evidence=evidence())]


def explained(*parts: pb.ExplainResponse) -> Explanation:
    return explanation_of(messages(*parts), TEXT)


def test_the_header_has_words_with_their_offsets_in_three_units() -> None:
    found = explained()

    assert (found.label, found.score, dict(found.scores)) == ("positive", 0.875, {"negative": 0.125, "positive": 0.875})
    assert (found.explained, found.logit, found.logit_error, found.labels_agree, found.truncated) == ("positive", 1.25, None, True, True)
    assert (found.precision, found.provider, found.explain_provider) == ("fp32", "CPUExecutionProvider", "CUDAExecutionProvider")
    assert tuple(word.text for word in found.words) == READ
    for word in found.words:
        start, end = word.span.utf8
        assert TEXT.encode()[start:end].decode() == word.text
        start, end = word.span.utf16
        assert TEXT.encode("utf-16-le")[2 * start : 2 * end].decode("utf-16-le") == word.text
    assert [part.text for part in found.unseen] == [", rest"]
    assert [(token.piece, token.word, token.span is None) for token in found.tokens][:2] == [("[CLS]", None, True), ("café", 0, False)]
    assert (found.summary.complete, found.summary.notes, found.summary.run_s) == (False, ("shapley drew 10 of 20 orders",), 1.5)


def test_an_explanation_names_the_label_that_it_is_against() -> None:
    part = header()
    part.against = "negative"

    found = explanation_of([pb.ExplainResponse(header=part), summary()], TEXT)

    assert (explained().against, explained().to_json()["against"]) == (None, None)
    assert (found.against, found.to_json()["against"]) == ("negative", "negative")
    assert "explained='positive', against='negative', words" in repr(found)
    assert "against" not in repr(explained())


def test_against_is_sent_and_cannot_be_the_label_or_beside_label_alone() -> None:
    options = ExplainOptions(against="neutral")

    sent = requests.explanation("good", requests.Options(), "positive", options)

    assert (sent.label, sent.options.against, sent.options.label_alone) == ("positive", "neutral", False)
    assert ExplainOptions(label_alone=True).message().label_alone
    with pytest.raises(ValueError, match=r"options\.against must be another label than label, got 'neutral' for both"):
        requests.explanation("good", requests.Options(), "neutral", options)
    with pytest.raises(ValueError, match="against must be empty with label_alone, got 'neutral'"):
        ExplainOptions(against="neutral", label_alone=True)


def test_an_attribution_has_read_only_arrays() -> None:
    found = explained(*ALL).attributions["shapley"]

    assert found.words.dtype == np.float32
    assert found.words.tolist() == list(VALUES)
    assert math.isnan(found.standard_errors[0])
    assert found.standard_errors[1:].tolist() == [0.125] * 3
    assert (found.tokens, found.by_embedding, found.residual) == (None, None, None)
    assert (found.special_total, found.unknown_total, found.unseen_total, found.steps, found.steps_asked) == (0.5, 0.25, 0, 10, 20)
    with pytest.raises(ValueError, match="read-only"):
        found.words[0] = 1


def test_values_by_embedding_have_three_columns() -> None:
    part = attribution("integrated_gradients")
    part.tokens.extend([1] * TOKENS)
    for name, share in (("token", 0.5), ("segment", 0.125), ("position", 0.375)):
        getattr(part, f"{name}_embedding").extend([share] * TOKENS)
    part.completeness_residual = 0.0

    found = explained(pb.ExplainResponse(attribution=part)).attributions["integrated_gradients"]

    assert found.by_embedding is not None
    assert found.by_embedding.tolist() == [[0.5, 0.125, 0.375]] * TOKENS
    assert found.residual == 0


@pytest.mark.parametrize("bytes_max", [60_000, 40, 14])
@pytest.mark.parametrize("encoding", list(Encoding))
def test_maps_are_assembled_from_tiles_of_any_size(encoding: Encoding, bytes_max: int) -> None:
    found = explained(*attention(encoding, bytes_max)).attention

    assert found is not None
    assert (found.aggregation, found.encoding) == ("maps", encoding.name.lower())
    assert sorted(found.maps) == list(np.ndindex(LAYERS, HEADS))
    for (layer, head), got in found.maps.items():
        assert np.array_equal(got, decoded(layer, head, encoding))
        assert not got.flags.writeable
        exact = weights(layer, head)
        assert np.abs(np.where(got > 0, got - exact, 0)).max() <= found.error_max
        missing = exact.sum(1) - got.sum(1)
        assert np.allclose(found.dropped[layer, head], missing if encoding == Encoding.TOP_P else 0, atol=0.01)


def test_a_map_with_a_missing_or_repeated_tile_is_left_out_unless_the_explanation_is_complete() -> None:
    parts = list(attention(Encoding.FP32, 48))[1:]

    for incomplete in (parts, [*attention(Encoding.FP32, 48), parts[0]]):
        found = explained(*incomplete).attention
        assert found is not None
        assert sorted(found.maps) == [(0, 1), (1, 0), (1, 1)]
    end = summary()
    end.summary.complete = True
    with pytest.raises(CallFailed, match="the tiles of layer 0, head 0 do not cover the map exactly once"):
        explanation_of([*messages(*parts)[:-1], end], TEXT)


def test_tiles_larger_than_the_text_are_refused_before_they_take_memory() -> None:
    tile = next(attention(Encoding.U8))
    tile.tile.rows = 65_535

    with pytest.raises(
        CallFailed, match="INTERNAL: cannot read the explanation: a tile has 65535 rows and 6 columns, but the text has 6 tokens"
    ):
        explained(tile)


def test_an_explanation_without_summary_is_unavailable() -> None:
    with pytest.raises(CallFailed, match="UNAVAILABLE: the explanation ended before its summary"):
        explanation_of(messages(*ALL)[:-1], TEXT)


@pytest.mark.parametrize("parts", [[*ALL, summary()], [pb.ExplainResponse(header=header())] * 2])
def test_an_explanation_has_one_header_in_its_first_message(parts: list[pb.ExplainResponse]) -> None:
    with pytest.raises(CallFailed, match="the first message must be the header") as caught:
        explanation_of(parts, TEXT)
    assert caught.value.code is grpc.StatusCode.INTERNAL


def test_an_attribution_with_another_number_of_words_is_an_error() -> None:
    part = attribution()
    del part.words[0]

    with pytest.raises(CallFailed, match="INTERNAL: cannot read the explanation"):
        explained(pb.ExplainResponse(attribution=part))


def test_a_neuron_view_is_assembled_from_its_parts() -> None:
    views = []
    for start, keys in ((0, 4), (4, 2)):
        view = pb.NeuronView(layer=1, head=0, token=2, scale=0.5, query=[1, 2], key_start=start, keys=keys, max_abs_error=1e-7)
        for name in ("key", "product", "dot", "scaled", "bias", "score", "softmax", "attention"):
            width = 2 if name in ("key", "product") else 1
            getattr(view, name).extend(range(start * width, (start + keys) * width))
        views.append(pb.ExplainResponse(neuron=view))

    found = explained(*views[::-1]).neuron

    assert found is not None
    assert found.key.tolist() == [[2 * key, 2 * key + 1] for key in range(6)]
    assert found.attention.tolist() == list(range(6))
    with pytest.raises(CallFailed, match="parts of the neuron view are missing"):
        explained(views[0], *views[:1])


def test_geometry_has_the_points_and_the_closest_golden_words_of_each_layer() -> None:
    embeddings, first, last = explained(*geometry()).geometry

    assert [part.layer for part in (embeddings, first, last)] == [0, 1, 2]
    assert last.points.tolist() == [[2, 3], [4, 5], [6, 7], [8, 9]]
    assert last.golden_points.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert (last.golden, last.variance.tolist()) == (("good", "bad", "movie"), [0.5, 0.125])
    assert (embeddings.nearest_words(3), last.nearest_words(3)) == ((("good", 1.0), ("bad", -0.25)), (("movie", 0.75), ("bad", -0.25)))
    assert (last.nearest.dtype, last.nearest.shape, last.cosines.shape) == (np.int32, (len(READ), 2), (len(READ), 2))
    for array in (last.points, last.golden_points, last.variance, last.nearest, last.cosines):
        assert not array.flags.writeable
    assert pickle.loads(pickle.dumps(last)).nearest_words(3) == last.nearest_words(3)
    told = json.dumps(explained(*geometry()).to_json()["geometry"][2]["nearest"])
    assert told == "[[2, 1], [2, 1], [2, 1], [2, 1]]"
    assert explained().geometry == explained(*list(geometry())[:2]).geometry == ()


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("points", [0.0] * 6, "cannot reshape array of size 6"),
        ("nearest", [0, 1] * 3 + [0, 3], "a nearest word of layer 0 is not one of the 3 golden words"),
        ("nearest", [0] * 7, "cannot reshape array of size 7"),
        ("cosines", [0.5] * 4, "cannot reshape array of size 4"),
        ("variance", [0.5], "cannot reshape array of size 1"),
    ],
)
def test_geometry_of_other_words_than_the_headers_is_an_error(field: str, values: list[float], message: str) -> None:
    part = next(geometry())
    part.geometry.layers = 0
    del getattr(part.geometry, field)[:]
    getattr(part.geometry, field).extend(values)

    with pytest.raises(CallFailed, match=f"INTERNAL: cannot read the explanation: {message}"):
        explained(part)


def test_geometry_of_a_text_without_words_has_empty_arrays() -> None:
    start = header()
    del start.words[:], start.tokens[:], start.unseen[:]
    part = next(geometry())
    part.geometry.layers = 0
    for field in ("points", "nearest", "cosines"):
        part.geometry.ClearField(field)

    (found,) = explanation_of([pb.ExplainResponse(header=start), part, summary()], "").geometry

    assert (found.points.shape, found.nearest.shape, found.golden_points.shape) == ((0, 2), (0, 0), (3, 2))


def test_classify_returns_the_same_explanation_in_one_message() -> None:
    response = pb.ClassifyResponse()
    response.explanation.header.CopyFrom(header())
    response.explanation.attributions.append(attribution())
    response.explanation.evidence.append(evidence())
    response.explanation.tiles.extend(message.tile for message in attention(Encoding.U8))
    response.explanation.geometry.extend(message.geometry for message in geometry())
    response.explanation.summary.CopyFrom(summary().summary)

    found = explained_of(response, pb.ClassifyRequest(text=TEXT)).explanation

    assert found is not None
    assert found.to_json() == explained(*ALL, *attention(Encoding.U8), *geometry()).to_json()
    assert explained_of(pb.ClassifyResponse(), pb.ClassifyRequest(text=TEXT)).explanation is None


def test_a_counterfactual_is_a_short_line() -> None:
    found = Counterfactual("flip", True, (6,), "positive", 0.98148, True, 1, False, 3)

    assert repr(found) == "Counterfactual('flip', words=(6,), label='positive', score=0.9815, minimal=True)"
    assert repr(replace(found, found=False)) == "Counterfactual('flip', found=False)"


# options


def test_options_become_the_fields_of_their_names() -> None:
    asked = ExplainOptions(
        methods=["occlusion"],
        steps=7,
        attention=AttentionOptions(layers=[1], encoding="top_p", aggregation="rollout_gradient", top_p=0.5),
        neuron=NeuronOptions(1, 2, 3),
        counterfactuals=True,
        evidence=False,
        bytes_max=9,
        without=((3,), [1, 2]),
        geometry=True,
    ).message()

    assert list(asked.methods) == ["occlusion"]
    assert asked.attribution.steps == 7
    assert asked.HasField("evidence")
    assert not asked.evidence
    assert (asked.attention.encoding, asked.attention.aggregation) == (
        pb.ATTENTION_ENCODING_TOP_P,
        pb.ATTENTION_AGGREGATION_ROLLOUT_GRADIENT,
    )
    assert (list(asked.attention.layers), list(asked.attention.heads), asked.attention.top_p) == ([1], [], 0.5)
    assert [list(one.words) for one in asked.without] == [[3], [1, 2]]
    assert (asked.neuron.layer, asked.neuron.head, asked.neuron.token) == (1, 2, 3)
    assert asked.geometry
    nothing = ExplainOptions().message()
    assert not (nothing.HasField("attention") or nothing.HasField("attribution") or nothing.HasField("neuron") or nothing.geometry)
    assert ExplainOptions(attribution=True).message().HasField("attribution")


def test_every_encoding_and_aggregation_of_the_proto_has_a_name() -> None:
    from sentiment.client.explain_options import AGGREGATIONS, ENCODINGS

    assert {0, *ENCODINGS.values()} == set(pb.AttentionEncoding.values())
    assert set(AGGREGATIONS.values()) == set(pb.AttentionAggregation.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AttentionOptions(encoding="u16"), "encoding must be one of u8, fp16, fp32, top_p, got 'u16'"),
        (lambda: AttentionOptions(aggregation=""), "aggregation must be one of"),
        (lambda: ExplainOptions(methods="occlusion"), "methods must be a sequence of str, got 'occlusion'"),
        (lambda: AttentionOptions(layers=5), "layers must be a sequence of int, got 5"),
        (lambda: AttentionOptions(heads=(0, 2**40)), "heads must have integers from .* got 1099511627776"),
        *((lambda sets=sets: ExplainOptions(without=sets), "without") for sets in ("12", (3,), ("3",), ((1, "2"),), (3.0,), ((2**31,),))),
    ],
)
def test_invalid_options_are_refused_where_they_are_created(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_an_explanation_from_a_server_that_ignores_the_target_is_refused() -> None:
    with pytest.raises(CallFailed, match="the server explains no targets") as caught:
        Reader(TEXT, target="good").take(messages()[0])
    assert caught.value.code is grpc.StatusCode.UNIMPLEMENTED

    told, reader = messages(), Reader(TEXT, target="good")
    told[0].header.mention.CopyFrom(span(11, 15))
    for message in told:
        reader.take(message)
    found = reader.explanation()
    assert (found.target, found.mention, found.to_json()["target"]) == ("good", span_of(span(11, 15)), "good")
    assert (explained().target, explained().mention) == (None, None)


# pages


def test_an_explanation_says_itself_in_a_sentence() -> None:
    reason = pb.ExplainResponse(reason=pb.Reason(text="Positive, mostly because of “good”.", method="shapley"))
    whole = pb.Explanation(header=header(), reason=reason.reason, summary=summary().summary)

    said = [explanation_of(told, TEXT) for told in (messages(reason), messages_of(whole), messages())]

    assert [one.reason for one in said] == [reason.reason.text, reason.reason.text, ""]
    assert said[0].to_json()["reason"] == reason.reason.text


def test_an_explanation_keeps_its_source_messages() -> None:
    sent = messages(*ALL, *attention(Encoding.U8))

    found = explanation_of(sent, TEXT)

    assert [pb.ExplainResponse.FromString(message) for message in found.messages] == sent
    assert "messages" not in repr(found)


def test_notes_are_added_to_the_explanation_and_to_its_messages() -> None:
    end = summary()
    end.summary.ClearField("notes")
    end.summary.complete = True
    whole = explanation_of([pb.ExplainResponse(header=header()), end], TEXT)

    found, shortened = with_notes(explained(*ALL), ["no room"]), with_notes(whole, ["no room"])

    assert explanation_of(map(pb.ExplainResponse.FromString, found.messages), TEXT).to_json() == found.to_json()
    assert found.summary.notes == ("shapley drew 10 of 20 orders", "no room")
    assert not shortened.summary.complete
    assert not pb.ExplainResponse.FromString(shortened.messages[-1]).summary.complete


def test_a_page_contains_the_explanation_and_a_notebook_shows_it_in_a_frame() -> None:
    found = explained(*ALL)

    page, frame = found.to_html(), found._repr_html_()

    assert page.startswith("<!doctype html>")
    assert '{"header": {' in page
    assert frame.startswith("<iframe sandbox=")
    assert html.unescape(frame.split('srcdoc="')[1].split('"')[0]) == page


def test_a_page_too_large_for_a_notebook_is_shown_without_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    found = explained(*ALL, *attention(Encoding.U8))
    monkeypatch.setattr("sentiment.client.explanations.NOTEBOOK_BYTES_MAX", 1_000)

    page = html.unescape(found._repr_html_())

    assert '{"tile": ' in found.to_html()
    assert '{"tile": ' not in page
    assert '{"attribution": ' in page
    assert "attention is left out here: the page would have 0 MB, and the limit in notebooks is 0 MB; use to_html() to see it" in page
    assert found.attention is not None


# exports


def test_json_is_strict_and_has_every_field() -> None:
    found = explained(*ALL, *attention(Encoding.U8))

    told = json.loads(json.dumps(found.to_json(), allow_nan=False))

    assert set(told) == set(Explanation.__dataclass_fields__) - {"evidence", "messages"}
    (shapley,) = told["attributions"]
    assert shapley["words"][0] == {"word": 0, "text": "café", "value": 0.25, "standard_error": None}
    assert shapley["evidence"]["verdict"] == "BETTER_THAN_RANDOM"
    assert shapley["evidence"]["agreement"] is None
    assert [(part["layer"], part["head"]) for part in told["attention"]["maps"]] == list(np.ndindex(LAYERS, HEADS))
    assert np.allclose(told["attention"]["maps"][3]["weights"], decoded(1, 1, Encoding.U8), rtol=1e-6)
    assert told["words"][0]["span"] == {"code_points": [0, 4], "utf16": [0, 4], "utf8": [0, 5]}


def drawn(html: str) -> list[dict[str, Any]]:
    """The parameters in bertviz's page."""
    parameters, _ = json.JSONDecoder().raw_decode(html, html.index('{"attention": ['))
    return parameters["attention"]


@pytest.mark.parametrize("view", ["head_view", "model_view"])
def test_bertviz_shows_the_weights_of_the_explanation(view: str) -> None:
    """The real package, which is in the dev extra."""
    import bertviz

    found = explained(*attention(Encoding.FP32))

    html = getattr(bertviz, view)(**found.to_bertviz(), html_action="return").data

    (shown,) = drawn(html)
    assert shown["left_text"] == shown["right_text"] == ["[CLS]", *READ, "[SEP]"]
    assert np.array_equal(np.array(shown["attn"], np.float32), [[weights(layer, head) for head in range(HEADS)] for layer in range(LAYERS)])


def test_bertviz_separates_the_texts_of_a_pair() -> None:
    import bertviz

    start = header()
    for token in start.tokens[3:]:
        token.pair = True
    found = explanation_of([pb.ExplainResponse(header=start), *attention(Encoding.U8), summary()], TEXT, TEXT)

    arguments = found.to_bertviz()
    html = bertviz.head_view(**arguments, html_action="return").data

    assert arguments["sentence_b_start"] == 3
    within = drawn(html)[1]
    assert (within["name"], within["left_text"]) == ("Sentence A -> Sentence A", ["[CLS]", *READ[:2]])


def test_bertviz_needs_the_maps_of_all_layers_and_heads() -> None:
    with pytest.raises(ValueError, match="no attention maps"):
        explained().to_bertviz()
    with pytest.raises(ValueError, match="1 of 4 are missing; the first is layer 0, head 1"):
        explained(*[part for part in attention(Encoding.U8) if (part.tile.layer, part.tile.head) != (0, 1)]).to_bertviz()
    with pytest.raises(ValueError, match="maps or words, got head_mean"):
        explained(*attention(Encoding.U8, aggregation=3)).to_bertviz()


def test_a_neat_vision_sample_has_the_form_that_its_reader_expects() -> None:
    """cbaziotis/neat-vision 2018: Sentence.vue colours by weights "always" summing to 1, PredClf.vue takes the softmax of posterior."""
    found = explained(*ALL).to_neat_vision("sample_99", label="negative")

    assert list(found) == ["text", "label", "prediction", "posterior", "attention", "id"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["text"] == list(READ)
    assert (found["label"], found["prediction"], found["id"]) == (0, 1, "sample_99")
    assert len(found["attention"]) == len(found["text"])
    assert found["attention"] == pytest.approx([abs(value) / 4.75 for value in VALUES])
    shown = np.exp(found["posterior"]) / np.exp(found["posterior"]).sum()
    assert shown.tolist() == pytest.approx([0.125, 0.875])


def test_a_neat_vision_sample_of_words_without_value_has_zeros() -> None:
    part = attribution(values=(0.0,) * 4)

    assert explained(pb.ExplainResponse(attribution=part)).to_neat_vision("x")["attention"] == [0.0] * 4


def test_a_neat_vision_sample_needs_an_existing_attribution_and_label() -> None:
    with pytest.raises(ValueError, match="no attribution by any method; it has none"):
        explained().to_neat_vision("x")
    with pytest.raises(ValueError, match="no attribution by occlusion; it has shapley"):
        explained(*ALL).to_neat_vision("x", method="occlusion")
    with pytest.raises(ValueError, match=r"label must be one of .*, got 'meh'"):
        explained(*ALL).to_neat_vision("x", label="meh")
