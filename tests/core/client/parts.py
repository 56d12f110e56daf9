"""A server that answers sentences and targets by a rule, for what callers see of them; it needs no model."""

# ruff: noqa: N802 - gRPC's names

import re
from collections.abc import Iterable, Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc

from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc

LABELS = ("negative", "positive", "neutral")
# Sentences that have an answer.
SENTENCES_MAX = 4
# How texts begin that are answered at the end of a stream.
LATE = "late: "
# The health service, for which the client's default configuration waits, is not there.
UNCHECKED = [("grpc.service_config", "{}"), ("grpc.use_local_subchannel_pool", 1)]


def predicted(text: str) -> pb.Prediction:
    """Positive with "good", negative with "bad", mixed with both."""
    good, bad = "good" in text.lower(), "bad" in text.lower()
    label = "positive" if good else "negative" if bad else "neutral"
    scores = [pb.LabelScore(label=name, score=0.75 if name == label else 0.125) for name in LABELS]
    return pb.Prediction(label=label, score=0.75, scores=scores, mixed=good and bad)


def span(text: str, start: int, end: int) -> pb.Span:
    """The range of code points in all units."""
    bytes_before, bytes_after = (len(text[:place].encode()) for place in (start, end))
    utf16_before, utf16_after = (len(text[:place].encode("utf-16-le")) // 2 for place in (start, end))
    return pb.Span(
        code_point_start=start,
        code_point_end=end,
        utf16_start=utf16_before,
        utf16_end=utf16_after,
        byte_start=bytes_before,
        byte_end=bytes_after,
    )


def answered(text: str, sentences: bool, targets: Iterable[str]) -> pb.ClassifyResponse:
    """An answer with what was asked for. What is not ASCII makes the language suspect."""
    response = pb.ClassifyResponse(prediction=predicted(text), tokens=len(text.split()) + 2, language_suspect=not text.isascii())
    response.model.CopyFrom(pb.ModelId(name="english", version=2, digest="0" * 64))
    found = [(match.start(), match.end()) for match in re.finditer(r"\S[^.]*\.?", text)] if sentences else []
    response.sentences_total = len(found)
    for start, end in found[:SENTENCES_MAX]:
        response.sentences.add(span=span(text, start, end), prediction=predicted(text[start:end]), tokens=5)
    for target in targets:
        at = text.lower().find(target.lower())
        if at < 0:
            scores = [pb.LabelScore(label=name, score=float(name == "neutral")) for name in LABELS]
            response.targets.add(target=target, prediction=pb.Prediction(label="neutral", score=1.0, scores=scores))
        else:
            around = next(match[0] for match in re.finditer(r"[^.,]+", text) if match.end() > at)
            mention = span(text, at, at + len(target))
            response.targets.add(target=target, prediction=predicted(around), named=True, mention=mention, tokens=9)
    return response


class Parts(pb_grpc.SentimentServiceServicer):
    """Answers every call. ``able``: False for a server before 0.2, which knows neither sentences nor targets."""

    def __init__(self, able: bool) -> None:
        self._able = able

    def _answered(self, item: pb.ClassifyRequest | pb.Item, sentences: bool) -> pb.ClassifyResponse:
        return answered(item.text, sentences and self._able, item.targets if self._able else ())

    def Classify(self, request: pb.ClassifyRequest, context: grpc.ServicerContext) -> pb.ClassifyResponse:
        return self._answered(request, request.sentences)

    def ClassifyBatch(self, request: pb.ClassifyBatchRequest, context: grpc.ServicerContext) -> pb.ClassifyBatchResponse:
        return pb.ClassifyBatchResponse(
            results=[pb.ClassifyResult(response=self._answered(item, request.sentences)) for item in request.items]
        )

    def ClassifyStream(
        self, requests: Iterable[pb.ClassifyStreamRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.ClassifyStreamResponse]:
        late = []
        for request in requests:
            response = pb.ClassifyStreamResponse(id=request.id, response=self._answered(request.item, request.options.sentences))
            if request.item.text.startswith(LATE):
                late.append(response)
            else:
                yield response
        yield from late

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> pb.GetModelResponse:
        limits = pb.Limits(sentences=SENTENCES_MAX, targets=16) if self._able else pb.Limits()
        model = pb.Model(id=pb.ModelId(name="english", version=2), labels=LABELS, targets=self._able, mixed=self._able, limits=limits)
        return pb.GetModelResponse(model=model)


@contextmanager
def serving(able: bool = True) -> Iterator[str]:
    """A server; gives its target."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    pb_grpc.add_SentimentServiceServicer_to_server(Parts(able), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0)
