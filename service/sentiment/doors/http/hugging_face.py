"""``POST /`` as Hugging Face's Inference API, and ``POST /predict`` as text-embeddings-inference: for clients of either.

Both are the method ClassifyBatch of the default model. The first text that fails ends the request with its error, because these answers
have no place for it. What a request asks for and cannot have is refused.
"""

import asyncio
import json
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import grpc
from aiohttp import web
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from sentiment.call.call import REQUEST_ID
from sentiment.call.servicer import SentimentService
from sentiment.call.status import HandedOn, code_of
from sentiment.doors.http.arriving import begin_call
from sentiment.doors.http.bodies import BodyLimits, message_from, values_of
from sentiment.doors.http.from_json import kind_of, object_of, unknown_field
from sentiment.doors.http.grace import Grace
from sentiment.doors.http.json_answers import INLINE_BYTES_MAX, JSON, PIPELINE, PREDICT, plain_error, refusal, response_of
from sentiment.doors.http.receiving import Body, Receiving
from sentiment.errors import InvalidInput, Refused, RequestError
from sentiment.proto_json import json_dict
from sentiment.v1 import sentiment_pb2 as pb

CODES = {code.value[0]: code for code in grpc.StatusCode}
# Where the service's error has an item, the body has a text.
ITEM = re.compile(r"^items(?P<place>\[\d+\])?(\.text(?=:))?")
SOFTMAX = "must be softmax or unset, because the scores are calibrated probabilities"


class Asked(NamedTuple):
    """A request."""

    # As those of ClassifyBatchRequest in JSON.
    items: list[dict[str, Any]]
    truncation: str | None = None
    # The most labels of a text, the most probable first; None: all.
    top_k: int | None = None
    # Whether the answer is the list of one text's labels, not one list a text.
    alone: bool = False


def asked_of_pipeline(values: object) -> Asked:
    """A request as Hugging Face's Inference API takes it for text-classification: a text or several.

    Raises:
        InvalidInput: it is another request, or cannot be honoured.
    """
    members = _members(values, ("inputs", "parameters"))
    parameters = _members(members.get("parameters", {}), ("top_k", "function_to_apply"), "parameters")
    top_k = parameters.get("top_k")
    if top_k is not None and (type(top_k) is not int or top_k < 1):
        raise InvalidInput("parameters.top_k", "must be a whole number of at least 1")
    if parameters.get("function_to_apply", "softmax") != "softmax":
        raise InvalidInput("parameters.function_to_apply", SOFTMAX)
    inputs = members.get("inputs")
    return Asked([{"text": text} for text in (inputs if isinstance(inputs, list) else [inputs])], top_k=top_k)


def asked_of_predict(values: object) -> Asked:
    """A request as text-embeddings-inference takes it: a text, a pair ``[text, text]``, or a batch of ``[text]`` and ``[text, text]``.

    Raises:
        InvalidInput: it is another request, or cannot be honoured.
    """
    members = _members(values, ("inputs", "truncate", "truncation_direction", "raw_scores"))
    if members.get("raw_scores", False) is not False:
        raise InvalidInput("raw_scores", "must be false, because the scores are calibrated probabilities")
    if members.get("truncation_direction", "right") not in ("right", "Right"):
        raise InvalidInput("truncation_direction", "must be right: the beginning of a text is read")
    truncate = members.get("truncate")
    if not isinstance(truncate, bool | None):
        raise InvalidInput("truncate", f"must be true or false, got {kind_of(truncate)}")
    truncation = None if truncate is None else "head" if truncate else "refuse"
    inputs = members.get("inputs")
    if isinstance(inputs, list) and all(isinstance(each, list) for each in inputs):
        return Asked([_sequence(each, f"inputs[{place}]") for place, each in enumerate(inputs)], truncation)
    return Asked([_sequence(inputs if isinstance(inputs, list) else [inputs], "inputs")], truncation, alone=True)


def _sequence(texts: list[Any], at: str) -> dict[str, Any]:
    if not 1 <= len(texts) <= 2:
        raise InvalidInput(at, f"must be a string, or an array of one string or the two of a pair, got an array of {len(texts)}")
    return dict(zip(("text", "text_pair"), texts, strict=False))


def _members(values: object, known: tuple[str, ...], path: str = "") -> dict[str, Any]:
    """The members of an object that are not null."""
    members = object_of(values, path)
    for name in members:
        if name not in known:
            raise unknown_field(name, known, path)
    return {name: value for name, value in members.items() if value is not None}


class HuggingFace:
    """The two routes."""

    def __init__(self, service: SentimentService, receiving: Receiving, grace: Grace, limits: BodyLimits) -> None:
        """``limits``: the limits of a batch."""
        self._service = service
        self._receiving = receiving
        self._grace = grace
        self._limits = limits

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        router.add_post(PIPELINE, partial(self._post, asked_of_pipeline))
        router.add_post(PREDICT, partial(self._post, asked_of_predict))

    async def _post(self, asked_of: Callable[[object], Asked], request: web.Request) -> web.Response:
        method = self._service.classify_batch_method
        call = begin_call(self._service.calls, method.name, request)

        def parse(content: bytes) -> tuple[Asked, pb.ClassifyBatchRequest]:
            asked = asked_of(values_of(content, self._limits.values_max))
            values = {"items": asked.items, "truncation": asked.truncation, "priority": "interactive" if len(asked.items) == 1 else "bulk"}
            return asked, message_from(method.request, values, self._limits)

        async def work(body: Body) -> str:
            with self._grace:
                asked, message = await body.parsed(request, self._limits.bytes_max, parse)
                response = await method.answer(message, call)
                try:
                    if response.ByteSize() <= INLINE_BYTES_MAX:
                        return _answer(response, asked)
                    return await asyncio.to_thread(_answer, response, asked)
                except Refused as error:
                    error.over_share = call.first_error is not None and call.first_error.over_share
                    raise

        try:
            answer = await self._receiving.settle(request, call, work)
        except RequestError as error:
            return refusal(call, error, plain_error(code_of(error), ITEM.sub(r"inputs\g<place>", str(error))))
        return await response_of(request, answer.encode(), {REQUEST_ID: call.request_id, "Content-Type": JSON})


def _answer(response: pb.ClassifyBatchResponse, asked: Asked) -> str:
    """The answer in JSON, one line.

    Raises:
        RequestError: a text has no answer; the first one's error.
    """
    texts = []
    for result in response.results:
        if result.HasField("error"):
            raise _error_of(result.error)
        scores = json_dict(result.response.prediction)["scores"]
        texts.append(sorted(scores, key=lambda score: score["score"], reverse=True)[: asked.top_k])
    # Other threads run in between.
    return "".join(json.JSONEncoder().iterencode(texts[0] if asked.alone else texts)) + "\n"


def _error_of(status: Status) -> RequestError:
    code = CODES[status.code]
    if code is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return HandedOn(code, status.message, ())
    retry = RetryInfo()
    known = any(detail.Unpack(retry) for detail in status.details)
    return Refused(status.message, retry.retry_delay.ToTimedelta().total_seconds() if known else math.inf, "backlog")
