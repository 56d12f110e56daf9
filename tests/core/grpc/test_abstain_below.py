"""A caller's own threshold, through a real server: answers with a lower score abstain too, and nothing else changes."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.json_format import ParseDict

from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import NO_RETRIES, RunningServer
from tests.core.grpc.gate import METHODS, Start, every_method, total
from tests.core.http.http import call
from tests.core.observability.test_journal import rows
from tests.tiny import make_bundle

# The scores are 0.77 of the whole; 0.39, 0.84 and 0.35 of the sentences; 0.73, 0.77 and, of the target that is not named, 1.
TEXT = "A w9 film. The awful service! w3"
TARGETS = ("film", "service", "\u00e9clair")
THRESHOLD = 0.8
# Whether they abstain by the model's threshold, 0.6, and by this one.
BY_MODEL = [False, True, False, True, False, False, False]
BY_BOTH = [True, True, False, True, True, True, False]
# Of the tiny model with two labels: 0.88, and 0.5, which is below its own threshold.
SURE, UNSURE = "a good film", "a film"


@pytest.fixture
def stub(server: RunningServer) -> Iterator[Any]:
    """A blocking stub of the common server, typed for any message."""
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        yield pb_grpc.SentimentServiceStub(channel)


def classify(stub: Any, method: str, item: pb.Item, **options: Any) -> pb.ClassifyResponse:
    """The answer to one item, without its times."""
    if method == "Classify":
        answer = stub.Classify(pb.ClassifyRequest(text=item.text, targets=item.targets, **options))
    elif method == "ClassifyBatch":
        answer = stub.ClassifyBatch(pb.ClassifyBatchRequest(items=[item], **options)).results[0].response
    else:
        (result,) = stub.ClassifyStream(iter([pb.ClassifyStreamRequest(item=item, options=pb.StreamOptions(**options))]))
        answer = result.response
    return untimed(answer)


def over_http(server: RunningServer, batch: bool, item: dict[str, Any], **options: Any) -> pb.ClassifyResponse:
    if batch:
        found = call(server, "/v1/classify:batch", {"items": [item], **options}).json["results"][0]["response"]
    else:
        found = call(server, "/v1/classify", {**item, **options}).json
    return untimed(ParseDict(found, pb.ClassifyResponse()))


def untimed(answer: pb.ClassifyResponse) -> pb.ClassifyResponse:
    answer.ClearField("timing")
    return answer


def predictions(answer: pb.ClassifyResponse) -> list[pb.Prediction]:
    return [one.prediction for one in (answer, *answer.sentences, *answer.targets)]


def test_every_path_lets_answers_below_the_threshold_abstain_also_of_parts_and_changes_nothing_else(start: Start, tmp_path: Path) -> None:
    make_bundle(tmp_path, three=True)
    server = start(bundles=(tmp_path,))
    item = pb.Item(text=TEXT, targets=TARGETS)
    asked = {"sentences": True, "abstain_below": THRESHOLD}

    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        stub: Any = pb_grpc.SentimentServiceStub(channel)
        plain = classify(stub, "Classify", item, sentences=True)
        answers = [classify(stub, method, item, **asked) for method in METHODS]
    answers += [over_http(server, batch, {"text": TEXT, "targets": list(TARGETS)}, **asked) for batch in (False, True)]

    assert all(answer == answers[0] for answer in answers[1:])
    before, after = predictions(plain), predictions(answers[0])
    assert [one.abstain for one in before] == BY_MODEL
    assert [one.abstain for one in after] == BY_BOTH
    for old, new in zip(before, after, strict=True):
        new.abstain = old.abstain
    assert answers[0] == plain


@every_method
def test_a_score_that_comes_back_as_the_threshold_is_not_below_it(stub: Any, method: str) -> None:
    item = pb.Item(text=SURE)
    score = classify(stub, method, item).prediction.score

    found = [classify(stub, method, item, abstain_below=one) for one in (score, float(np.nextafter(np.float32(score), np.float32(1))))]

    assert [one.prediction.abstain for one in found] == [False, True]


@pytest.mark.parametrize("threshold", [0, 0.4])
def test_what_the_model_abstains_from_stays_so_under_a_lower_threshold(stub: Any, threshold: float) -> None:
    assert classify(stub, "Classify", pb.Item(text=UNSURE), abstain_below=threshold).prediction.abstain


@pytest.mark.parametrize(("threshold", "shown"), [(-0.5, "-0.5"), (1.5, "1.5"), (math.nan, "nan"), (math.inf, "inf")])
@every_method
def test_a_threshold_out_of_range_is_invalid(stub: Any, method: str, threshold: float, shown: str) -> None:
    message = f"abstain_below: must be 0 to 1, got {shown}"

    if method == "ClassifyStream":
        item = pb.Item(text=SURE)
        sent = [pb.ClassifyStreamRequest(item=item, options=pb.StreamOptions(abstain_below=one)) for one in (threshold, 0.5)]
        bad, good = sorted(stub.ClassifyStream(iter(sent)), key=lambda one: one.HasField("response"))
        assert (bad.error.code, bad.error.message) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], f"options.{message}")
        assert good.response.prediction.label == "positive"
        return
    with pytest.raises(grpc.RpcError) as caught:
        classify(stub, method, pb.Item(text=SURE), abstain_below=threshold)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, message)


@pytest.mark.parametrize(
    ("threshold", "says"),
    [
        (1.5, "abstain_below: must be 0 to 1, got 1.5"),
        (1.0000001, "abstain_below: must be 0 to 1, got 1.0000001"),
        (-1, "abstain_below: must be 0 to 1, got -1"),
        ("high", "abstain_below: must be a number, got a string"),
        (True, "abstain_below: must be a number, got a boolean"),
        (math.nan, "abstain_below: must be a number from -3.4028235e38 to 3.4028235e38"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/classify", "/v1/classify:batch"])
def test_over_http_a_threshold_out_of_range_is_invalid(server: RunningServer, path: str, threshold: Any, says: str) -> None:
    body = {"items": [SURE]} if path.endswith("batch") else {"text": SURE}

    assert call(server, path, {**body, "abstain_below": threshold}).error == (400, "INVALID_ARGUMENT", says)


def test_metrics_journal_and_feedback_know_the_models_threshold_alone(start: Start, tmp_path: Path) -> None:
    server = start(journal=str(tmp_path / "journal"))
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel, server.client() as client:
        found = classify(pb_grpc.SentimentServiceStub(channel), "Classify", pb.Item(text=SURE), abstain_below=1)
        told = client.feedback("positive", text=SURE)

    assert found.prediction.abstain
    assert not told.abstain
    assert (total(server, "predictions", abstained="false"), total(server, "predictions", abstained="true")) == (1, 0)
    server.stop()
    assert [row["abstain"] for row in rows(tmp_path / "journal")] == [False, False]


def test_one_known_answer_serves_callers_with_different_thresholds(start: Start) -> None:
    server = start(answer_cache_bytes=1_000_000)
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        stub: Any = pb_grpc.SentimentServiceStub(channel)
        found = [classify(stub, "Classify", pb.Item(text=SURE), abstain_below=one).prediction for one in (0.5, 1, 0.5)]

    assert [one.abstain for one in found] == [False, True, False]
    assert total(server, "known_rows", how="kept") == 2


def test_an_explanation_has_the_models_decision(stub: Any) -> None:
    options = pb.ExplainOptions(methods=["occlusion"])

    found = stub.Classify(pb.ClassifyRequest(text=SURE, abstain_below=1, explain=options))

    assert found.prediction.abstain
    assert not found.explanation.header.prediction.abstain
