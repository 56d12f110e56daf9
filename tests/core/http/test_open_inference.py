"""The Open Inference Protocol over HTTP through a real server, beside the same calls over gRPC."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sentiment.doors.http import open_inference_bodies
from sentiment.doors.http.bodies import text_limits
from sentiment.doors.http.json_answers import INLINE_BYTES_MAX
from sentiment.doors.http.open_inference_bodies import JSON_LENGTH
from sentiment.oip import inference_pb2 as oip
from tests.conftest import RunningServer
from tests.core.grpc.conftest import hold
from tests.core.grpc.gate import Hold, Start, in_loop, refusal
from tests.core.grpc.test_oip import asked, labels_of, output_of, packed, stub, typed
from tests.core.http.http import Answer, call

__all__ = ["hold", "stub"]

INFER = "/v2/models/tiny/infer"
FULL = "2 calls are open, 0 of them this caller's; the limit is 2, and a caller gets at most as many as stay free"
OUTPUTS = ("label", "score", "scores")


def body_of(*texts: str, form: str = "data", **members: Any) -> tuple[bytes, dict[str, str]]:
    """A request's body with its headers; the texts in JSON, each in a list of its own, or binary."""
    raw = packed(*texts) if form == "binary" else b""
    shape = [len(texts), 1] if form == "nested" else [len(texts)]
    tensor: dict[str, Any] = {"name": "text", "datatype": "BYTES", "shape": shape}
    if form == "binary":
        tensor["parameters"] = {"binary_data_size": len(raw)}
    else:
        tensor["data"] = [[text] for text in texts] if form == "nested" else list(texts)
    head = json.dumps({"inputs": [tensor], **members}).encode()
    return head + raw, {JSON_LENGTH.replace("-", "_"): str(len(head))} if form == "binary" else {}


def infer(server: RunningServer, *texts: str, path: str = INFER, **members: Any) -> Answer:
    body, headers = body_of(*texts, **members)
    return call(server, path, body, **headers)


def tensors_of(answer: Answer) -> list[tuple[str, str, list[int], list[Any]]]:
    """Name, datatype, shape and elements of each output."""
    assert answer.status == 200, answer.body
    length = answer.headers.get(JSON_LENGTH)
    head, rest = (answer.body, b"") if length is None else (answer.body[: int(length)], answer.body[int(length) :])
    assert (length is None) is (answer.headers["Content-Type"] == "application/json")
    found = []
    for output in json.loads(head)["outputs"]:
        data = output.get("data")
        if data is None:
            size = output["parameters"]["binary_data_size"]
            raw, rest = rest[:size], rest[size:]
            data = elements_of(output["datatype"], raw)
        found.append((output["name"], output["datatype"], output["shape"], data))
    assert rest == b""
    return found


def elements_of(datatype: str, raw: bytes) -> list[Any]:
    return labels_of(raw) if datatype == "BYTES" else np.frombuffer(raw, "<f4").tolist()


# The tiny model's words, and anything that a text may have beside them.
TEXT = st.lists(st.sampled_from(["good", "bad", "awful", "great", "film"]) | st.text(st.characters(codec="utf-8"), max_size=8), max_size=6)


@given(
    texts=st.lists(TEXT.map(lambda words: " ".join(["film", *words])), min_size=1, max_size=5),
    form=st.sampled_from(["data", "nested", "binary"]),
    outputs=st.lists(st.tuples(st.sampled_from(OUTPUTS), st.booleans() | st.none()), max_size=3, unique_by=lambda output: output[0]),
    every=st.booleans() | st.none(),
    truncation=st.sampled_from([None, "head", "windows"]),
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_http_and_grpc_give_the_same_outputs(
    server: RunningServer,
    stub: Any,
    texts: list[str],
    form: str,
    outputs: list[tuple[str, bool | None]],
    every: bool | None,
    truncation: str | None,
) -> None:
    chosen = {} if truncation is None else {"truncation": oip.InferParameter(string_param=truncation)}
    over_grpc = stub.ModelInfer(asked(*texts, outputs=[output_of(name) for name, _ in outputs], parameters=chosen))

    over_http = infer(
        server,
        *texts,
        form=form,
        outputs=[{"name": name, "parameters": {"binary_data": binary}} for name, binary in outputs],
        parameters={"binary_data_output": every, "truncation": truncation},
    )

    found = tensors_of(over_http)
    assert [tensor[:3] for tensor in found] == [(one.name, one.datatype, list(one.shape)) for one in over_grpc.outputs]
    binary = [flag if flag is not None else bool(every) for _, flag in outputs] or [bool(every)] * 3
    length = over_http.headers.get(JSON_LENGTH)
    head = json.loads(over_http.body[: None if length is None else int(length)])
    assert [output.get("parameters") is not None for output in head["outputs"]] == binary
    for (name, datatype, _, elements), raw in zip(found, over_grpc.raw_output_contents, strict=True):
        expected = elements_of(datatype, raw)
        assert elements == (expected if name == "label" else pytest.approx(expected, abs=1e-6))


@dataclass(frozen=True)
class Wrong:
    """The same wrong request over both transports, and what names its field over HTTP."""

    over_grpc: oip.ModelInferRequest
    over_http: tuple[bytes, dict[str, str]]
    place: str


def wrong(*texts: str, place: str, form: str = "data", shape: Sequence[int] | None = None, **fields: Any) -> Wrong:
    """``fields``: parameters and outputs of the request, and name and datatype of its tensor."""
    body, headers = body_of(*texts, form=form)
    head = int(headers.get(JSON_LENGTH.replace("-", "_"), len(body)))
    values = json.loads(body[:head])
    message = asked(*texts) if form == "binary" else typed(*texts)
    for tensor in (message.inputs[0], values["inputs"][0]):
        for name in ("name", "datatype"):
            if name in fields:
                tensor.__setitem__(name, fields[name]) if isinstance(tensor, dict) else setattr(tensor, name, fields[name])
    if shape is not None:
        message.inputs[0].shape[:] = values["inputs"][0]["shape"] = list(shape)
    for name, value in fields.get("parameters", {}).items():
        kind = {str: "string_param", bool: "bool_param", int: "int64_param", float: "double_param"}[type(value)]
        setattr(message.parameters[name], kind, value)
    message.outputs.extend([output_of(name, **parameters) for name, parameters in fields.get("outputs", [])])
    values["parameters"] = fields.get("parameters")
    values["outputs"] = [{"name": name, "parameters": parameters} for name, parameters in fields.get("outputs", [])]
    whole = json.dumps(values).encode()
    return Wrong(message, (whole + body[head:], {name: str(len(whole)) for name in headers}), place)


@pytest.mark.parametrize(
    "request_",
    [
        wrong("good", name="x", place="inputs"),
        wrong("good", datatype="FP32", place="inputs[0].datatype"),
        wrong("good", shape=[], place="inputs[0].shape"),
        wrong("good", shape=[1, 2], place="inputs[0].shape"),
        wrong("good", shape=[1, 1, 1], place="inputs[0].shape"),
        wrong("good", shape=[-1], place="inputs[0].shape"),
        wrong("good", shape=[1025], place="inputs[0].shape"),
        wrong(place="inputs[0].shape"),
        wrong("good", shape=[2], place="inputs[0].data"),
        wrong("good", shape=[2], form="binary", place="inputs[0]"),
        wrong("good", "bad", shape=[1], form="binary", place="inputs[0]"),
        wrong("good", " ", place="text[1]"),
        wrong("good", "\x01", place="text[1]"),
        wrong("good", outputs=[("logits", {})], place="outputs[0].name"),
        wrong("good", outputs=[("label", {}), ("label", {})], place="outputs[1].name"),
        wrong("good", outputs=[("scores", {"classification": 1})], place="outputs[0].parameters"),
        wrong("good", parameters={"truncation": "tail"}, place="parameters.truncation"),
        wrong("good", parameters={"truncation": 5}, place="parameters.truncation"),
        wrong("good " * 100, parameters={"truncation": "refuse"}, place="text[0]"),
        wrong("good", parameters={"priority": "high"}, place="parameters.priority"),
        wrong("good", parameters={"priority": 1.5}, place="parameters.priority"),
        wrong("good", parameters={"timeout": -1}, place="parameters.timeout"),
        wrong("good", parameters={"timeout": True}, place="parameters.timeout"),
    ],
    ids=lambda request: request.place,
)
def test_a_wrong_request_gets_the_same_error_over_http_and_grpc(server: RunningServer, stub: Any, request_: Wrong) -> None:
    body, headers = request_.over_http
    code, field, message = refusal(lambda: stub.ModelInfer(request_.over_grpc, timeout=10))

    answer = call(server, INFER, body, **headers)

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert (answer.status, answer.headers["Content-Type"]) == (400, "application/json")
    assert answer.json == {"error": f"{request_.place}: {message.removeprefix(field + ': ')}"}
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/v2/", None, 404, "there is no route /v2/"),
        ("/v2/repository/index", b"", 404, "there is no route /v2/repository/index"),
        (INFER, None, 405, "/v2/models/tiny/infer does not take GET; it takes POST"),
        ("/v2/models/tiny", b"{}", 405, "/v2/models/tiny does not take POST; it takes GET, HEAD"),
    ],
)
def test_what_is_not_served_is_an_error_of_the_protocol(
    server: RunningServer, path: str, body: bytes | None, status: int, says: str
) -> None:
    answer = call(server, path, body)

    assert (answer.status, answer.json) == (status, {"error": says})


def test_a_server_that_is_not_ready_is_live_and_still_answers(start: Start) -> None:
    server = start()
    probes = ("/v2/health/live", "/v2/health/ready", "/v2/models/tiny/ready", "/v2/models/tiny/versions/1/ready")
    assert [call(server, path).status for path in probes] == [200, 200, 200, 200]

    in_loop(server, lambda: server.grpc.health.set_ready(False))

    answers = [call(server, path) for path in probes]
    assert [answer.status for answer in answers] == [200, 503, 503, 503]
    assert [answer.json for answer in answers] == [{"live": True}, *[{"ready": False}] * 3]
    assert infer(server, "good").status == 200
    assert call(server, "/v2/models/nosuch/ready").status == 404


async def test_probes_are_answered_however_many_calls_are_open(start: Start, hold: Hold) -> None:
    server = start(runners=1, calls_max=1)
    gate = hold(server)
    first = asyncio.create_task(asyncio.to_thread(infer, server, "good"))
    await gate.begun()

    refused = await asyncio.to_thread(infer, server, "good")
    probes = [await asyncio.to_thread(call, server, f"/v2/{path}") for path in ("health/live", "health/ready", "models/tiny/ready")]
    gate.open()

    assert (refused.status, [probe.status for probe in probes]) == (429, [200, 200, 200])
    assert (await first).status == 200


def test_a_large_body_is_read_and_a_large_answer_made_in_a_thread(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_loop: list[tuple[str, bool]] = []

    def seen(name: str) -> None:
        work = getattr(open_inference_bodies, name)

        def noted(*args: Any, **options: Any) -> Any:  # of either function
            in_the_loop.append((name, server.runs_here()))
            return work(*args, **options)

        monkeypatch.setattr(f"sentiment.doors.http.open_inference.{name}", noted)

    seen("asked_of")
    seen("answer_of")
    assert infer(server, "good").status == 200
    assert infer(server, "good " * INLINE_BYTES_MAX).status == 200
    assert infer(server, *["good"] * 500, form="binary").status == 200

    names, here = ["asked_of", "answer_of"] * 3, [True, True, False, True, False, False]
    assert in_the_loop == list(zip(names, here, strict=True))


def test_many_texts_have_the_room_that_they_have_over_grpc(start: Start) -> None:
    """Whatever the limit of one text is."""
    server = start(text_bytes_max=1000)
    texts = ["good" + " " * 900] * 300

    assert sum(map(len, texts)) > text_limits(1000, 0).bytes_max
    assert tensors_of(infer(server, *texts, form="binary", outputs=[{"name": "label"}]))[0][3] == ["positive"] * 300


def test_a_call_needs_a_token_where_one_is_set(start: Start, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("first-token-0123456789\n")
    server = start(auth_tokens=str(tokens), auth_exempt=("/v2/health/ready",))
    body, _ = body_of("good")

    for path, sent in ((INFER, body), ("/v2", None), ("/v2/health/live", None), ("/v2/nosuch", None)):
        refused = call(server, path, sent)
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert isinstance(refused.json["error"], str)
    assert call(server, "/v2/health/ready").status == 200
    assert call(server, INFER, body, Authorization="Bearer first-token-0123456789").status == 200


def test_it_is_off_where_only_metrics_are_served(start: Start) -> None:
    server = start(web="metrics")

    assert [call(server, path).status for path in ("/v2", "/v2/health/live", "/metrics")] == [404, 404, 200]
