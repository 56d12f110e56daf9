"""Texts of which a part may suffice, through a real server: every way answers alike, and says what was read."""

import asyncio
import json
import math
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from sentiment import Local
from sentiment.client import AsyncClient, Client, ExplainOptions, Prediction
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from tests.conftest import RunningServer
from tests.core.grpc.gate import Start
from tests.tiny import EFFORT, make_bundle

PROVEN = {"texts": 1500, "early": 900, "differ": 4, "bound": 0.00609, "cost": 0.7}
# The words at both ends are a part of the first and of the second; that of the second says little. The third has too few tokens.
CLEAR = " ".join(["good"] * 4 + ["awful"] * 9 + ["good"] * 4)
UNCLEAR = " ".join(["film"] * 4 + ["w9"] + ["film"] * 4)
SHORT = "good " * 7
# What is read of each, and whether it was a part.
READ = {CLEAR: (8, True), UNCLEAR: (11, False), SHORT: (9, False)}
OCCLUSION = ExplainOptions(methods=("occlusion",), evidence=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("effort")
    make_bundle(root, effort=EFFORT | {"proven": {"made-up": PROVEN}})
    return root


@pytest.fixture
def server(start: Start, root: Path) -> RunningServer:
    return start(bundles=(root,))


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with server.client() as client:
        yield client


def read(answer: Any) -> tuple[int, bool]:
    return answer.tokens, answer.early


async def streamed(server: RunningServer) -> list[Any]:
    async def items() -> AsyncIterator[tuple[str, str]]:
        for text in READ:
            yield text, text

    async with AsyncClient(server.target) as client:
        found = {item_id: result async for item_id, result in client.classify_stream(items(), effort="adaptive")}
    return [found[text] for text in READ]


def test_every_way_reads_the_same_of_a_text(server: RunningServer, client: Client, root: Path) -> None:
    web = []
    for text in READ:
        body = json.dumps({"text": text, "effort": "EFFORT_ADAPTIVE"}).encode()
        with urllib.request.urlopen(urllib.request.Request(server.url + "/v1/classify", body), timeout=60) as response:
            web.append(json_format.Parse(response.read(), pb.ClassifyResponse()))
    with Local("tiny", bundles=[root]) as local:
        inside = list(local.classify_all(list(READ), effort="adaptive"))

    ways = [
        [client.classify(text, effort="adaptive") for text in READ],
        client.classify_batch(list(READ), effort="adaptive"),
        asyncio.run(streamed(server)),
        inside,
    ]

    for answers in ways:
        assert list(map(read, answers)) == list(READ.values())
        assert [dict(answer.scores) for answer in answers] == [dict(answer.scores) for answer in inside]
    assert list(map(read, web)) == list(READ.values())
    assert server.metric("sentiment_early_texts_total", model="tiny/1") == 4


def test_a_text_is_read_in_full_unless_it_is_asked_for(client: Client) -> None:
    full = client.classify(CLEAR)

    assert read(full) == (19, False)
    assert client.classify(CLEAR, effort="full").scores == full.scores
    # The words in its middle turn the answer.
    assert full.label != client.classify(CLEAR, effort="adaptive").label


def test_a_part_that_does_not_suffice_changes_no_bit(client: Client) -> None:
    assert client.classify(UNCLEAR, effort="adaptive").scores == client.classify(UNCLEAR).scores


@pytest.mark.parametrize("options", [{"sentences": True}, {"truncation": "windows"}])
def test_texts_in_several_rows_are_read_in_full(client: Client, options: dict[str, Any]) -> None:
    answer = client.classify(CLEAR + " good" * 60, effort="adaptive", **options)

    assert not answer.early


def test_only_the_truncation_that_the_rule_is_proved_for_reads_a_cut_text_in_parts(client: Client) -> None:
    text = " ".join(["good"] * 40)

    early = {way: client.classify(text, effort="adaptive", truncation=way).early for way in ("", "head", "head_tail")}

    # The tiny model's default is head.
    assert early == {"": True, "head": True, "head_tail": False}
    assert client.classify(CLEAR, effort="adaptive", truncation="head_tail").early


@pytest.mark.parametrize("truncation", ["windows", "refuse"])
def test_who_asks_for_all_of_a_text_gets_it_also_of_one_that_fits(client: Client, truncation: str) -> None:
    assert read(client.classify(CLEAR, effort="adaptive", truncation=truncation)) == (19, False)
    assert client.explain(CLEAR, truncation=truncation, options=OCCLUSION).adaptive is None


def test_an_answer_that_is_explained_is_read_in_full(client: Client, root: Path) -> None:
    with Local("tiny", bundles=[root]) as local:
        answers = [either.classify(CLEAR, effort="adaptive", explain=OCCLUSION) for either in (client, local)]

    assert [(answer.early, answer.tokens) for answer in answers] == [(False, 19)] * 2
    assert all(answer.explanation is not None and answer.label == answer.explanation.label for answer in answers)


def test_an_explanation_has_the_answer_of_adaptive_effort_where_it_differs(client: Client, root: Path) -> None:
    with Local("tiny", bundles=[root]) as local:
        for either in (client, local):
            early, found = either.classify(CLEAR, effort="adaptive"), either.explain(CLEAR, options=OCCLUSION)
            told = found.adaptive

            assert told is not None
            assert told == Prediction(early.label, early.score, early.scores, early.abstain, mixed=early.mixed)
            assert told.label != found.label
            assert found.to_json()["adaptive"]["label"] == told.label


def test_an_abstention_that_the_full_reading_alone_has_is_another_answer(client: Client) -> None:
    found = client.explain(" ".join(["good"] * 4 + ["bad"] * 8 + ["good"] * 4 + ["w1"]), options=OCCLUSION)

    assert found.adaptive is not None
    assert (found.label, found.abstain, found.adaptive.label, found.adaptive.abstain) == ("positive", True, "positive", False)


# Of the last, the part has another label, but does not suffice.
@pytest.mark.parametrize("text", [UNCLEAR, SHORT, "good " * 17, "film film film film great film film film film"])
def test_an_explanation_has_no_other_answer_where_adaptive_effort_gives_the_same(client: Client, text: str) -> None:
    assert client.explain(text, options=OCCLUSION).adaptive is None


def test_a_text_that_is_cut_in_another_way_than_the_rule_is_proved_for_has_no_other_answer(client: Client) -> None:
    # Whichever way it is cut, its ends are good and what is between them is not.
    text = " ".join(["good"] * 4 + ["awful"] * 22 + ["good"] * 4 + ["awful"] * 30 + ["good"] * 4)

    own, other = (client.explain(text, truncation=way, options=OCCLUSION) for way in ("", "head_tail"))

    assert [(found.label, found.truncated) for found in (own, other)] == [("negative", True)] * 2
    assert own.adaptive is not None
    assert own.adaptive.label == "positive"
    assert other.adaptive is None


def test_an_explanation_runs_no_part_without_a_rule(start: Start, client: Client) -> None:
    with start().client() as other:
        plain, ruled = (either.explain(CLEAR, options=OCCLUSION) for either in (other, client))

    assert plain.adaptive is None
    assert ruled.summary.served_rows == plain.summary.served_rows + 1


def test_the_servers_default_may_be_adaptive_also_for_open_inference(start: Start, root: Path, tmp_path: Path) -> None:
    server = start(bundles=(root,), effort="adaptive", journal=str(tmp_path / "journal"))
    body = json.dumps({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [CLEAR]}]}).encode()
    request = urllib.request.Request(server.url + "/v2/models/tiny/infer", body)

    with urllib.request.urlopen(request, timeout=60) as response:
        outputs = {one["name"]: one["data"] for one in json.load(response)["outputs"]}
    with server.client() as client:
        early, full = client.classify(CLEAR), client.classify(CLEAR, effort="full")

        judged = [client.feedback(early.label, text=CLEAR)]

    assert (early.early, full.early) == (True, False)
    assert outputs["label"] == [early.label] != [full.label]
    # Feedback about a text is about the answer that it got.
    assert [(one.predicted, one.right) for one in judged] == [(early.label, True)]


def test_a_model_without_a_rule_reads_in_full_and_says_so(start: Start) -> None:
    with start().client() as client:
        model, answer = client.get_model(), client.classify(CLEAR, effort="adaptive")

    assert not model.HasField("adaptive")
    assert read(answer) == (19, False)


def test_the_model_states_its_rule_and_what_it_was_proved_on(client: Client) -> None:
    found = client.get_model().adaptive

    assert (found.head, found.tail, found.tokens_min, found.log_odds) == (4, 4, 10, 3.0)
    (one,) = found.proven
    assert (one.domain, one.texts, one.early, one.differ) == ("made-up", 1500, 900, 4)
    assert math.isclose(one.bound, 0.00609, rel_tol=1e-6)


def test_an_unknown_effort_is_invalid(server: RunningServer) -> None:
    request = pb.ClassifyRequest(text="good")
    request.effort = 7  # type: ignore[assignment]  # as another client may send it

    with grpc.insecure_channel(server.target) as channel, pytest.raises(grpc.RpcError) as caught:
        pb_grpc.SentimentServiceStub(channel).Classify(request)

    assert "effort: must be 0 to 2, got 7" in caught.value.details()
    with server.client() as client, pytest.raises(ValueError, match="effort must be full, adaptive, or empty"):
        client.classify("good", effort="some")


def test_the_journal_says_what_sufficed(start: Start, root: Path, tmp_path: Path) -> None:
    server = start(bundles=(root,), journal=str(tmp_path))
    with server.client() as client:
        client.classify(CLEAR, effort="adaptive")
        client.classify(CLEAR)
    server.stop()

    lines = [json.loads(line) for file in sorted(tmp_path.iterdir()) for line in file.read_text().splitlines()]

    assert [(line["tokens"], line["early"]) for line in lines if line["journal"] == "answer"] == [(19, True), (19, False)]
