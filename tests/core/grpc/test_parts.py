"""Sentences and targets of a text, through a real server: by every path, with every error, and as rows that come and go together."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import ParseDict

from sentiment import Local
from sentiment.call import convert
from sentiment.offline import OfflineClassifier
from sentiment.pipeline.answer import Answer
from sentiment.pipeline.loop_turns import LoopTurns
from sentiment.pipeline.queries import Query
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import NO_RETRIES, RunningServer
from tests.core.grpc.gate import (
    MODEL,
    PATIENCE_S,
    Busy,
    FixedCost,
    Hold,
    Start,
    ask,
    bounded,
    code_of,
    every_method,
    queued,
    refusal,
    send,
    served_by,
    set_cost,
    total,
)
from tests.core.http.http import call
from tests.tiny import THREE, make_bundle

Code = grpc.StatusCode
TEXT = "A great \u00c9CLAIR and film. The \U0001f600 awful film! w3"
TARGETS = ("film", "\u00e9clair", "service")
# The whole, three sentences, and the two targets that the text names.
ROWS = 6


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with tiny/1, which has three labels, ``mixed`` and targets, and paired/1, which reads pairs and has none of these."""
    folder = tmp_path_factory.mktemp("three")
    make_bundle(folder, three=True)
    make_bundle(folder, "paired", pairs=True)
    return folder


@pytest.fixture
def three(start: Start, root: Path) -> RunningServer:
    return start(bundles=(root,))


@pytest.fixture
def stub(three: RunningServer) -> Iterator[Any]:
    """A blocking stub, typed for any message."""
    with grpc.insecure_channel(three.target, NO_RETRIES) as channel:
        yield pb_grpc.SentimentServiceStub(channel)


def item(**changes: Any) -> pb.Item:
    return pb.Item(**{"text": TEXT, "targets": TARGETS, **changes})


def classify(stub: Any, method: str, one: pb.Item, sentences: bool = True, model: str = "", truncation: Any = 0) -> pb.ClassifyResponse:
    """The answer to one item.

    Raises:
        grpc.RpcError: as the call failed; in a batch or a stream ``NoAnswer``.
    """
    if method == "Classify":
        pair = one.text_pair if one.HasField("text_pair") else None
        asked = pb.ClassifyRequest(
            text=one.text, text_pair=pair, targets=one.targets, sentences=sentences, model=model, truncation=truncation
        )
        found: pb.ClassifyResponse = stub.Classify(asked)
        return found
    if method == "ClassifyBatch":
        batch = pb.ClassifyBatchRequest(items=[pb.Item(text="good"), one], sentences=sentences, model=model, truncation=truncation)
        plain, result = stub.ClassifyBatch(batch).results
        assert plain.response.prediction.label == "positive"
    else:
        options = pb.StreamOptions(model=model, sentences=sentences, truncation=truncation)
        (result,) = stub.ClassifyStream(iter([pb.ClassifyStreamRequest(item=one, options=options)]))
    if result.WhichOneof("result") == "error":
        raise NoAnswer(result.error)
    answer: pb.ClassifyResponse = result.response
    return answer


class NoAnswer(Exception):
    """An item has an error."""

    def __init__(self, status: Any) -> None:
        super().__init__(status.message)
        self.code, self.message = status.code, status.message


def settled(answer: pb.ClassifyResponse) -> pb.ClassifyResponse:
    """Without its times."""
    answer.ClearField("timing")
    return answer


def test_every_path_answers_parts_alike_and_as_texts_of_their_own(three: RunningServer, stub: Any, root: Path) -> None:
    web = call(three, "/v1/classify", {"text": TEXT, "sentences": True, "targets": list(TARGETS)})
    web_batch = call(three, "/v1/classify:batch", {"items": [{"text": TEXT, "targets": list(TARGETS)}], "sentences": True})
    offline = OfflineClassifier("tiny", [root])
    (inside,) = offline.answer_all([Query(TEXT, sentences=True, targets=TARGETS)])
    assert isinstance(inside, Answer)
    local = pb.ClassifyResponse()
    convert.set_response(local, inside, served_by(three))
    offline.close()

    answers = [
        *(settled(classify(stub, method, item())) for method in ("Classify", "ClassifyBatch", "ClassifyStream")),
        settled(local),
        settled(ParseDict(web.json, pb.ClassifyResponse())),
        settled(ParseDict(web_batch.json["results"][0]["response"], pb.ClassifyResponse())),
    ]

    assert all(answer == answers[0] for answer in answers[1:])
    found = answers[0]
    assert found.sentences_total == len(found.sentences) == 3
    spans = [(one.span.code_point_start, one.span.code_point_end) for one in found.sentences]
    assert [TEXT[start:end] for start, end in spans] == ["A great \u00c9CLAIR and film.", "The \U0001f600 awful film!", "w3"]
    encoded, wide = TEXT.encode(), TEXT.encode("utf-16-le")
    assert [encoded[one.span.byte_start : one.span.byte_end].decode() for one in found.sentences] == [TEXT[s:e] for s, e in spans]
    assert [wide[2 * one.span.utf16_start : 2 * one.span.utf16_end].decode("utf-16-le") for one in found.sentences] == [
        TEXT[s:e] for s, e in spans
    ]
    for sentence, (start, end) in zip(found.sentences, spans, strict=True):
        alone = classify(stub, "Classify", pb.Item(text=TEXT[start:end]), sentences=False)
        assert sentence.prediction == alone.prediction
        assert (sentence.tokens, sentence.truncated) == (alone.tokens, False)
    assert [(one.target, one.named) for one in found.targets] == [("film", True), ("\u00e9clair", True), ("service", False)]
    mention = found.targets[1].mention
    assert TEXT[mention.code_point_start : mention.code_point_end] == "\u00c9CLAIR"
    assert found.targets[2].prediction.scores[2].score == found.targets[2].prediction.score == 1
    assert (found.targets[2].HasField("mention"), found.targets[2].tokens) == (False, 0)
    assert 0 < found.targets[0].tokens <= 16


def test_the_whole_is_answered_as_without_its_parts_and_says_that_it_is_mixed(stub: Any) -> None:
    plain, parted = classify(stub, "Classify", pb.Item(text=TEXT), sentences=False), classify(stub, "Classify", item())

    assert parted.prediction.mixed
    assert not plain.prediction.mixed
    parted.prediction.mixed = False
    assert (parted.prediction, parted.tokens, parted.truncated) == (plain.prediction, plain.tokens, plain.truncated)
    assert (len(plain.sentences), plain.sentences_total, len(plain.targets)) == (0, 0, 0)


def test_windows_and_sentences_go_together(stub: Any) -> None:
    text = "w3 " * 40 + "good. awful."

    found = classify(stub, "Classify", pb.Item(text=text), truncation=pb.TRUNCATION_WINDOWS)
    plain = classify(stub, "Classify", pb.Item(text=text), sentences=False, truncation=pb.TRUNCATION_WINDOWS)

    assert [one.score for one in found.prediction.scores] == [one.score for one in plain.prediction.scores]
    assert found.tokens == plain.tokens > 32
    assert [one.truncated for one in found.sentences] == [True, False]


def test_a_model_says_what_it_can_and_a_server_its_limits(start: Start, root: Path) -> None:
    with start(bundles=(root,), sentences_max=3, targets_max=2).client() as client:
        three = client.get_model()
        assert (three.targets, three.mixed, three.pairs, list(three.labels)) == (True, True, False, list(THREE))
        assert (three.limits.sentences, three.limits.targets) == (3, 2)


def test_an_answer_without_parts_has_the_fields_that_it_had_before(start: Start, root: Path) -> None:
    server = start(bundles=(root,), model="paired")
    with server.client() as client, grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        stub: Any = pb_grpc.SentimentServiceStub(channel)
        found = stub.Classify(pb.ClassifyRequest(text="awful and a good film"))

        assert [field.name for field, _ in found.ListFields()] == ["prediction", "model", "tokens", "timing"]
        assert [field.name for field, _ in found.prediction.ListFields()] == ["label", "score", "scores"]
        assert client.classify("awful and a good film").scores == {one.label: one.score for one in found.prediction.scores}


def test_a_model_of_two_labels_splits_texts_too_but_has_no_targets(start: Start, root: Path) -> None:
    server = start(bundles=(root,), model="paired")
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        stub: Any = pb_grpc.SentimentServiceStub(channel)
        found = stub.Classify(pb.ClassifyRequest(text="great great. awful awful.", sentences=True))

        assert [one.prediction.label for one in found.sentences] == ["positive", "negative"]
        assert found.prediction.mixed
        described = stub.GetModel(pb.GetModelRequest()).model
        assert (described.targets, described.mixed) == (False, False)
        code, _, message = refusal(lambda: stub.Classify(pb.ClassifyRequest(text=TEXT, targets=["film"])))
        assert (code, message) == (Code.FAILED_PRECONDITION, "model paired/1 answers no targets; 1 were given")
        code, _, message = refusal(lambda: list(stub.Explain(pb.ExplainRequest(text=TEXT, target="film"))))
        assert (code, message) == (Code.FAILED_PRECONDITION, "model paired/1 answers no targets; one was given")
        code, field, _ = refusal(lambda: list(stub.Explain(pb.ExplainRequest(text=TEXT, text_pair="good", target="film"))))
        assert (code, field) == (Code.INVALID_ARGUMENT, "target")
        for more in ({"sentences": True}, {"targets": ["film"]}):
            code, field, message = refusal(lambda more=more: stub.Classify(pb.ClassifyRequest(text="good", text_pair="film", **more)))
            assert (code, field) == (Code.INVALID_ARGUMENT, "text_pair")
            assert next(iter(more)) in message


@pytest.mark.parametrize(
    ("targets", "field", "says"),
    [
        ([str(number) for number in range(17)], "targets", "has 17 targets; the limit is 16"),
        (["film", ""], "targets[1]", "has 0 characters"),
        ([" \n"], "targets[0]", "has 2 characters and none but white space"),
        (["\u00e9" * 65], "targets[0]", "has 130 bytes; the limit is 128"),
        (["film", "food", "film"], "targets[2]", "is the same as targets[0]"),
        (["film", "\u200b"], "targets[1]", "has 1 characters and none that the model reads"),
    ],
)
@every_method
def test_wrong_targets_are_refused_by_their_field(stub: Any, method: str, targets: list[str], field: str, says: str) -> None:
    if method == "Classify":
        code, at, message = refusal(lambda: classify(stub, method, item(targets=targets)))
        assert (code, at) == (Code.INVALID_ARGUMENT, field)
    else:
        with pytest.raises(NoAnswer) as caught:
            classify(stub, method, item(targets=targets))
        assert caught.value.code == Code.INVALID_ARGUMENT.value[0]
        message, prefix = caught.value.message, "items[1]." if method == "ClassifyBatch" else "item."
        assert message.startswith(f"{prefix}{field}: ")
    assert says in message


def test_wrong_fields_are_refused_over_http_too(three: RunningServer) -> None:
    wrong = {
        "targets: must be an array, got a string": {"text": "good", "targets": "film"},
        "targets[0]: must be a string, got a number": {"text": "good", "targets": [1]},
        "sentences: must be true or false, got a number": {"text": "good", "sentences": 1},
        "targets[1]: is the same as targets[0]; give each target once": {"text": "good", "targets": ["a", "a"]},
    }
    for message, body in wrong.items():
        assert call(three, "/v1/classify", body).error == (400, "INVALID_ARGUMENT", message)


def test_a_text_in_another_language_is_suspect(stub: Any) -> None:
    def suspect(text: str) -> bool:
        return classify(stub, "Classify", pb.Item(text=text), sentences=False).language_suspect

    assert suspect("le film xyz abc uvw")
    assert not suspect("the film and a good film")


# Explained


@pytest.mark.parametrize("text", [TEXT, "w1 " * 40 + TEXT + " w2" * 40])
def test_the_row_of_a_target_is_explained(three: RunningServer, stub: Any, root: Path, text: str) -> None:
    answered = classify(stub, "Classify", item(text=text), sentences=False).targets

    for answer in answered[:2]:
        header, *parts, _ = (one for one in stub.Explain(pb.ExplainRequest(text=text, target=answer.target)))
        assert header.header.prediction == answer.prediction
        assert (header.header.mention, len(header.header.tokens)) == (answer.mention, answer.tokens)
        assert parts[-1].reason.text.startswith(f"Towards “{answer.target}”: ")
        words = [text[word.span.code_point_start : word.span.code_point_end] for word in header.header.words]
        assert "great" in words
        assert text[answer.mention.code_point_start : answer.mention.code_point_end] not in words[: words.index("awful")]
        lines = call(three, "/v1/explain", {"text": text, "target": answer.target}).lines
        assert ParseDict(lines[0]["header"], pb.ExplanationHeader()) == header.header
        assert lines[-2]["reason"]["text"] == parts[-1].reason.text
        with Local("tiny", bundles=root, threads=1) as local, three.client() as client:
            ours, theirs = (either.explain(text, target=answer.target).to_json() for either in (local, client))
            assert theirs["target"] == answer.target
            assert [theirs.pop(name) for name in ("summary", "provider")] and [ours.pop(name) for name in ("summary", "provider")]
            assert ours == theirs


@pytest.mark.parametrize(
    ("request_", "code", "field", "says"),
    [
        ({"target": " \n"}, Code.INVALID_ARGUMENT, "target", "has 2 characters and none but white space"),
        ({"target": "\u00e9" * 65}, Code.INVALID_ARGUMENT, "target", "has 130 bytes; the limit is 128"),
        ({"target": "x" * 2**20}, Code.INVALID_ARGUMENT, "target", "has 1048576 bytes; the limit is 128"),
        ({"target": "\u200b"}, Code.INVALID_ARGUMENT, "target", "has 1 characters and none that the model reads"),
        ({"target": "service"}, Code.INVALID_ARGUMENT, "target", "is not named in the text"),
        ({"text": "Film", "target": "film"}, Code.INVALID_ARGUMENT, "target", "is all that the model reads of the text"),
        ({"text": "film " * 40, "target": "film", "truncation": 1}, Code.INVALID_ARGUMENT, "text", "truncation is refuse"),
    ],
)
def test_a_target_that_cannot_be_explained_is_refused(
    stub: Any, request_: dict[str, Any], code: grpc.StatusCode, field: str, says: str
) -> None:
    found, at, message = refusal(lambda: list(stub.Explain(pb.ExplainRequest(**{"text": TEXT, **request_}))))

    assert (found, at) == (code, field)
    assert says in message


def test_windows_as_the_way_to_read_a_long_text_do_not_matter_to_a_target(stub: Any) -> None:
    asked = pb.ExplainRequest(text="w1 " * 40 + TEXT, target="film", truncation=pb.TRUNCATION_WINDOWS)
    answer = classify(stub, "Classify", item(text=asked.text), sentences=False, truncation=pb.TRUNCATION_WINDOWS)

    assert next(iter(stub.Explain(asked))).header.prediction == answer.targets[0].prediction


# Counted


def test_a_text_in_parts_is_one_text_of_many_rows(three: RunningServer, stub: Any) -> None:
    classify(stub, "Classify", item())

    assert total(three, "predictions") == total(three, "requests", method="Classify", code="OK") == 1
    assert total(three, "deadline_outcome", outcome="met") == 1
    samples = {(sample.name, sample.labels.get("model")): sample.value for sample in three.samples()}
    assert samples["sentiment_batch_rows_sum", MODEL] == ROWS
    assert samples["sentiment_text_tokens_count", MODEL] == 1


# Rows that come and go together


@pytest.fixture
async def busy(start: Start, root: Path, hold: Hold, connect: Callable[[RunningServer], Any]) -> Busy:
    server = start(bundles=(root,), runners=1)
    set_cost(server, FixedCost(1e-3))
    busy = Busy(server, hold(server), connect(server))
    await busy.begin()
    return busy


def parted(busy: Busy, method: str) -> Any:
    """A call with one text in parts."""
    return ask(busy.stub, method, pb.ClassifyRequest(text=TEXT, sentences=True, targets=TARGETS))


@pytest.mark.parametrize("method", ["Classify", "ClassifyStream"])
async def test_leaving_while_the_answers_wait_to_be_converted_is_counted_once(
    busy: Busy, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = threading.Event()

    async def never(*_: object) -> None:
        waits.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(LoopTurns, "wait", never)
    monkeypatch.setattr(busy.server.streams, "_turns", SimpleNamespace(wait=lambda: asyncio.sleep(0)))
    monkeypatch.setattr(served_by(busy.server), "_turns", SimpleNamespace(wait=lambda _: asyncio.sleep(0)))
    asked = parted(busy, method)
    reading = asyncio.create_task(bounded(code_of(asked)))
    await queued(busy.server, ROWS)
    busy.gate.open()
    assert await asyncio.to_thread(waits.wait, PATIENCE_S)

    asked.cancel()

    await asyncio.wait({reading})
    await busy.assert_in_order(texts=2)
    assert total(busy.server, "deadline_outcome", outcome="cancelled") == 1


async def test_only_the_whole_of_an_interactive_text_is_interactive(busy: Busy) -> None:
    asked = send(parted(busy, "Classify"))
    await queued(busy.server, ROWS)

    waiting = {
        priority.value: sum(1 for _ in queue.waiting()) for priority, queue in served_by(busy.server).batcher.scheduler.queues.items()
    }

    assert waiting == {"interactive": 1, "bulk": ROWS - 1, "over": 0}
    busy.gate.open()
    assert len((await asked).sentences) == 3
    await busy.assert_in_order(texts=2)
