"""The Open Inference Protocol over HTTP, below /v2, with the binary tensor extension: for clients of Triton and KServe.

The methods and their messages are those of gRPC (``call.open_inference``).
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from aiohttp import web

from sentiment.call.call import REQUEST_ID, Call
from sentiment.call.calls import Calls, Method
from sentiment.call.open_inference import InferenceService
from sentiment.doors.http.arriving import begin_call
from sentiment.doors.http.bodies import BodyLimits
from sentiment.doors.http.grace import Grace
from sentiment.doors.http.json_answers import INLINE_BYTES_MAX, OPEN_INFERENCE, refusal, response_of
from sentiment.doors.http.open_inference_bodies import JSON_LENGTH, answer_of, asked_of, in_json, json_of
from sentiment.doors.http.receiving import Body, Receiving
from sentiment.errors import InvalidInput, RequestError
from sentiment.oip import inference_pb2 as oip

# With and without a version.
MODELS = (f"{OPEN_INFERENCE}/models/{{name}}", f"{OPEN_INFERENCE}/models/{{name}}/versions/{{version}}")
OF_SERVER = {"": "ServerMetadata", "/health/live": "ServerLive", "/health/ready": "ServerReady"}
OF_MODEL = {"": "ModelMetadata", "/ready": "ModelReady", "/config": "ModelConfig"}
# Without a charset, because KServe's client reads an error only from this.
JSON = "application/json"


class OpenInference:
    """The routes below /v2."""

    def __init__(self, service: InferenceService, calls: Calls, receiving: Receiving, grace: Grace, limits: BodyLimits) -> None:
        """``limits``: the limits of a request."""
        self._methods = {method.name: method for method in service.methods}
        self._calls = calls
        self._receiving = receiving
        self._grace = grace
        self._limits = limits

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        for path, name in OF_SERVER.items():
            router.add_get(OPEN_INFERENCE + path, partial(self._get, self._methods[name]))
        for model in MODELS:
            for path, name in OF_MODEL.items():
                router.add_get(model + path, partial(self._get, self._methods[name]))
            router.add_post(f"{model}/infer", self._post_infer)

    async def _get(self, method: Method[Any, Any], request: web.Request) -> web.Response:
        async def work(call: Call, _: Body) -> web.Response:
            message = await method.answer(method.request(**request.match_info), call)
            return _described(message, call)

        return await self._settle(method, request, work)

    async def _post_infer(self, request: web.Request) -> web.Response:
        method: Method[oip.ModelInferRequest, oip.ModelInferResponse] = self._methods["ModelInfer"]

        async def work(call: Call, body: Body) -> web.Response:
            parse = partial(asked_of, json_length=request.headers.get(JSON_LENGTH), model=request.match_info, limits=self._limits)
            with self._grace:
                asked = await body.parsed(request, self._limits.bytes_max, parse)
                try:
                    response = await method.answer(asked.message, call)
                except InvalidInput as error:
                    raise in_json(error) from error
            size = sum(map(len, response.raw_output_contents))
            if size <= INLINE_BYTES_MAX:
                answer, json_length = answer_of(response, asked.binary, in_steps=False)
            else:
                answer, json_length = await asyncio.to_thread(answer_of, response, asked.binary, in_steps=True)
            binary = {} if json_length is None else {JSON_LENGTH: str(json_length)}
            return await response_of(request, answer, {"Content-Type": "application/octet-stream" if binary else JSON, **binary})

        return await self._settle(method, request, work)

    async def _settle(
        self, method: Method[Any, Any], request: web.Request, work: Callable[[Call, Body], Coroutine[Any, Any, web.Response]]
    ) -> web.Response:
        call = begin_call(self._calls, method.name, request)
        try:
            response = await self._receiving.settle(request, call, partial(work, call), method.probe)
        except RequestError as error:
            return refusal(call, error, {"error": str(error)}, JSON)
        response.headers[REQUEST_ID] = call.request_id
        return response


def _described(message: Any, call: Call) -> web.Response:  # Any: a message of the methods that GET calls
    """The answer to a GET. The status of a probe's answer is what its message says."""
    status = 200
    if isinstance(message, oip.ServerLiveResponse | oip.ServerReadyResponse | oip.ModelReadyResponse):
        yes = message.live if isinstance(message, oip.ServerLiveResponse) else message.ready
        unknown = isinstance(message, oip.ModelReadyResponse) and call.served is None
        status = 200 if yes else 404 if unknown else 503
    elif isinstance(message, oip.ModelConfigResponse):
        message = message.config
    return web.Response(body=json.dumps(json_of(message)).encode() + b"\n", status=status, content_type=JSON)
