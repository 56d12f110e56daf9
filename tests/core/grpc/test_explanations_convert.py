"""What a request asks to be explained, and an explanation's parts as messages."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sentiment.call.explain_request import explanation_request, in_classify
from sentiment.call.explain_response import Messages, add
from sentiment.errors import InvalidInput
from sentiment.explain.encoding import Encoding, decode, tiles
from sentiment.explain.methods.counterfactuals import Counterfactual
from sentiment.explain.methods.evidence import Evidence, Verdict
from sentiment.explain.methods.geometry import locate, plane_of
from sentiment.explain.methods.heads import PATTERNS, HeadEffects, HeadPattern, HeadPatterns
from sentiment.explain.methods.neuron import neuron_view
from sentiment.explain.methods.target import Target
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
    Part,
    Summary,
    Without,
    WordGeometry,
)
from sentiment.model.bundle import GraphSpec
from sentiment.model.scores import Scored
from sentiment.model.words import Encoded, Token, Word
from sentiment.v1 import sentiment_pb2 as pb

LIMIT = 2**20
MESSAGE_BYTES_MAX = 2**16
LABELS = ("negative", "positive")
# The emoji is one code point, two UTF-16 units and four bytes; each accented letter one, one and two.
TEXTS = ("a na\u00efve \U0001f600 film", "tr\u00e8s bon")
WORDS = ((0, 0, 1), (0, 2, 7), (0, 8, 9), (0, 10, 14), (1, 0, 4), (1, 5, 8))
CLS = Token("[CLS]", 0, 0, -1, special=True, unknown=False, pair=False)


def _encoded() -> Encoded:
    """Each word is one token, but the second, which is two."""
    tokens, words = [CLS], []
    for index, (source, start, end) in enumerate(WORDS):
        places = [(start, end)] if index != 1 else [(start, start + 2), (start + 2, end)]
        words.append(Word(start, end, len(tokens), len(tokens) + len(places), bool(source)))
        tokens += [Token(TEXTS[source][a:b], a, b, index, special=False, unknown=index == 2, pair=bool(source)) for a, b in places]
    return Encoded(tuple(range(len(tokens))), None, tuple(tokens), tuple(words), truncated=True)


GRAPH = GraphSpec(
    file="int8.onnx",
    precision="int8",
    providers=("CPUExecutionProvider",),
    inputs=("input_ids",),
    outputs=("logits",),
    invariance=0,
    tolerance=1,
)
HEADER = Header(
    TEXTS,
    _encoded(),
    Scored("positive", 0.75, (0.25, 0.75), abstain=False),
    Target(0),
    -1.5,
    True,
    None,
    ((1, 8, 8), (0, 10, 14)),
    GRAPH,
    "CPUExecutionProvider",
    "",
)
ATTRIBUTION = Attribution(
    "shapley", np.arange(6.0), None, None, np.array([0, math.inf, 0.25, math.nan, 0, 0]), math.nan, 0.5, -0.5, steps=3, steps_asked=20
)
EVIDENCE = Evidence("shapley", Verdict.FLAT, 0.5, 0.25, 19, 0.05, -1.0, None, 2, 1, 0.125, 0.25, 0.5)


def _messages(*parts: Part) -> list[pb.ExplainResponse]:
    messages = Messages(pb.ModelId(name="tiny", version=1, digest="ab"), LABELS)
    found = [message for part in parts for message in messages.of(part)]
    assert all(message.ByteSize() <= MESSAGE_BYTES_MAX for message in found)
    return found


def _units(span: pb.Span) -> list[tuple[int, int]]:
    return [(span.code_point_start, span.code_point_end), (span.utf16_start, span.utf16_end), (span.byte_start, span.byte_end)]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, {}),
        ({"evidence": False}, {"evidence": False}),
        ({"attention": {}}, {"attributions": False, "attention": AttentionRequest()}),
        ({"heads": True}, {"attributions": False, "heads": True}),
        ({"neuron": {"token": 3}}, {"attributions": False, "neuron": NeuronRequest(token=3)}),
        ({"geometry": True}, {"attributions": False, "geometry": True}),
        ({"heads": True, "methods": ["occlusion"]}, {"heads": True, "methods": ("occlusion",)}),
        ({"heads": True, "counterfactuals": True}, {"heads": True, "counterfactuals": True}),
        ({"heads": True, "attribution": {"steps": 5, "by_embedding": True}}, {"heads": True, "steps": 5, "by_embedding": True}),
        ({"without": [{"words": [3]}, {"words": [2, 1]}]}, {"attributions": False, "without": ((3,), (2, 1))}),
        ({"without": [{"words": [3]}], "methods": ["occlusion"]}, {"without": ((3,),), "methods": ("occlusion",)}),
        ({"without": [{"words": [0]}] * 64}, {"attributions": False, "without": ((0,),) * 64}),
        ({"bytes_max": 77}, {"bytes_max": 77}),
        ({"bytes_max": LIMIT}, {"bytes_max": LIMIT}),
        (
            {"attention": {"layers": [1], "heads": [2, 0], "encoding": "ATTENTION_ENCODING_TOP_P", "aggregation": 4, "top_p": 0.5}},
            {"attributions": False, "attention": AttentionRequest((1,), (2, 0), Encoding.TOP_P, Aggregation.ROLLOUT, 0.5)},
        ),
    ],
)
def test_options_are_converted(options: dict[str, Any], wanted: dict[str, Any]) -> None:
    asked = ExplanationRequest("good", bytes_max=LIMIT)

    assert explanation_request(pb.ExplainRequest(text="good", options=options), LIMIT) == replace(asked, **wanted)
    assert explanation_request(pb.ClassifyRequest(text="good", explain=options), LIMIT) == replace(asked, **wanted)


def test_text_pair_truncation_and_label_are_those_of_the_request() -> None:
    request = pb.ExplainRequest(text="good", text_pair="bad", truncation="TRUNCATION_HEAD_TAIL", label="negative")

    assert explanation_request(request, LIMIT) == ExplanationRequest("good", "bad", "head_tail", "negative", bytes_max=LIMIT)


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"attention": {"encoding": 99}}, "attention.encoding", "must be 0 to 4, got 99"),
        ({"attention": {"aggregation": -1}}, "attention.aggregation", "must be 0 to 6, got -1"),
        ({"without": [{"words": [0]}] * 65}, "without", "has 65 word sets; the limit is 64"),
        ({"bytes_max": -1}, "bytes_max", f"must be 1 to {LIMIT}, or 0 for {LIMIT}, got -1"),
        ({"bytes_max": LIMIT + 1}, "bytes_max", f"must be 1 to {LIMIT}, or 0 for {LIMIT}, got {LIMIT + 1}"),
    ],
)
def test_a_bad_option_is_refused_by_its_field(options: dict[str, Any], field: str, message: str) -> None:
    for prefix, request in (
        ("options.", pb.ExplainRequest(text="good", options=options)),
        ("explain.", pb.ClassifyRequest(text="good", explain=options)),
    ):
        with pytest.raises(InvalidInput) as caught:
            explanation_request(request, LIMIT)

        assert (caught.value.field, caught.value.description) == (prefix + field, message)


def test_an_unknown_truncation_is_refused() -> None:
    with pytest.raises(InvalidInput, match="truncation: must be 0 to 4, got 9"):
        explanation_request(pb.ExplainRequest(text="good", truncation=9), LIMIT)


def test_an_error_names_a_field_as_classify_has_it() -> None:
    assert in_classify(InvalidInput("options.neuron.layer", "is 99")).field == "explain.neuron.layer"
    assert in_classify(InvalidInput("text", "is empty")).field == "text"


def test_the_header_gives_words_and_tokens_in_three_units() -> None:
    (message,) = _messages(HEADER)

    header = message.header
    assert [_units(word.span) for word in header.words] == [
        [(0, 1), (0, 1), (0, 1)],
        [(2, 7), (2, 7), (2, 8)],
        [(8, 9), (8, 10), (9, 13)],
        [(10, 14), (11, 15), (14, 18)],
        [(0, 4), (0, 4), (0, 5)],
        [(5, 8), (5, 8), (6, 9)],
    ]
    for word in header.words:
        text = TEXTS[word.pair]
        start, end = word.span.byte_start, word.span.byte_end
        assert text.encode()[start:end].decode() == text[word.span.code_point_start : word.span.code_point_end]
    assert [word.pair for word in header.words] == [False] * 4 + [True] * 2
    assert [(word.token_start, word.token_end) for word in header.words] == [(1, 2), (2, 4), (4, 5), (5, 6), (6, 7), (7, 8)]
    assert [token.word for token in header.tokens] == [-1, 0, 1, 1, 2, 3, 4, 5]
    assert [token.HasField("span") for token in header.tokens] == [False] + [True] * 7
    assert [token.unknown for token in header.tokens].index(True) == 4
    assert _units(header.tokens[3].span) == [(4, 7), (4, 7), (4, 8)]
    assert [(_units(unseen.span)[2], unseen.pair) for unseen in header.unseen] == [((9, 9), True), ((14, 18), False)]


def test_the_header_gives_the_answer_and_the_label_that_is_explained() -> None:
    header = _messages(HEADER)[0].header
    measured = _messages(replace(HEADER, logit_error=0.25, agrees=False))[0].header

    assert (header.prediction.label, header.prediction.score) == ("positive", 0.75)
    assert [(score.label, score.score) for score in header.prediction.scores] == [("negative", 0.25), ("positive", 0.75)]
    assert (header.label, header.against, header.logit) == ("negative", "", -1.5)
    assert (header.labels_agree, header.truncated) == (True, True)
    assert _messages(replace(HEADER, target=Target(0, 1)))[0].header.against == "positive"
    assert (header.graph.precision, header.graph.provider, header.explain_provider) == ("int8", "CPUExecutionProvider", "")
    assert header.model.name == "tiny"
    assert [word.sentence for word in header.words] == [0, 0, 0, 0, 1, 1]
    assert not header.HasField("adaptive")
    assert _messages(replace(HEADER, adaptive=HEADER.scored))[0].header.adaptive == header.prediction
    assert not header.HasField("logit_error")
    assert (measured.logit_error, measured.labels_agree) == (0.25, False)


def test_an_attribution_repeats_the_headers_words_and_leaves_infinite_numbers_unset() -> None:
    header, message = _messages(HEADER, ATTRIBUTION)

    errors = (0.0, None, 0.25, None, 0.0, 0.0)
    words = [
        pb.WordAttribution(span=word.span, pair=word.pair, value=value, standard_error=error)
        for value, (word, error) in enumerate(zip(header.header.words, errors, strict=True))
    ]
    assert message.attribution == pb.Attribution(
        method="shapley", words=words, special_total=0.5, unknown_total=-0.5, steps=3, steps_asked=20
    )


def test_a_gradient_has_tokens_and_its_parts_by_embedding() -> None:
    parts = np.arange(24.0).reshape(8, 3)

    attribution = _messages(HEADER, replace(ATTRIBUTION, tokens=parts.sum(1), by_embedding=parts, residual=-0.5))[1].attribution

    assert attribution.tokens == parts.sum(1).tolist()
    embeddings = [attribution.token_embedding, attribution.segment_embedding, attribution.position_embedding]
    assert [list(values) for values in embeddings] == parts.T.tolist()
    assert attribution.completeness_residual == -0.5


@pytest.mark.parametrize("agreement", [None, math.nan, 0.0, -0.5])
def test_agreement_is_unset_without_another_method(agreement: float | None) -> None:
    assert _messages(replace(EVIDENCE, agreement=agreement))[0].evidence == pb.Evidence(
        method="shapley",
        verdict=pb.VERDICT_FLAT,
        comprehensiveness=0.5,
        sufficiency=0.25,
        random_sets=19,
        p_value=0.05,
        empty_text_logit=-1,
        agreement=agreement if agreement in (0.0, -0.5) else None,
        words=2,
        rank=1,
        random_median=0.125,
        random_mean=0.25,
        random_max=0.5,
        operator="attention_mask",
    )


def test_a_flip_a_keep_and_a_requested_word_set_are_a_message_each() -> None:
    searched = Counterfactuals(
        Counterfactual((1, 3), 0, 0.625, 40, minimal=True, exhaustive_below=2, stopped=False),
        Counterfactual(None, None, None, 9, minimal=False, exhaustive_below=1, stopped=True),
    )

    flip, keep, requested = (message.counterfactual for message in _messages(searched, Without((0, 3), 1, 0.75)))

    assert flip == pb.Counterfactual(
        kind=pb.COUNTERFACTUAL_KIND_FLIP, found=True, words=[1, 3], label="negative", score=0.625, minimal=True, exhaustive_below=2, rows=40
    )
    assert keep == pb.Counterfactual(kind=pb.COUNTERFACTUAL_KIND_KEEP, exhaustive_below=1, stopped=True, rows=9)
    assert requested == pb.Counterfactual(kind=pb.COUNTERFACTUAL_KIND_ASKED, found=True, words=[0, 3], label="positive", score=0.75, rows=1)


def _patterns(layers: int, heads: int) -> HeadPatterns:
    ramp = np.arange(layers * heads, dtype=np.float32).reshape(layers, heads)
    patterns = tuple(HeadPattern(name, name != "cls", ramp, 0.5, ramp / 2) for name in PATTERNS)
    return HeadPatterns(patterns, tuple(("next",) * heads for _ in range(layers)))


def test_heads_are_measured_or_estimated_and_say_which() -> None:
    ramp = np.arange(6, dtype=np.float32).reshape(2, 3)
    measured = Heads(_patterns(2, 3), HeadEffects(ramp, -ramp, 1.5, True, 14), ramp + 1)

    exact, estimated = (message.heads for message in _messages(measured, replace(measured, effects=None)))

    numbers = [0, 1, 2, 3, 4, 5]
    patterns = [
        pb.HeadPattern(name=name, defined=True, score=numbers, uniform=0.5, lift=[one / 2 for one in numbers])
        if name != "cls"
        else pb.HeadPattern(name=name)
        for name in PATTERNS
    ]
    common = pb.HeadReport(layers=2, heads=3, labels=["next"] * 6, patterns=patterns)
    wanted = pb.HeadReport(
        gated=numbers, uniform=[-float(one) for one in numbers], exact=True, all_uniform=1.5, all_uniform_changes_label=True
    )
    wanted.MergeFrom(common)
    assert exact == wanted
    wanted = pb.HeadReport(gated=[one + 1 for one in numbers])
    wanted.MergeFrom(common)
    assert estimated == wanted


@pytest.mark.parametrize(("tokens", "width", "count"), [(7, 4, 1), (512, 64, 5), (512, 128, 10), (600, 256, 22)])
def test_a_neuron_view_is_split_by_keys_and_loses_none(tokens: int, width: int, count: int) -> None:
    rng = np.random.default_rng(tokens)
    query, key = rng.standard_normal((2, tokens, width), dtype=np.float32)
    score = query @ key.T
    attention = np.exp(score - score.max(1, keepdims=True))
    attention /= attention.sum(1, keepdims=True)
    view = neuron_view(query, key, score, attention, scale=1.0, token=2)

    found = [message.neuron for message in _messages(Neuron(3, 1, view))]

    assert len(found) == count
    assert [(one.layer, one.head, one.token, list(one.query)) for one in found] == [(3, 1, 2, view.query.tolist())] * count
    assert [one.key_start for one in found] == [sum(one.keys for one in found[:place]) for place in range(count)]
    for name in ("key", "product", "dot", "scaled", "bias", "score", "softmax", "attention"):
        assert np.concatenate([getattr(one, name) for one in found]).tolist() == getattr(view, name).ravel().tolist()


def test_a_geometry_is_sent_as_found() -> None:
    rng = np.random.default_rng(1)
    plane = plane_of(rng.standard_normal((4, 6), dtype=np.float32))
    golden = ("a", "good", "film", "A")
    found = locate(rng.standard_normal((2, 6), dtype=np.float32), plane, golden)

    (sent,) = [message.geometry for message in _messages(WordGeometry(3, 6, golden, plane, found))]

    assert (sent.layer, sent.layers, tuple(sent.golden), len(sent.nearest)) == (3, 6, golden, 2 * 3)
    for flat, array in (
        (sent.points, found.points),
        (sent.golden_points, plane.points),
        (sent.variance, plane.variance),
        (sent.nearest, found.nearest),
        (sent.cosines, found.cosines),
    ):
        assert list(flat) == array.ravel().tolist()


@pytest.mark.parametrize("encoding", Encoding)
def test_tiles_are_sent_as_encoded(encoding: Encoding) -> None:
    maps = np.random.default_rng(1).dirichlet(np.ones(300), 300).astype(np.float32)
    cut = list(tiles(maps, encoding))

    found = [message.tile for message in _messages(*(AttentionTile(1, -1, Aggregation.HEAD_MEAN, tile) for tile in cut))]

    for tile, sent in zip(cut, found, strict=True):
        assert (sent.layer, sent.head, sent.aggregation, sent.encoding) == (1, -1, pb.ATTENTION_AGGREGATION_HEAD_MEAN, encoding)
        fields = {name: getattr(sent, name) for name in ("row_start", "rows", "column_start", "columns", "weights")}
        decoded = decode(replace(tile, **fields, row_values=np.array(sent.row_values, np.float32)))
        rows = slice(sent.row_start, sent.row_start + sent.rows)
        assert np.abs(decoded - maps[rows]).max(where=decoded > 0, initial=0) <= sent.error_max
    assert sum(tile.rows for tile in found) == 300


def test_the_summary_gives_notes_rows_and_times() -> None:
    summary = _messages(Summary(False, ("time was up",), 40, 3, 1.5, 0.25))[0].summary

    assert (summary.complete, list(summary.notes), summary.served_rows, summary.explanation_rows) == (False, ["time was up"], 40, 3)
    assert (summary.queue.ToTimedelta().total_seconds(), summary.run.ToTimedelta().total_seconds()) == (0.25, 1.5)


def test_the_messages_of_an_explanation_are_merged_into_one() -> None:
    summary = Summary(True, (), 1, 1, 0.5)
    messages = _messages(HEADER, ATTRIBUTION, EVIDENCE, ATTRIBUTION, Heads(_patterns(2, 3), None, np.zeros((2, 3), np.float32)), summary)

    explanation = pb.Explanation()
    for message in messages:
        add(message, explanation)

    assert explanation.header == messages[0].header
    assert list(explanation.attributions) == [messages[1].attribution, messages[3].attribution]
    assert list(explanation.evidence) == [messages[2].evidence]
    assert explanation.heads == messages[4].heads
    assert explanation.summary == messages[5].summary


def test_the_header_of_a_long_text_fits_a_message() -> None:
    tokens = tuple(Token("##" + "\u6f22" * 30, place, place + 1, place, special=False, unknown=True, pair=False) for place in range(400))
    words = tuple(Word(place, place + 1, place, place + 1, pair=False) for place in range(400))
    text = "\U0001f600" * 10**6
    unseen = ((0, 400, len(text)),)

    (message,) = _messages(replace(HEADER, texts=(text,), encoded=Encoded((), None, tokens, words, True), unseen=unseen))

    assert _units(message.header.unseen[0].span) == [(400, 10**6), (800, 2 * 10**6), (1600, 4 * 10**6)]
