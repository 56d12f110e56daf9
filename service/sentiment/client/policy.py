"""How our clients behave by default: balancing, retries, keepalive, message sizes. docs/guide/grpc.md has it for other languages."""

import json
import random

from sentiment.v1 import sentiment_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["SentimentService"].full_name
ATTEMPTS_MAX = 4
BACKOFF_S = 0.05
# A failed attempt costs one, an answer gives a tenth of one back, and below the half nothing is tried again: an overload that lasts is not
# fed. The half is what a channel may lose at once, by a server that dies, and still have every call answered: with 10, 60 of 64 failed.
TOKENS_MAX = 200
# Of a call that explains and names no other limit: it waits for others and runs when classification leaves the processor free.
EXPLAIN_TIMEOUT_S = 30.0

SERVICE_CONFIG = {
    # One connection a server address, calls in turn; pick_first would send everything to one.
    "loadBalancingConfig": [{"round_robin": {}}],
    # A server that drains says NOT_SERVING first and gets no new calls.
    "healthCheckConfig": {"serviceName": SERVICE},
    "methodConfig": [
        # gRPC forgets the deadline of a stream that it may retry when the server dies (grpcio 1.85): the client would wait for ever.
        {"name": [{"service": SERVICE, "method": method} for method in ("Explain", "ClassifyStream")]},
        {
            "name": [{"service": SERVICE}],
            "retryPolicy": {
                "maxAttempts": ATTEMPTS_MAX,
                "initialBackoff": f"{BACKOFF_S}s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                # The server's pushback sets the delay, but only for codes that stand here.
                "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
            },
        },
    ],
    "retryThrottling": {"maxTokens": TOKENS_MAX, "tokenRatio": 0.1},
}


def backoff_s(attempt: int, left_s: float) -> float:
    """Seconds to wait after a call's ``attempt``-th attempt that the server dropped, as gRPC waits after others; at most ``left_s``."""
    return max(0.0, min(left_s, random.uniform(0, BACKOFF_S * 2 ** (attempt - 1))))  # noqa: S311 - spreads retries


def channel_options() -> list[tuple[str, str | int]]:
    """Channel arguments of our clients."""
    return [
        ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
        # A peer that vanished is noticed within 15 s; without pings a call would wait for its whole deadline.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        # The former is only how long bytes may stay without TCP's acknowledgement (grpcio 1.85): a frozen process, whose kernel gives that,
        # would be waited for for a minute.
        ("grpc.http2.ping_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # A server that was away is found again within 0.1 to 5 s, not 1 to 120; and as long is waited for one that does not even refuse.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_receive_message_length", 64 * 2**20),
    ]
