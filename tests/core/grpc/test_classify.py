"""Classify, ClassifyBatch and the model calls through a real server: what each input gets."""

import re

import grpc
import pytest

from sentiment.client import CallFailed, Classification, Client
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import RunningServer
from tests.core.grpc.gate import Start, positive, refusal

Code = grpc.StatusCode


def failure_of(client: Client, text: str | tuple[str, str], **arguments: str) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        client.classify(*((text,) if isinstance(text, str) else text), **arguments)
    return caught.value


@pytest.mark.smoke
def test_a_text_gets_its_label_calibrated_scores_and_model(client: Client) -> None:
    answer = client.classify("a good film")

    assert answer.label == "positive"
    assert answer.score == pytest.approx(positive(64), abs=1e-6)
    assert list(answer.scores) == ["negative", "positive"]
    assert sum(answer.scores.values()) == pytest.approx(1)
    assert (answer.model.name, answer.model.version, len(answer.model.digest)) == ("tiny", 1, 64)
    assert (answer.tokens, answer.truncated, answer.abstain) == (5, False, False)
    assert 0 < answer.timing.run_s < answer.timing.total_s
    assert answer.timing.batch_rows == 1

    assert client.classify("a film").abstain


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("good \U0001f600", "positive"),  # emoji: an unknown token
        ("\u05d8\u05d5\u05d1 bad", "negative"),  # right to left
        ("\x00go\x07od\x00", "positive"),  # NUL and control characters are dropped by the tokenizer
        ("GREAT", "positive"),
        ("a" * 2**20, "negative"),  # exactly 1 MiB; one unknown word, a tie that the first label wins
    ],
    ids=["emoji", "right-to-left", "control", "upper-case", "1MiB"],
)
def test_unusual_texts_are_answered(client: Client, text: str, label: str) -> None:
    assert client.classify(text).label == label


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "text: has 0 characters and none but white space; at least one other is needed"),
        (" \t\n\u2003", "text: has 4 characters and none but white space; at least one other is needed"),
        ("\x00\x01", "text: has 2 characters and none that the model reads; at least one is needed"),
        ("a" * (2**20 + 1), "text: has 1048577 bytes; the limit is 1048576"),
        ("\u00e9" * (2**19 + 1), "text: has 1048578 bytes; the limit is 1048576"),
    ],
    ids=["empty", "white-space", "control-only", "over-1MiB", "over-1MiB-in-two-byte-characters"],
)
def test_a_text_that_cannot_be_answered_is_invalid_with_field_value_and_limit(client: Client, text: str, message: str) -> None:
    failed = failure_of(client, text)

    assert failed.code is Code.INVALID_ARGUMENT
    assert failed.message == message
    assert [violation.field for violation in failed.violations] == ["text"]
    assert failed.request_id


def test_a_text_that_is_too_long_is_truncated_or_refused_as_requested(client: Client) -> None:
    answer = client.classify("good " * 20 + "bad " * 100)
    failed = failure_of(client, "good " * 100, truncation="refuse")

    assert (answer.tokens, answer.truncated, answer.label) == (32, True, "positive")
    assert failed.code is Code.INVALID_ARGUMENT
    assert "the limit is 32" in failed.message
    assert client.classify("good", truncation="refuse").label == "positive"


def test_a_model_is_found_by_name_with_and_without_version_and_no_other_is(client: Client) -> None:
    assert client.classify("good", model="tiny").model == client.classify("good", model="tiny/1").model
    for model in ("nosuch", "tiny/2", "tiny/x", "x" * 10_000):
        failed = failure_of(client, "good", model=model)

        assert failed.code is Code.NOT_FOUND
        assert "loaded are tiny/1" in failed.message
        assert len(failed.message) < 300


def test_a_pair_is_read_by_a_model_with_pairs_and_refused_by_others(client: Client, start: Start) -> None:
    with start(model="paired").client() as paired:
        answer = paired.classify("good", "great film")
    failed = failure_of(client, ("good", "bad"))

    assert answer.tokens == 6
    assert answer.scores["positive"] == pytest.approx(positive(3 * 64), abs=1e-6)
    assert failed.code is Code.FAILED_PRECONDITION
    assert "reads one text; a pair was given" in failed.message


@pytest.mark.parametrize("field", ["truncation", "priority"])
def test_an_unknown_enum_value_is_invalid(server: RunningServer, field: str) -> None:
    with grpc.insecure_channel(server.target) as channel:
        code, found, message = refusal(
            lambda: pb_grpc.SentimentServiceStub(channel).Classify(pb.ClassifyRequest(text="good", **{field: 99}))
        )

    assert (code, found) == (Code.INVALID_ARGUMENT, field)
    assert re.fullmatch(rf"{field}: must be 0 to \d, got 99", message)


def test_a_message_over_our_limit_gets_our_answer_and_not_the_transports(server: RunningServer) -> None:
    with server.client() as client, pytest.raises(CallFailed, match="the limit is 4194304") as caught:
        client.classify_batch(["a" * 2**20] * 5)

    assert caught.value.code is Code.INVALID_ARGUMENT


def test_a_batch_answers_in_order_and_a_bad_item_leaves_the_others_alone(client: Client) -> None:
    results = client.classify_batch(["good", "", "bad", ("a", "pair"), "great"])

    assert [result.label if isinstance(result, Classification) else result.code.name for result in results] == [
        "positive",
        "INVALID_ARGUMENT",
        "negative",
        "FAILED_PRECONDITION",
        "positive",
    ]
    assert isinstance(results[1], CallFailed)
    assert results[1].violations[0].field == "text"


def test_a_batch_has_from_1_to_1024_items(client: Client) -> None:
    assert len(client.classify_batch(["good"] * 1024)) == 1024
    for count in (0, 1025):
        with pytest.raises(CallFailed, match=f"items: must have 1 to 1024 items, got {count}") as caught:
            client.classify_batch(["good"] * count)
        assert caught.value.code is Code.INVALID_ARGUMENT


def test_every_answer_of_a_large_batch_belongs_to_its_text(client: Client) -> None:
    weights = [(number * 7) % 65 - 32 for number in range(1000)]
    texts = [f"w{weight}" + " film" * (number % 20) for number, weight in enumerate(weights)]

    results = client.classify_batch(texts)

    assert [result.scores["positive"] for result in results] == pytest.approx([positive(weight) for weight in weights], abs=1e-6)


def test_models_are_listed_and_described(client: Client) -> None:
    listed = client.list_models().models
    model = client.get_model("tiny")

    assert [(entry.id.name, entry.is_default, entry.card) for entry in listed] == [("tiny", True, "")]
    assert list(model.labels) == ["negative", "positive"]
    assert (model.max_tokens, model.pairs, model.default_truncation) == (32, False, pb.TRUNCATION_HEAD)
    assert (model.classify_graph.precision, model.classify_graph.provider) == ("fp32", "CPUExecutionProvider")
    assert model.card == "# Tiny\n"
    assert model.limits.batch_items == 1024
    assert model.accuracy[0].dataset == "made-up"
    assert not model.calibration.uncalibrated
    with pytest.raises(CallFailed) as caught:
        client.get_model("nosuch")
    assert caught.value.code is Code.NOT_FOUND
