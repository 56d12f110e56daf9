"""Answers over HTTP: a message or an error as JSON, or several messages as lines of JSON."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

from aiohttp import web
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from sentiment.api.grpc.call import REQUEST_ID, Call
from sentiment.api.grpc.status import code_of, status_of
from sentiment.errors import Expired, RequestError
from sentiment.viewer.proto_json import json_line, json_line_in_steps

# Converting a message to JSON takes half a microsecond per byte. A larger one takes more than a millisecond, so it runs in a thread.
INLINE_BYTES_MAX = 2048
# Time to write the last line of a failed stream. The connection of a client that does not read it is closed.
LAST_LINE_S = 1.0


class Lines(web.StreamResponse):
    """A response of newline-delimited JSON. Its head is sent with the first message."""

    def __init__(self, request: web.Request, call: Call) -> None:
        super().__init__(headers={"Content-Type": "application/x-ndjson", REQUEST_ID: call.request_id})
        self._to = request
        self._call = call

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
        await self._in_time(self.write_eof())

    async def end(self, error: RequestError) -> "Lines":
        """Write the error as the last line, and close the connection."""
        self.force_close()
        try:
            async with asyncio.timeout(LAST_LINE_S):
                await self._write(json.dumps(error_body(error)))
                await self.write_eof()
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
        await self.write(line.encode() + b"\n")


async def json_of(message: Message) -> str:
    """A message as one line of JSON, without the line feed. A large message is converted in a thread."""
    return json_line(message) if message.ByteSize() <= INLINE_BYTES_MAX else await asyncio.to_thread(json_line_in_steps, message)


def error_body(error: RequestError) -> dict[str, Any]:  # Any: JSON
    """The JSON body of an error."""
    status: Message = status_of(error)
    return {"error": {"status": code_of(error).name, **MessageToDict(status, preserving_proto_field_name=True)}}
