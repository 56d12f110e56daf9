"""Answers over HTTP: a message or an error as JSON, or several messages as lines of JSON."""

import asyncio
import json
import zlib
from collections.abc import Coroutine
from typing import Any

import grpc
from aiohttp import hdrs, web
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.rpc.code_pb2 import Code

from sentiment.call.call import REQUEST_ID, Call
from sentiment.call.status import HTTP_STATUS, code_of, pushback_ms, status_of
from sentiment.doors.http.gzipped import BYTES_MIN, ENCODED, LEVEL, accepts_gzip, gzipped
from sentiment.errors import Expired, RequestError
from sentiment.proto_json import json_dict
from sentiment.v1 import sentiment_pb2 as pb

# Converting a message to JSON takes a quarter of a microsecond per byte. A larger one takes half a millisecond or more, so it runs in a
# thread.
INLINE_BYTES_MAX = 2048
# Deflating takes 5 ns per byte. A longer line or body is deflated in a thread.
DEFLATE_INLINE_MAX = 2**16
JSON = "application/json; charset=utf-8"
# Below this path an error is a message only.
OPEN_INFERENCE = "/v2"
# A POST to these is answered as Hugging Face's servers do.
PIPELINE, PREDICT = "/", "/predict"
# The kinds of errors of text-embeddings-inference. Every other code is the caller's mistake, "Validation".
ERROR_TYPES = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: "Overloaded",
    grpc.StatusCode.UNAVAILABLE: "Unhealthy",
    grpc.StatusCode.DEADLINE_EXCEEDED: "Backend",
    grpc.StatusCode.INTERNAL: "Backend",
}
# Time to write the last line of a failed stream. The connection of a client that does not read it is closed.
LAST_LINE_S = 1.0


class Lines(web.StreamResponse):
    """A response of newline-delimited JSON. Its head is sent with the first message."""

    def __init__(self, request: web.Request, call: Call) -> None:
        super().__init__(headers={"Content-Type": "application/x-ndjson", REQUEST_ID: call.request_id})
        self._to = request
        self._call = call
        self._gzip = None
        self._ended = False
        if accepts_gzip(request):
            self.headers.update(ENCODED)
            # 16: with gzip's header and check sum.
            self._gzip = zlib.compressobj(LEVEL, wbits=16 + zlib.MAX_WBITS)

    async def add(self, message: Message) -> None:
        """Write a message. Waits while the client does not read.

        Raises:
            Expired: the client did not read within the deadline; its connection has been closed.
            asyncio.CancelledError: the client has left.
        """
        line = await json_of(message)
        await self._in_time(self._write(line))

    async def finish(self) -> None:
        """End the response. Raises as ``add`` does."""
        await self._in_time(self._write_end())
        self._ended = True

    async def end(self, error: RequestError) -> "Lines":
        """Write the error as the last line, and close the connection. An answer that was sent whole stays as it is."""
        self.force_close()
        if self._ended:
            return self
        try:
            async with asyncio.timeout(LAST_LINE_S):
                await self._write(json.dumps(error_body(error)))
                await self._write_end()
        except TimeoutError:
            self._cut_off()
        except ConnectionResetError:
            # The client has left, or ``_cut_off`` has closed the connection.
            pass
        return self

    async def _in_time(self, writing: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout_at(self._call.deadline_at):
                await writing
        except TimeoutError as error:
            self._cut_off()
            raise Expired("the client did not read the answer within the deadline") from error
        except ConnectionResetError as error:
            # aiohttp is about to cancel this request.
            raise asyncio.CancelledError from error

    def _cut_off(self) -> None:
        """Abort the connection. A graceful close would wait for the client to read."""
        if self._to.transport is not None:
            self._to.transport.abort()

    async def _write(self, line: str) -> None:
        if not self.prepared:
            await self.prepare(self._to)
            self._call.head_sent = True
        data = line.encode() + b"\n"
        if self._gzip is not None:
            data = self._deflated(data) if len(data) <= DEFLATE_INLINE_MAX else await asyncio.to_thread(self._deflated, data)
        await self.write(data)

    async def _write_end(self) -> None:
        await self.write_eof(self._gzip.flush() if self._gzip is not None else b"")

    def _deflated(self, data: bytes) -> bytes:
        """A line in gzip, whole: the client can read it at once."""
        assert self._gzip is not None, "called only with a compressor"
        return self._gzip.compress(data) + self._gzip.flush(zlib.Z_SYNC_FLUSH)


async def json_of(message: Message) -> str:
    """A message as one line of JSON, without the line feed. A large message is converted in a thread."""
    if message.ByteSize() <= INLINE_BYTES_MAX:
        return json.dumps(_dict_of(message))
    return await asyncio.to_thread(_json_in_steps, message)


async def json_response(request: web.Request, message: Message, headers: dict[str, str]) -> web.Response:
    """The answer to a unary call, in gzip if it is large enough and the client accepts that."""
    headers["Content-Type"] = JSON
    return await response_of(request, (await json_of(message) + "\n").encode(), headers)


async def response_of(request: web.Request, body: bytes, headers: dict[str, str]) -> web.Response:
    """An answer, in gzip if it is large enough and the client accepts that."""
    if len(body) > BYTES_MIN and accepts_gzip(request):
        headers |= ENCODED
        body = gzipped(body) if len(body) <= DEFLATE_INLINE_MAX else await asyncio.to_thread(gzipped, body)
    elif len(body) > BYTES_MIN:
        headers["Vary"] = ENCODED["Vary"]
    return web.Response(body=body, headers=headers)


def _dict_of(message: Message) -> dict[str, Any]:  # Any: JSON
    """A message as a dictionary. Errors of items have the name of their code, as the error of a call has."""
    found = json_dict(message)
    if isinstance(message, pb.ClassifyBatchResponse):
        for result in found["results"]:
            if error := result.get("error"):
                result["error"] = {"status": Code.Name(error["code"]), **error}
    return found


def _json_in_steps(message: Message) -> str:
    """As JSON, and other threads run in between: ``json.dumps`` of 3 MB blocks them for 20 ms. A little slower."""
    return "".join(json.JSONEncoder().iterencode(_dict_of(message)))


def refusal(call: Call, error: RequestError, body: dict[str, Any], content_type: str = JSON) -> web.Response:  # Any: JSON
    """The answer to a call that failed."""
    headers = {REQUEST_ID: call.request_id, "Content-Type": content_type}
    pushback = pushback_ms(error, call.time_left_s())
    if pushback is not None and pushback > 0:
        headers["Retry-After"] = str(-(-pushback // 1000))
    status = HTTP_STATUS.get(code_of(error), HTTP_STATUS[grpc.StatusCode.INTERNAL])
    return web.Response(body=json.dumps(body).encode(), status=status, headers=headers)


def error_body(error: RequestError) -> dict[str, Any]:  # Any: JSON
    """The JSON body of an error."""
    status: Message = status_of(error)
    return {"error": {"status": code_of(error).name, **MessageToDict(status, preserving_proto_field_name=True)}}


def plain_error(code: grpc.StatusCode, message: str) -> dict[str, str]:
    """The JSON body of an error as Hugging Face's servers write it."""
    return {"error": message, "error_type": ERROR_TYPES.get(code, "Validation")}


def is_hugging_face(path: str, method: str) -> bool:
    """Whether a request is answered as Hugging Face's servers do. A GET of / is the viewer."""
    return method == hdrs.METH_POST and path in (PIPELINE, PREDICT)


def error_answer(request: web.Request, status: int, code: grpc.StatusCode, message: str) -> web.Response:
    """The answer to a request that becomes no call."""
    if is_hugging_face(request.path, request.method):
        return web.json_response(plain_error(code, message), status=status)
    in_full = {"status": code.name, "code": code.value[0], "message": message}
    return web.json_response({"error": message if request.path.startswith(OPEN_INFERENCE) else in_full}, status=status)
