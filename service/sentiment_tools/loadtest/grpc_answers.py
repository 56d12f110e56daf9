"""Converts responses of our API to answers."""

from collections.abc import Sequence

import grpc
from google.rpc.status_pb2 import Status

from sentiment.v1 import sentiment_pb2 as pb
from sentiment_tools.loadtest.drivers import Answer
from sentiment_tools.loadtest.results import OK

CODES = {code.value[0]: code.name for code in grpc.StatusCode}


def answer_of(responses: Sequence[pb.ClassifyResponse]) -> Answer:
    """The answer of a call whose texts have these responses. The stages are those of the text that took longest."""
    last = max((response.timing for response in responses), key=lambda timing: timing.total.ToNanoseconds(), default=pb.Timing())
    stages_s = tuple(stage.ToNanoseconds() / 1e9 for stage in (last.tokenize, last.queue, last.run))
    return Answer(OK, texts_ok=len(responses), tokens=sum(response.tokens for response in responses), stages_s=stages_s)


def failure_of(error: Status, rest: Answer | None = None) -> Answer:
    """The answer of a call with a text that failed; ``rest`` is the answer of its other texts."""
    code = CODES.get(error.code, "UNKNOWN")
    return Answer(code, error.message, rest.texts_ok, rest.tokens) if rest else Answer(code, error.message)
