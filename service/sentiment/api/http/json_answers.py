"""Answers over HTTP: messages and errors as JSON, one or a line each."""

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

# A larger message takes more than a millisecond to become JSON, half a microsecond a byte: it does so in a thread.
INLINE_BYTES_MAX = 2048
# For the line that says why a stream ends; a client that does not take it is cut off.
LAST_LINE_S = 1.0


class Lines(web.StreamResponse):
    """Messages as newline-delimited JSON; its head goes out with the first of them."""

    def __init__(self, request: web.Request, call: Call) -> None:
        super().__init__(headers={"Content-Type": "application/x-ndjson", REQUEST_ID: call.request_id})
        self._to = request
        self._call = call

    async def add(self, message: Message) -> None:
        """Write a message; waits while the client does not read.

        Raises:
            Expired: it did not read within the deadline, and has been cut off.
            asyncio.CancelledError: it has gone.
        """
        line = await json_of(message)
        await self._in_time(self._write(line))

    async def finish(self) -> None:
        """Say that there is no more. Raises as ``add`` does."""
        await self._in_time(self.write_eof())

    async def end(self, error: RequestError) -> "Lines":
        """Say why there is no more, and close the connection."""
        self.force_close()
        try:
            async with asyncio.timeout(LAST_LINE_S):
                await self._write(json.dumps(error_body(error)))
                await self.write_eof()
        except TimeoutError:
            self._cut_off()
        except ConnectionResetError:
            # It has gone, or has been cut off.
            pass
        return self

    async def _in_time(self, writing: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout_at(self._call.deadline_at):
                await writing
        except TimeoutError as error:
            self._cut_off()
            raise Expired("the answer was not read within the deadline") from error
        except ConnectionResetError as error:
            # The news that cancels this request is on its way.
            raise asyncio.CancelledError from error

    def _cut_off(self) -> None:
        """Closed in order, the connection would stay for as long as the client does not read."""
        if self._to.transport is not None:
            self._to.transport.abort()

    async def _write(self, line: str) -> None:
        if not self.prepared:
            await self.prepare(self._to)
            self._call.head_sent = True
        await self.write(line.encode() + b"\n")


async def json_of(message: Message) -> str:
    """A message in JSON, without a line feed; a large one is made in a thread."""
    return json_line(message) if message.ByteSize() <= INLINE_BYTES_MAX else await asyncio.to_thread(json_line_in_steps, message)


def error_body(error: RequestError) -> dict[str, Any]:  # Any: JSON
    """What a client is told of an error."""
    status: Message = status_of(error)
    return {"error": {"status": code_of(error).name, **MessageToDict(status, preserving_proto_field_name=True)}}
