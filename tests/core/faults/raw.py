"""HTTP/2 by hand: frames that no client library sends, or not so slowly."""

import socket
import struct
import time
from collections.abc import Iterable
from typing import Self

from sentiment.v1 import sentiment_pb2 as pb

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM = ACK = 1
END_HEADERS = 4
CLASSIFY = "/sentiment.v1.SentimentService/Classify"
CANCEL = 8
# In the headers of the first answer on a connection.
UNIMPLEMENTED = b"grpc-status\x0212"
INITIAL_WINDOW = 4
# Longer than any answer takes; a test that passes never waits that long.
PATIENCE_S = 30.0
# Kind, flags, stream, payload.
Frame = tuple[int, int, int, bytes]


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: str, value: str) -> bytes:
    """A header field in HPACK's literal form without indexing; name and value have fewer than 127 bytes."""
    return b"\x00" + b"".join(bytes([len(part)]) + part.encode() for part in (name, value))


def request_headers(path: str = CLASSIFY, timeout: str = "", request_id: str = "") -> bytes:
    """The header block of a gRPC call; ``timeout`` is in gRPC's format, or empty for none."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "a", "te": "trailers", "content-type": "application/grpc"}
    if timeout:
        fields["grpc-timeout"] = timeout
    if request_id:
        fields["x-request-id"] = request_id
    return b"".join(literal(name, value) for name, value in fields.items())


def message(text: str = "good") -> bytes:
    """A gRPC message: a ClassifyRequest with one text."""
    content = pb.ClassifyRequest(text=text).SerializeToString()
    return b"\x00" + struct.pack(">I", len(content)) + content


def call_and_reset(stream: int) -> bytes:
    """A whole call, followed by its reset."""
    begin = frame(HEADERS, END_HEADERS, stream, request_headers())
    return begin + frame(DATA, END_STREAM, stream, message()) + frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", name, value) for name, value in values.items()))


def parse(content: bytes) -> tuple[list[Frame], bytes]:
    """The complete frames, and the remaining bytes."""
    frames = []
    while len(content) >= 9 and len(content) >= 9 + (size := int.from_bytes(content[:3])):
        frames.append((content[3], content[4], int.from_bytes(content[5:9]) & 0x7FFFFFFF, content[9 : 9 + size]))
        content = content[9 + size :]
    return frames, content


class Peer:
    """A connection to the server, and all frames received on it."""

    def __init__(self, target: str, begin: bytes = PREFACE + frame(SETTINGS)) -> None:
        host, _, port = target.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frames: list[Frame] = []
        self._rest = b""
        self.ended = False
        self.send(begin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *parts: bytes) -> bool:
        """Send; returns False once the connection is closed."""
        try:
            self.socket.sendall(b"".join(parts))
        except OSError:
            self.ended = True
        return not self.ended

    def call(self, stream: int, *, path: str = CLASSIFY, timeout: str = "", body: bytes | None = None) -> bool:
        """Begin a call; without ``body`` its message is still to come."""
        begin = frame(HEADERS, END_HEADERS, stream, request_headers(path, timeout))
        return self.send(begin, b"" if body is None else frame(DATA, END_STREAM, stream, body))

    def read(self, seconds: float = 0.0) -> list[Frame]:
        """The frames received within this time. Acknowledges settings and pings."""
        found = []
        end = time.monotonic() + seconds
        while not self.ended:
            self.socket.settimeout(max(0.001, end - time.monotonic()))
            try:
                more = self.socket.recv(2**16)
            except TimeoutError:
                break
            except OSError:
                more = b""
            finally:
                self.socket.settimeout(PATIENCE_S)
            self.ended = not more
            self._rest += more
            found += list(self._parse())
            if time.monotonic() > end:
                break
        self.frames += found
        return found

    def wait_for(self, kind: int, stream: int, seconds: float = PATIENCE_S) -> bytes:
        """The payload of the first frame of this kind on this stream."""
        end = time.monotonic() + seconds
        while True:
            for one, _, on, payload in self.frames:
                if (one, on) == (kind, stream):
                    return payload
            assert not self.ended and time.monotonic() < end, f"no frame {kind} on {stream}: {self.frames}"
            self.read(0.01)

    def is_greeted(self) -> bool:
        """Whether the server takes the connection; False if it closes it."""
        end = time.monotonic() + PATIENCE_S
        while not (greeted := any(kind == SETTINGS for kind, *_ in self.frames)) and not self.ended:
            assert time.monotonic() < end, "the connection is neither taken nor closed"
            self.read(0.01)
        return greeted

    def _parse(self) -> Iterable[Frame]:
        frames, self._rest = parse(self._rest)
        for kind, flags, stream, payload in frames:
            if kind in (SETTINGS, PING) and not flags & ACK:
                self.send(frame(kind, ACK, payload=payload if kind == PING else b""))
            yield kind, flags, stream, payload
