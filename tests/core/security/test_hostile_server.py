"""A server that sends what a terminal acts on: nothing of it reaches the terminal, or the header of a table."""

import argparse
import csv
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from sentiment.cli import main, models
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc

# Clears the screen, in the two spellings of its beginning; sets the window's title; turns the direction; begins another line.
EVIL = "\x1b[2J\x9b2J\x1b]0;title\x07\u202e\r\nerror: forged"
ACTED_ON = set("\x1b\x9b\x07\u202e\r")


class Hostile(pb_grpc.SentimentServiceServicer):
    """Answers one text, and refuses the others."""

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> pb.GetModelResponse:  # noqa: N802  # the proto's
        return pb.GetModelResponse(model=pb.Model(id=pb.ModelId(name=EVIL, version=1, digest=EVIL), labels=[EVIL, "b"], max_tokens=32))

    def Classify(self, request: pb.ClassifyRequest, context: grpc.ServicerContext) -> pb.ClassifyResponse:  # noqa: N802  # as above
        if request.text == "refused":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, EVIL)
        scores = [pb.LabelScore(label=EVIL, score=0.9), pb.LabelScore(label="b", score=0.1)]
        model = pb.ModelId(name=EVIL, version=1, digest=EVIL)
        return pb.ClassifyResponse(prediction=pb.Prediction(label=EVIL, score=0.9, scores=scores), model=model, tokens=3)

    def ClassifyBatch(self, request: pb.ClassifyBatchRequest, context: grpc.ServicerContext) -> pb.ClassifyBatchResponse:  # noqa: N802
        results = [pb.ClassifyResult(response=self.Classify(pb.ClassifyRequest(text=item.text), context)) for item in request.items]
        return pb.ClassifyBatchResponse(results=results)


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    pb_grpc.add_SentimentServiceServicer_to_server(Hostile(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


@pytest.mark.parametrize("more", [("good",), ("good", "bad"), ("--json", "good"), ("refused",), ("--json", "good", "refused")])
def test_classify_shows_no_control_character(target: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    main.main(["classify", "--target", target, "--timeout", "5s", *more])

    shown = capsys.readouterr()
    assert shown.out + shown.err
    assert not ACTED_ON & set(shown.out + shown.err)
    assert not [line for line in (shown.out + shown.err).splitlines() if line == "error: forged"]


def test_a_table_has_no_control_character_in_its_header(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.txt").write_text("good\nbad\n")

    assert main.main(["classify", "--target", target, "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.csv")]) == 0

    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as stream:
        header = next(csv.reader(stream))
    assert r"score_\x1b[2J\x9b2J" in " ".join(header)
    assert not (ACTED_ON | {"\n"}) & set("".join(header))
    assert not ACTED_ON & set(capsys.readouterr().err)


def test_a_list_of_models_shows_no_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    class Client:
        def index(self) -> list[Any]:
            return [argparse.Namespace(name=EVIL, version="1", state=EVIL, reason=EVIL)]

    models._print_index(Client())  # type: ignore[arg-type]  # all that it uses

    assert not (ACTED_ON | {"\n"}) & set(capsys.readouterr().out[:-1])
