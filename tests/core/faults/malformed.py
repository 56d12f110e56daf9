"""Malformed inputs from ``random.Random(seed)`` alone: bytes of protobuf messages, frames of HTTP/2, requests of HTTP/1.1."""

import random
import struct
from collections.abc import Sequence

# The HTTP/2 connection preface and an empty SETTINGS frame.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
NASTY_NUMBERS = (0, 1, 2**7, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
NASTY_BYTES = (b"\xff\xfe\xfd", b"\xed\xa0\x80", b"\xc0\x80", b"\x00", b"\xf4\x90\x80\x80", b"a" * 300)
FLOATS = (float("nan"), float("inf"), -float("inf"), 1e308, -0.0)


def varint(number: int) -> bytes:
    """A number in protobuf's encoding."""
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(dice: random.Random, depth: int = 0) -> bytes:
    """A protobuf field of any number and wire type, valid or not, sometimes nested."""
    number, kind = dice.choice((1, 2, 3, 4, 5, 6, 7, 15, 16, 1000, 2**29 - 1, 0)), dice.randrange(8)
    key = varint(number << 3 | kind)
    match kind:
        case 0:
            return key + varint(dice.choice(NASTY_NUMBERS))
        case 1:
            return key + struct.pack("<d", dice.choice(FLOATS))
        case 2:
            inner = dice.choice(NASTY_BYTES) if depth > 5 or dice.random() < 0.6 else field(dice, depth + 1)
            # Sometimes the length does not match the content.
            return key + varint(len(inner) if dice.random() < 0.8 else dice.choice(NASTY_NUMBERS)) + inner
        case 5:
            return key + struct.pack("<f", dice.choice((float("nan"), float("inf"), 0.0)))
        case _:
            return key


def mutated(dice: random.Random, content: bytes) -> bytes:
    """Content with flipped bits, and parts removed, doubled or replaced by noise."""
    out = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(len(out) + 1)
        match dice.randrange(5):
            case 0 if out:
                out[place % len(out)] ^= 1 << dice.randrange(8)
            case 1:
                del out[place : place + dice.randint(1, 16)]
            case 2:
                out[place:place] = out[place : place + dice.randint(1, 64)]
            case 3:
                out[place:place] = dice.randbytes(dice.randint(1, 16))
            case _:
                del out[place:]
    return bytes(out)


def message(dice: random.Random, valid: Sequence[bytes]) -> bytes:
    """A body that is malformed in some way, or by chance valid."""
    match dice.randrange(6):
        case 0:
            return dice.randbytes(dice.randint(0, 200))
        case 1:
            return b"".join(field(dice) for _ in range(dice.randint(1, 6)))
        case 2:
            return dice.choice(valid) + b"".join(field(dice) for _ in range(dice.randint(1, 3)))
        case 3:
            deep = dice.choice(valid)
            for _ in range(dice.choice((3, 50, 120))):
                deep = varint(dice.randint(1, 7) << 3 | 2) + varint(len(deep)) + deep
            return deep
        case _:
            return mutated(dice, dice.choice(valid))


def frame(dice: random.Random, headers: bytes) -> bytes:
    """An HTTP/2 frame: known and unknown types, any flags, stream ids in and out of order, sometimes a wrong length."""
    kind = dice.choice((*range(11), 0, 0, 1, 1, 1, dice.randrange(256)))
    payload = {
        0: lambda: b"\x00" + struct.pack(">I", dice.choice((0, 5, 2**32 - 1))) + dice.randbytes(dice.randint(0, 30)),
        1: lambda: headers if dice.random() < 0.3 else bytes(byte & 127 for byte in mutated(dice, headers)),
        3: lambda: dice.randbytes(4),
        4: lambda: struct.pack(">HI", dice.randint(0, 9), dice.choice((0, 1, 2**14, 2**31 - 1, 2**32 - 1))),
        6: lambda: dice.randbytes(8),
        7: lambda: dice.randbytes(8),
        9: lambda: bytes(byte & 127 for byte in dice.randbytes(dice.randint(0, 40))),
        8: lambda: struct.pack(">I", dice.choice((0, 1, 2**31 - 1))),
    }.get(kind, lambda: dice.randbytes(dice.randint(0, 40)))()
    if kind not in (1, 9) and dice.random() < 0.1:
        payload = dice.randbytes(dice.randint(0, 60))
    # A wrong length would put bytes of the next frame into a path, which ends grpc.aio's server: see test_a_path_that_is_not_utf8.
    length = len(payload) if kind in (1, 9) or dice.random() < 0.9 else dice.choice((0, 2**14, 2**24 - 1, len(payload) + 7))
    stream = dice.choice((0, 1, 1, 3, 5, 2, 2**31 - 1, dice.randrange(2**32)))
    flags = dice.choice((0, 1, 4, 5, 0x25, dice.randrange(256)))
    return length.to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header in HPACK's literal form without indexing; name and value have fewer than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_headers(path: bytes) -> bytes:
    """The header block of a gRPC call."""
    pairs = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"a"))
    return b"".join(literal(*pair) for pair in (*pairs, (b"te", b"trailers"), (b"content-type", b"application/grpc")))


def conversation(dice: random.Random, headers: bytes, frames: int) -> bytes:
    """What a broken HTTP/2 client sends: mostly a preface, and this many frames."""
    start = PREFACE if dice.random() < 0.9 else dice.choice((b"", mutated(dice, PREFACE), dice.randbytes(40)))
    return start + b"".join(frame(dice, headers) for _ in range(frames))


def web_request(dice: random.Random, valid: Sequence[bytes]) -> bytes:
    """An HTTP/1.1 request to the JSON API: a mutated body in a valid request, or a mutated request."""
    body = dice.choice(valid)
    if dice.random() < 0.7:
        body = mutated(dice, body)
    path = dice.choice((b"/v1/classify", b"/v1/classify", b"/v1/explain", b"/v1/models/tiny", b"/v2/models/tiny/infer", b"/nosuch"))
    whole = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        path,
        len(body),
        body,
    )
    return whole if dice.random() < 0.7 else mutated(dice, whole)
