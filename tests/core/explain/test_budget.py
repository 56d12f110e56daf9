"""The upper bound on the bytes of an explanation, against messages whose fields have their maximum size; and budgets."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration

from sentiment.errors import InvalidInput
from sentiment.explain.budget import ESTIMATES_MAX, NOTE_BYTES_MAX, Sizes, bytes_most, check_bytes
from sentiment.explain.encoding import Encoding, tiles
from sentiment.explain.engine.golden_words import WORDS_MAX
from sentiment.explain.methods.geometry import NEAREST
from sentiment.explain.methods.heads import PATTERNS
from sentiment.explain.methods.phrases import SENTENCES_MAX
from sentiment.explain.methods.registry import METHODS
from sentiment.explain.parts import ROLLOUTS, Aggregation, AttentionRequest, ExplanationRequest, NeuronRequest
from sentiment.explain.reason import QUOTED_MAX
from sentiment.model.words import Encoded, Token, Word
from sentiment.v1 import sentiment_pb2 as pb

MOST, LEAST, NUMBER = 2**31 - 1, -1, 1.5
GRPC_FRAME = 5
LABELS = ("sehr schön", "neutral")
EVERYTHING = ExplanationRequest(
    "",
    methods=METHODS,
    by_embedding=True,
    counterfactuals=True,
    heads=True,
    attention=AttentionRequest(encoding=Encoding.TOP_P, top_p=1.0),
    neuron=NeuronRequest(),
    without=((0,), (0,)),
    geometry=True,
    estimates=True,
)
SIZES = Sizes(3, 4, 16, ("sehr", "schön", "größer"))
SPAN = pb.Span(code_point_start=MOST, code_point_end=MOST, utf16_start=MOST, utf16_end=MOST, byte_start=MOST, byte_end=MOST)


def _encoded(tokens: int, words: int, piece: str = "[UNK]") -> Encoded:
    """``words`` words of one token, the last one of all that are left but the two special ones."""
    special = Token(piece, 0, 0, -1, special=True, unknown=True, pair=False)
    content = [Token(piece, 0, 0, min(index, words - 1), special=False, unknown=True, pair=True) for index in range(tokens - 2)]
    spans = [(index + 1, index + 2) for index in range(words - 1)] + [(words, tokens - 1)]
    found = tuple(Word(first, last, first, last, True) for first, last in spans)
    return Encoded((1,) * tokens, None, (special, *content, special), found, True)


def _header(encoded: Encoded) -> pb.ExplanationHeader:
    label = max(LABELS, key=lambda name: len(name.encode()))
    scores = [pb.LabelScore(label=name, score=NUMBER) for name in LABELS]
    prediction = pb.Prediction(label=label, score=NUMBER, scores=scores, abstain=True, mixed=True)
    return pb.ExplanationHeader(
        prediction=prediction,
        adaptive=prediction,
        model=pb.ModelId(name="m" * 63, version=MOST, digest="d" * 64),
        label=label,
        tokens=[pb.Token(piece=one.piece, span=SPAN, special=True, pair=True, word=LEAST, unknown=True) for one in encoded.tokens],
        truncated=True,
        labels_agree=True,
        words=[pb.Word(span=SPAN, pair=True, token_start=MOST, token_end=MOST, sentence=MOST) for _ in encoded.words],
        unseen=[pb.UnseenText(span=SPAN, pair=True)] * 2,
        logit=NUMBER,
        logit_error=NUMBER,
    )


def _attribution(encoded: Encoded, by_embedding: bool, method: str) -> pb.Attribution:
    each = [NUMBER] * len(encoded.tokens)
    split = each if by_embedding else []
    return pb.Attribution(
        method=method,
        tokens=each,
        words=[pb.WordAttribution(span=SPAN, value=NUMBER, standard_error=NUMBER, pair=True) for _ in encoded.words],
        completeness_residual=NUMBER,
        special_total=NUMBER,
        unknown_total=NUMBER,
        unseen_total=NUMBER,
        steps=MOST,
        steps_asked=MOST,
        token_embedding=split,
        segment_embedding=split,
        position_embedding=split,
        estimate=pb.Estimate(left_s=NUMBER),
        sentences=_sentences(len(encoded.words)) if method == "two_step_shapley" else (),
    )


def _sentences(count: int) -> list[pb.SentenceAttribution]:
    return [pb.SentenceAttribution(span=SPAN, pair=True, value=NUMBER, standard_error=NUMBER, words_valued=True)] * count


def _deciding(words: int) -> pb.DecidingWords:
    floats = ("comprehensiveness", "p_value", "random_median", "random_max", "score")
    return pb.DecidingWords(
        words=[MOST] * words,
        verdict=pb.VERDICT_NOT_FAITHFUL,
        random_sets=MOST,
        rank=MOST,
        operator="mask_token+deletion",
        changing_words=[MOST] * words,
        label=max(LABELS, key=lambda name: len(name.encode())),
        **dict.fromkeys(floats, NUMBER),
    )


def _evidence() -> pb.Evidence:
    floats = ("comprehensiveness", "sufficiency", "p_value", "empty_text_logit", "agreement", "random_median", "random_mean", "random_max")
    numbers = dict.fromkeys(floats, NUMBER)
    whole = {"random_sets": MOST, "words": MOST, "rank": MOST}
    return pb.Evidence(method=max(METHODS, key=len), verdict=pb.VERDICT_FLAT, operator="attention_mask", **numbers, **whole)


def _reason() -> pb.Reason:
    label = max(LABELS, key=lambda name: len(name.encode()))
    quoted = f"“{'🙂' * (QUOTED_MAX - 1)}…”"
    towards = " and ".join([quoted] * SENTENCES_MAX)
    text = f"Undecided, most likely {label}, mostly because of {towards}; {quoted} speaks against it."
    other = f"{label}; for {label}: {towards}; against it: {quoted}."
    return pb.Reason(text=max(text, other, key=lambda said: len(said.encode())), method=max(METHODS, key=len))


def _counterfactual(words: int) -> pb.Counterfactual:
    return pb.Counterfactual(
        kind=pb.COUNTERFACTUAL_KIND_KEEP,
        found=True,
        words=[MOST] * words,
        label=max(LABELS, key=lambda name: len(name.encode())),
        score=NUMBER,
        minimal=True,
        exhaustive_below=MOST,
        stopped=True,
        rows=MOST,
    )


def _heads(count: int) -> pb.HeadReport:
    numbers = [NUMBER] * count
    return pb.HeadReport(
        layers=MOST,
        heads=MOST,
        gated=numbers,
        uniform=numbers,
        exact=True,
        all_uniform=NUMBER,
        all_uniform_changes_label=True,
        labels=[max(PATTERNS, key=len)] * count,
        patterns=[pb.HeadPattern(name=name, defined=True, score=numbers, uniform=NUMBER, lift=numbers) for name in PATTERNS],
    )


def _neuron(tokens: int, width: int) -> list[pb.NeuronView]:
    # 30,000 bytes are the least that a message of several holds.
    keys_max = max(1, 30_000 // (8 * width + 24))
    found = []
    for start in range(0, tokens, keys_max):
        keys = [NUMBER] * min(keys_max, tokens - start)
        found.append(
            pb.NeuronView(
                layer=MOST, head=MOST, token=MOST, scale=NUMBER, query=[NUMBER] * width, key_start=MOST, keys=MOST, key=keys * width,
                product=keys * width, dot=keys, scaled=keys, bias=keys, score=keys, softmax=keys, attention=keys, max_abs_error=NUMBER,
            )
        )  # fmt: skip
    return found


def _geometry(words: int, golden: Sequence[str]) -> pb.WordGeometry:
    near = NEAREST * words
    places = [NUMBER] * 2
    return pb.WordGeometry(
        layer=MOST, layers=MOST, points=places * words, golden=golden, golden_points=places * len(golden), variance=places,
        nearest=[WORDS_MAX - 1] * near, cosines=[NUMBER] * near,
    )  # fmt: skip


def _tiles(asked: AttentionRequest, encoded: Encoded, layers: int, heads: int) -> list[pb.AttentionTile]:
    tokens = len(encoded.tokens)
    side = len(encoded.words) + 2 if asked.aggregation == Aggregation.WORDS else tokens
    shape = (heads if asked.aggregation == Aggregation.CLS_ROWS else side, side)
    maps = 1 if asked.aggregation in ROLLOUTS else layers
    maps *= heads if asked.aggregation in (Aggregation.MAPS, Aggregation.WORDS) else 1
    # All of a row is kept where weights are alike.
    weights = np.full(shape, 1 / tokens, np.float32)
    return maps * [
        pb.AttentionTile(
            layer=LEAST, head=LEAST, aggregation=pb.ATTENTION_AGGREGATION_ROLLOUT, encoding=pb.ATTENTION_ENCODING_TOP_P,
            row_start=tile.row_start, rows=tile.rows, column_start=tile.column_start, columns=tile.columns, weights=tile.weights,
            row_values=tile.row_values, error_max=NUMBER,
        )
        for tile in tiles(weights, asked.encoding, 1.0)
    ]  # fmt: skip


def _summary(methods: int) -> pb.ExplanationSummary:
    # Of attention, heads, counterfactuals, sets, the deciding words, and for each method of itself, its agreement and its evidence.
    notes = ["n" * NOTE_BYTES_MAX] * (2 + 2 + 1 + 3 * methods + (methods > 0))
    wait = Duration(seconds=MOST, nanos=999_999_999)
    return pb.ExplanationSummary(complete=True, notes=notes, served_rows=MOST, explanation_rows=MOST, queue=wait, run=wait)


def _largest(asked: ExplanationRequest, encoded: Encoded, sizes: Sizes) -> int:
    """Bytes of the largest messages that there can be, with their frames."""
    tokens, words = len(encoded.tokens), len(encoded.words)
    count = len(asked.methods) if asked.attributions else int(asked.counterfactuals)
    found = [pb.ExplainResponse(header=_header(encoded)), pb.ExplainResponse(summary=_summary(count))]
    methods = (*asked.methods[:count], *asked.methods[: min(1, count)] * ESTIMATES_MAX * asked.estimates)
    found += [pb.ExplainResponse(attribution=_attribution(encoded, asked.by_embedding, method)) for method in methods]
    found += min(1, count) * asked.evidence * [pb.ExplainResponse(reason=_reason()), pb.ExplainResponse(deciding=_deciding(words))]
    found += count * asked.evidence * [pb.ExplainResponse(evidence=_evidence())]
    found += 2 * asked.counterfactuals * [pb.ExplainResponse(counterfactual=_counterfactual(words))]
    found += [pb.ExplainResponse(counterfactual=_counterfactual(len(words))) for words in asked.without]
    found += asked.heads * [pb.ExplainResponse(heads=_heads(sizes.layers * sizes.heads))]
    if asked.neuron is not None:
        found += [pb.ExplainResponse(neuron=view) for view in _neuron(tokens, sizes.width)]
    if asked.geometry:
        found += (sizes.layers + 1) * [pb.ExplainResponse(geometry=_geometry(words, sizes.golden))]
    if asked.attention is not None:
        found += [pb.ExplainResponse(tile=tile) for tile in _tiles(asked.attention, encoded, sizes.layers, sizes.heads)]
    return sum(message.ByteSize() + GRPC_FRAME for message in found)


@pytest.mark.parametrize(("tokens", "words"), [(3, 1), (17, 15), (17, 4), (200, 198)])
@pytest.mark.parametrize(
    "left_out",
    [
        "nothing",
        "attention",
        "neuron",
        "heads",
        "counterfactuals",
        "evidence",
        "by_embedding",
        "attributions",
        "without",
        "geometry",
        "estimates",
    ],
)
def test_no_messages_are_larger_than_the_bound(tokens: int, words: int, left_out: str) -> None:
    asked = (
        EVERYTHING
        if left_out == "nothing"
        else replace(EVERYTHING, **{left_out: {"attention": None, "neuron": None, "without": ()}.get(left_out, False)})
    )  # type: ignore[arg-type]  # of all kinds
    encoded = _encoded(tokens, words, "größe")

    largest = _largest(asked, encoded, SIZES)

    assert largest <= bytes_most(asked, encoded, LABELS, SIZES) <= 1.5 * largest + 1500


def test_answers_without_words_count_with_their_note() -> None:
    asked = ExplanationRequest("", attributions=False, without=((0, 1), (0,)))
    encoded = _encoded(6, 4)

    added = bytes_most(asked, encoded, LABELS, Sizes()) - bytes_most(replace(asked, without=()), encoded, LABELS, Sizes())

    least = sum(pb.ExplainResponse(counterfactual=_counterfactual(words)).ByteSize() + GRPC_FRAME for words in (2, 1)) + NOTE_BYTES_MAX
    assert least <= added <= least + 200


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("aggregation", Aggregation)
def test_no_attention_is_larger_than_the_bound(encoding: Encoding, aggregation: Aggregation) -> None:
    asked = ExplanationRequest("", attributions=False, attention=AttentionRequest(encoding=encoding, aggregation=aggregation))
    encoded, sizes = _encoded(180, 100), Sizes(2, 3)

    largest = _largest(asked, encoded, sizes)

    assert largest <= bytes_most(asked, encoded, LABELS, sizes) <= 1.2 * largest + 3000


def test_only_requested_layers_and_heads_count() -> None:
    def most(attention: AttentionRequest) -> int:
        return bytes_most(ExplanationRequest("", attributions=False, attention=attention), _encoded(50, 40), LABELS, Sizes(6, 12, 32))

    nothing = bytes_most(ExplanationRequest("", attributions=False), _encoded(50, 40), LABELS, Sizes(6, 12, 32))
    assert (most(AttentionRequest()) - nothing) == 36 * (most(AttentionRequest((3,), (7, 8))) - nothing)


@pytest.mark.parametrize(
    ("attention", "budget", "offer"),
    [
        (AttentionRequest(encoding=Encoding.FP32), 1_000_000, "with encoding u8 up to"),
        (AttentionRequest(encoding=Encoding.FP32), 500_000, "with aggregation head_mean up to"),
        (AttentionRequest(encoding=Encoding.FP32), 150_000, "with encoding u8 and aggregation head_mean up to"),
        (AttentionRequest(encoding=Encoding.FP32), 40_000, "with encoding u8 and aggregation cls_rows up to"),
        (AttentionRequest(), 33_000, "without attention up to"),
        (AttentionRequest(), 1000, None),
        (None, 1000, None),
    ],
)
def test_a_budget_that_may_be_exceeded_is_refused_with_a_cheaper_request(
    attention: AttentionRequest | None, budget: int, offer: str | None
) -> None:
    asked = ExplanationRequest("", methods=METHODS[:1], attention=attention, bytes_max=budget)
    encoded, sizes = _encoded(100, 98), Sizes(6, 12, 32)

    with pytest.raises(InvalidInput) as caught:
        check_bytes(asked, encoded, LABELS, sizes)

    most = bytes_most(asked, encoded, LABELS, sizes)
    told = f"options.bytes_max: is {budget}; this explanation can take up to {most}"
    assert str(caught.value).startswith(told)
    assert (offer or "up to") in str(caught.value)
    assert ("up to" in str(caught.value).removeprefix(told)) == (offer is not None)
    if offer is not None:
        assert int(str(caught.value).split()[-1]) <= budget


def test_a_geometry_is_offered_to_be_left_out() -> None:
    encoded = _encoded(20, 18)
    asked = ExplanationRequest("", methods=METHODS[:1], attention=AttentionRequest(), geometry=True)
    for request, change in ((asked, "without attention and geometry"), (replace(asked, attention=None), "without geometry")):
        less = bytes_most(replace(request, attention=None, geometry=False), encoded, LABELS, SIZES)

        with pytest.raises(InvalidInput, match=f", {change} up to {less}$"):
            check_bytes(replace(request, bytes_max=less), encoded, LABELS, SIZES)


def test_a_sufficient_budget_is_accepted() -> None:
    asked, encoded = EVERYTHING, _encoded(20, 18)
    most = bytes_most(asked, encoded, LABELS, SIZES)

    check_bytes(replace(asked, bytes_max=most), encoded, LABELS, SIZES)
    check_bytes(replace(asked, bytes_max=None), encoded, LABELS, SIZES)
    with pytest.raises(InvalidInput):
        check_bytes(replace(asked, bytes_max=most - 1), encoded, LABELS, SIZES)
