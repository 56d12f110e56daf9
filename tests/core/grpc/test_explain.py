"""Explain, and explain in Classify, over the wire: a tiny random BERT with its real explain graph, and a model that has none."""

import asyncio
import json
import math
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.json_format import ParseDict

from sentiment.doors.grpc.receiving import Receiving
from sentiment.explain.methods.registry import METHODS
from sentiment.settings import Settings
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from sentiment_models.export.export import export
from tests.conftest import NO_RETRIES, RunningServer
from tests.core.grpc.gate import (
    MODEL,
    PATIENCE_S,
    Hold,
    Start,
    assert_nothing_left,
    fail_after,
    outcome_of,
    refusal,
    served_by,
    total,
    until,
)
from tests.models.tiny_families import TINY, save_tiny

Code = grpc.StatusCode
TEXT = "the film was not good at all , but i liked the end"
LONG = " ".join([TEXT] * 60)
MAX_TOKENS = 512
MESSAGE_BYTES_MAX = 2**16
MAPS = {"attention": {"encoding": "ATTENTION_ENCODING_FP32"}}
EVERYTHING = {
    "methods": METHODS,
    "attention": {},
    "attribution": {"steps": 4, "by_embedding": True},
    "counterfactuals": True,
    "heads": True,
    "neuron": {"layer": 1, "head": 2, "token": 3},
    "geometry": True,
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory, settings: Settings) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("explained")
    checkpoint = save_tiny(folder / "checkpoint", replace(TINY["bert"], positions=MAX_TOKENS))
    export(checkpoint, folder / "tiny" / "1", name="tiny", version=1, pairs=True, max_tokens=MAX_TOKENS)
    running = RunningServer(settings.model_copy(update={"bundles": (folder,), "deadline_default_s": 60.0}))
    yield running
    running.stop()


def stub_of(channel: grpc.Channel) -> Any:  # typed for another kind of channel
    return pb_grpc.SentimentServiceStub(channel)


def explain(server: RunningServer, text: str = TEXT, options: dict[str, Any] | None = None, **more: Any) -> list[pb.ExplainResponse]:
    timeout = more.pop("timeout", None)
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        return list(stub_of(channel).Explain(pb.ExplainRequest(text=text, options=options or {}, **more), timeout=timeout))


def classify(server: RunningServer, text: str = TEXT, explain: dict[str, Any] | None = None, **more: Any) -> pb.ClassifyResponse:
    with grpc.insecure_channel(server.target, NO_RETRIES) as channel:
        return stub_of(channel).Classify(pb.ClassifyRequest(text=text, explain=explain or {}, **more))


def parts(messages: list[pb.ExplainResponse]) -> list[str]:
    """Names of the messages' parts; all of them small enough, the header first and the summary last."""
    assert max(message.ByteSize() for message in messages) <= MESSAGE_BYTES_MAX
    names = [message.WhichOneof("part") for message in messages]
    assert [place for place, name in enumerate(names) if name in ("header", "summary")] == [0, len(names) - 1]
    return names[1:-1]


def assert_answers(server: RunningServer) -> None:
    """It explains as before, and nothing is left of what came before."""
    assert explain(server, options={"methods": ["occlusion"]})[-1].summary.complete
    assert server.metric("sentiment_explanations", model=MODEL) == 0
    assert_nothing_left(server)


def test_every_requested_part_is_sent(bert: RunningServer) -> None:
    messages = explain(bert, options=EVERYTHING)

    names = parts(messages)
    assert {name: names.count(name) for name in set(names)} == {
        "tile": 8,
        "neuron": 1,
        "geometry": 3,
        "attribution": len(METHODS),
        "evidence": len(METHODS),
        "deciding": 1,
        "reason": 1,
        "counterfactual": 2,
        "heads": 1,
    }
    header, summary = messages[0].header, messages[-1].summary
    words = TEXT.split()
    assert [TEXT.encode()[word.span.byte_start : word.span.byte_end].decode() for word in header.words] == words
    assert header.labels_agree
    assert header.HasField("logit_error")
    attributions = [message.attribution for message in messages if message.HasField("attribution")]
    assert [attribution.method for attribution in attributions] == list(METHODS)
    for attribution in attributions:
        assert [word.span for word in attribution.words] == [word.span for word in header.words]
    gradients = attributions[0]
    split = np.array([gradients.token_embedding, gradients.segment_embedding, gradients.position_embedding])
    assert split.sum(0) == pytest.approx(np.array(gradients.tokens), abs=1e-5)
    assert abs(gradients.completeness_residual) < 1
    assert (summary.complete, list(summary.notes)) == (True, [])
    assert summary.run.ToNanoseconds() > 0


def test_empty_options_mean_the_default_attribution_with_evidence(bert: RunningServer) -> None:
    messages = explain(bert)

    assert parts(messages) == ["attribution", "evidence", "deciding", "reason"]
    assert messages[1].attribution.method == METHODS[0]


def test_estimates_come_before_the_attribution_if_they_are_asked_for(bert: RunningServer) -> None:
    asked = {"methods": ["shapley"], "estimates": True}
    found = [message.attribution for message in explain(bert, options=asked) if message.HasField("attribution")]

    assert [one.HasField("estimate") for one in found] == [True, True, False]
    assert {one.method for one in found} == {"shapley"}
    assert [one.steps for one in found] == [0, 10, 20]


def test_the_maps_of_a_long_text_are_complete_in_small_messages(bert: RunningServer) -> None:
    messages = explain(bert, LONG, MAPS)

    assert set(parts(messages)) == {"tile"}
    assert messages[0].header.truncated
    assert len(messages[0].header.tokens) == MAX_TOKENS
    assert [unseen.span.code_point_end for unseen in messages[0].header.unseen] == [len(LONG)]
    maps = np.zeros((2, 4, MAX_TOKENS, MAX_TOKENS), np.float32)
    for message in messages[1:-1]:
        tile = message.tile
        weights = np.frombuffer(tile.weights, "<f4").reshape(tile.rows, tile.columns)
        maps[tile.layer, tile.head, tile.row_start : tile.row_start + tile.rows, tile.column_start : tile.column_start + tile.columns] = (
            weights
        )
    assert maps.sum(-1) == pytest.approx(1, abs=1e-4)
    assert sum(message.ByteSize() for message in messages) <= 128 * 2**20


# One of each part that checks: the explainer before and after it has read the text, the conversion, and the budget.
# tests/core/explain and test_explanations_convert.py have the others.
BAD = [
    ({"methods": ["magic"]}, "methods[0]", "'magic'"),
    ({"neuron": {"token": 512}}, "neuron.token", "512"),
    ({"attention": {"encoding": 99}}, "attention.encoding", "must be 0 to 4, got 99"),
    ({"attention": {"top_p": math.nan}}, "attention.top_p", "nan"),
    ({"bytes_max": 100}, "bytes_max", "100"),
    ({"bytes_max": 2**31 - 1}, "bytes_max", "must be 1 to "),
]


@pytest.mark.parametrize(("options", "field", "message"), BAD)
def test_a_bad_option_is_refused_by_its_field(bert: RunningServer, options: dict[str, Any], field: str, message: str) -> None:
    for prefix, method, call in (
        ("options.", "Explain", lambda: explain(bert, options=options)),
        ("explain.", "Classify", lambda: classify(bert, explain=options)),
    ):
        before = total(bert, "requests"), total(bert, "requests", method=method, code="INVALID_ARGUMENT")

        code, found, said = refusal(call)

        assert (code, found) == (Code.INVALID_ARGUMENT, prefix + field)
        assert said.startswith(f"{prefix}{field}: ")
        assert message in said
        assert (total(bert, "requests"), total(bert, "requests", method=method, code="INVALID_ARGUMENT")) == (before[0] + 1, before[1] + 1)
    assert_answers(bert)


def test_a_bad_label_text_or_truncation_is_refused_by_its_field(bert: RunningServer) -> None:
    windows = pb.TRUNCATION_WINDOWS
    refused = [
        (lambda: explain(bert, label="meh"), "label", "is 'meh'; the model's labels are negative, positive"),
        (lambda: explain(bert, " "), "text", "has 1 characters and none but white space"),
        (lambda: explain(bert, truncation=99), "truncation", "must be 0 to 4, got 99"),
        (lambda: explain(bert, LONG, truncation=pb.TRUNCATION_REFUSE), "text", "has more tokens than the model reads"),
        (lambda: explain(bert, LONG, truncation=windows), "truncation", "windows"),
        (lambda: classify(bert, truncation=windows), "truncation", "windows"),
    ]

    for call, field, message in refused:
        code, found, said = refusal(call)

        assert (code, found) == (Code.INVALID_ARGUMENT, field)
        assert message in said
    assert explain(bert, truncation=windows)[-1].summary.complete
    assert_answers(bert)


def test_a_byte_limit_that_is_too_small_is_refused_with_the_bytes_needed(bert: RunningServer) -> None:
    _, _, said = refusal(lambda: explain(bert, options={**EVERYTHING, "bytes_max": 1000}))

    wanted = max(int(number) for number in "".join(sign if sign.isdigit() else " " for sign in said).split())
    messages = explain(bert, options={**EVERYTHING, "bytes_max": wanted})
    assert sum(message.ByteSize() for message in messages) <= wanted
    assert refusal(lambda: explain(bert, options={**EVERYTHING, "bytes_max": wanted - 1}))[:2] == (
        Code.INVALID_ARGUMENT,
        "options.bytes_max",
    )


def test_what_a_model_does_not_support_fails_its_precondition(server: RunningServer) -> None:
    for call, message in (
        (lambda: explain(server, text_pair="bad"), "model tiny/1 reads one text; a pair was given"),
        (lambda: explain(server, options={"attention": {}}), "attention needs an explain graph; bundle tiny/1 has none"),
        (lambda: explain(server, options={"methods": [METHODS[0]]}), "integrated_gradients needs an explain graph"),
        (
            lambda: classify(server, explain={"heads": True, "neuron": {}, "geometry": True}),
            "neuron, heads, geometry need an explain graph",
        ),
    ):
        code, field, said = refusal(call)

        assert (code, field) == (Code.FAILED_PRECONDITION, "")
        assert said.startswith(message)
    assert refusal(lambda: explain(server, model="nosuch"))[0] is Code.NOT_FOUND
    assert_answers(server)


def test_models_say_what_they_explain_and_a_server_that_does_not_explain_refuses(
    bert: RunningServer, server: RunningServer, start: Start
) -> None:
    described, silent = [], start(explain=False)
    for running in (bert, server, silent):
        with grpc.insecure_channel(running.target) as channel:
            described.append(stub_of(channel).GetModel(pb.GetModelRequest()).model)
            assert stub_of(channel).ListModels(pb.ListModelsRequest()).models[0].explanation_methods == described[-1].explanation_methods

    assert [list(model.explanation_methods) for model in described] == [list(METHODS), ["occlusion", "shapley", "two_step_shapley"], []]
    assert [(model.layers, model.heads) for model in described] == [(2, 4), (0, 0), (0, 0)]
    limits = [(model.limits.explanation_bytes, model.limits.classify_explanation_bytes) for model in described]
    assert limits == [(128 * 2**20, 7 * 2**19)] * 2 + [(0, 0)]
    for call in (lambda: explain(silent), lambda: classify(silent, explain={})):
        code, _, said = refusal(call)
        assert code is Code.FAILED_PRECONDITION
        assert said.startswith("explanations are off on this server (SENTIMENT_EXPLAIN), or ")


def test_classify_explains_its_answer_in_one_message(bert: RunningServer) -> None:
    response = classify(bert, explain=EVERYTHING)

    explanation = response.explanation
    assert explanation.header.prediction.label == response.prediction.label
    assert explanation.header.prediction.score == pytest.approx(response.prediction.score, abs=1e-2)
    assert [attribution.method for attribution in explanation.attributions] == list(METHODS)
    assert [evidence.method for evidence in explanation.evidence] == list(METHODS)
    assert (len(explanation.counterfactuals), len(explanation.tiles), len(explanation.neuron), len(explanation.geometry)) == (2, 8, 1, 3)
    assert explanation.heads.exact
    assert explanation.summary.complete
    assert response.timing.total.ToNanoseconds() > explanation.summary.run.ToNanoseconds()


def test_an_explanation_in_classify_stays_under_4_mib_or_is_refused(bert: RunningServer) -> None:
    code, field, said = refusal(lambda: classify(bert, LONG, MAPS))
    response = classify(bert, LONG, {"attention": {}})

    assert (code, field) == (Code.INVALID_ARGUMENT, "explain.bytes_max")
    assert str(7 * 2**19) in said
    assert 2 * 2**20 < response.ByteSize() < 4 * 2**20
    assert response.truncated
    assert response.explanation.header.truncated


@pytest.mark.parametrize("words", [[[4]], [[0, 1, 2, 3, 4, 5], [5], [4, 1]]])
def test_the_answer_without_words_needs_no_explain_graph(server: RunningServer, words: list[list[int]]) -> None:
    text = "good good bad w3 bad film"
    options = {"without": [{"words": chosen} for chosen in words]}
    with server.client() as client:
        # The tiny model adds up its words; the empty text has no answer of its own.
        left = [" ".join(word for place, word in enumerate(text.split()) if place not in chosen) for chosen in words]
        wanted = [client.classify(rest).label if rest else None for rest in left]

    _, *parts, end = explain(server, text, options)

    found = [message.counterfactual for message in parts]
    assert [list(part.words) for part in found] == [sorted(chosen) for chosen in words]
    assert {part.kind for part in found} == {pb.COUNTERFACTUAL_KIND_ASKED}
    assert all(part.label == label for part, label in zip(found, wanted, strict=True) if label)
    assert end.summary.complete
    assert list(classify(server, text, options).explanation.counterfactuals) == found


def test_batches_and_streams_are_not_explained(server: RunningServer) -> None:
    options = pb.ExplainOptions()
    item = pb.ClassifyStreamRequest(item=pb.Item(text="good"), options=pb.StreamOptions(explain=options))
    with grpc.insecure_channel(server.target) as channel:
        stub = stub_of(channel)

        code, _, said = refusal(lambda: stub.ClassifyBatch(pb.ClassifyBatchRequest(items=[pb.Item(text="good")], explain=options)))
        (streamed,) = stub.ClassifyStream(iter([item]))

    assert code is Code.UNIMPLEMENTED
    assert said == "only Classify and Explain explain, one text per call; leave explain unset"
    assert (streamed.error.code, streamed.error.message) == (Code.UNIMPLEMENTED.value[0], said)


def test_parts_without_time_are_left_out(bert: RunningServer) -> None:
    assert_answers(bert)
    before = total(bert, "requests", method="Explain", code="OK")

    messages = explain(bert, LONG, {"methods": ["shapley", "occlusion"], "attribution": {"steps": 256}}, timeout=4.0)

    parts(messages)
    summary = messages[-1].summary
    assert not summary.complete
    assert summary.notes
    assert total(bert, "requests", method="Explain", code="OK") == before + 1


@pytest.fixture
def channel(start: Start, connect: Callable[[RunningServer], Any]) -> tuple[RunningServer, Any]:
    """A server of one runner, whose model a test may hold, and a stub."""
    server = start(runners=1)
    return server, connect(server)


async def test_a_deadline_that_passes_in_a_run_ends_the_call_once(channel: Any, hold: Hold) -> None:
    server, stub = channel
    gate = hold(server)

    call = stub.Explain(pb.ExplainRequest(text="a good film"), timeout=0.3)
    await gate.begun()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [message async for message in call]
    await until(lambda: total(server, "requests", method="Explain") == 1, "the call is counted")
    gate.open()

    assert caught.value.code() is Code.DEADLINE_EXCEEDED
    assert total(server, "requests", method="Explain", code="DEADLINE_EXCEEDED") == 1
    await until(lambda: server.metric("sentiment_explanations", model=MODEL) == 0, "nothing is left")
    await asyncio.to_thread(assert_answers, server)


def test_each_connection_is_a_caller_of_explanations(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    explaining = served_by(server).explaining
    asked, callers = explaining.explain, []

    def record(request: Any, deadline_at: float, caller: str) -> Any:
        callers.append(caller)
        return asked(request, deadline_at, caller)

    monkeypatch.setattr(explaining, "explain", record)
    for _ in range(2):
        with grpc.insecure_channel(server.target, [*NO_RETRIES, ("grpc.use_local_subchannel_pool", 1)]) as channel:
            list(stub_of(channel).Explain(pb.ExplainRequest(text="good")))
            stub_of(channel).Classify(pb.ClassifyRequest(text="good", explain={}))

    first, second = callers[0], callers[2]
    assert callers == [first, first, second, second]
    assert first.startswith("ipv4:127.0.0.1:")
    assert first != second


@pytest.mark.parametrize("method", ["Explain", "Classify"])
@pytest.mark.parametrize("runs", [0, 1])
async def test_leaving_withdraws_the_explanation(channel: Any, hold: Hold, method: str, runs: int) -> None:
    """``runs``: of the explanation, before the client leaves in the next one."""
    server, stub = channel
    gate = hold(server)
    begun = runs + 1 + (method == "Classify")
    options = pb.ExplainOptions(methods=["shapley"])

    text = "a good film and the awful w3"
    if method == "Explain":
        call = stub.Explain(pb.ExplainRequest(text=text, options=options))
        waiting = asyncio.create_task(call.read())
    else:
        call = stub.Classify(pb.ClassifyRequest(text=text, explain=options))
        waiting = asyncio.create_task(outcome_of(call))
    for _ in range(begun - 1):
        await gate.begun()
        gate.let()
    await gate.begun()
    if method == "Explain" and runs:
        assert (await waiting).HasField("header")
    # It would wait behind the first.
    second = asyncio.create_task(asyncio.to_thread(explain, server, "great"))
    await until(lambda: server.metric("sentiment_explanations", model=MODEL) == 2, "both are there")
    call.cancel()
    await until(lambda: total(server, "requests", code="CANCELLED") == 1, "the server knows that the client has left")
    gate.open()

    await asyncio.wait({waiting})
    assert (await second)[-1].summary.complete
    assert total(server, "requests", method=method, code="CANCELLED") == 1
    assert total(server, "requests") == 2
    await asyncio.to_thread(assert_answers, server)


async def test_a_client_that_does_not_read_is_ended_at_the_deadline(channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages are padded until no buffer on the way takes more. It gives no deadline: the server's default counts."""
    server, stub = channel
    calls = server.calls
    monkeypatch.setattr(calls, "limits", replace(calls.limits, deadline_default_s=0.5))
    write = Receiving.write

    async def padded(receiving: Receiving, context: Any, caller: str, message: bytes) -> None:
        await write(receiving, context, caller, message + b"\0" * 2**24)

    monkeypatch.setattr(Receiving, "write", padded)

    call = stub.Explain(pb.ExplainRequest(text="a good film"))
    await call.wait_for_connection()
    await until(lambda: total(server, "requests", method="Explain", code="DEADLINE_EXCEEDED") == 1, "the call has ended")
    call.cancel()
    monkeypatch.undo()

    await asyncio.to_thread(assert_answers, server)


async def test_a_run_that_fails_ends_the_stream_after_the_messages_before(channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, stub = channel
    fail_after(server, monkeypatch, runs=1)
    call = stub.Explain(pb.ExplainRequest(text="a good film"), timeout=PATIENCE_S)

    first = await call.read()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    monkeypatch.undo()

    assert first.header.prediction.label == "positive"
    assert caught.value.code() is Code.INTERNAL
    assert "kernel" not in caught.value.details()
    assert total(server, "requests", method="Explain", code="INTERNAL") == 1
    await asyncio.to_thread(assert_answers, server)


def test_http_gives_the_same_messages_a_line_each(bert: RunningServer) -> None:
    options = {"methods": ["integrated_gradients"], "attention": {"aggregation": "ATTENTION_AGGREGATION_HEAD_MEAN"}}
    body = json.dumps({"text": TEXT, "options": options}).encode()

    with urllib.request.urlopen(urllib.request.Request(bert.url + "/v1/explain", body), timeout=PATIENCE_S) as response:
        lines = [json.loads(line) for line in response]
        assert response.headers["Content-Type"] == "application/x-ndjson"
        assert response.headers["x-request-id"]

    messages = explain(bert, options=options)
    assert [next(iter(line)) for line in lines] == [message.WhichOneof("part") for message in messages]
    assert pb.ExplainResponse(tile={}) != messages[1]
    for line, message in zip(lines[:-1], messages[:-1], strict=True):
        assert ParseDict(line, pb.ExplainResponse()) == message
