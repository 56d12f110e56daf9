"""Default behaviour of the clients: load balancing, retries, keepalive, message sizes. See docs/guide/grpc.md for other languages."""

import json
import random

from sentiment.v1 import sentiment_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["SentimentService"].full_name
ATTEMPTS_MAX = 4
BACKOFF_S = 0.05
# Retry throttling of gRPC: a failed attempt costs one token, a success returns 0.1, and below half there are no retries. So retries do not
# feed a lasting overload. Half is also how many calls a channel can lose at once to a dying server and still retry all: with 10, 60 of 64
# failed.
TOKENS_MAX = 200
# Default timeout of calls that explain: they wait in a queue, and run when classification leaves CPU time.
EXPLAIN_TIMEOUT_S = 30.0

SERVICE_CONFIG = {
    # One connection per server address, used in turn; pick_first would send all calls to one.
    "loadBalancingConfig": [{"round_robin": {}}],
    # A draining server first reports NOT_SERVING, and then gets no new calls.
    "healthCheckConfig": {"serviceName": SERVICE},
    "methodConfig": [
        # No retry policy for streams: if the server dies, gRPC forgets the deadline of a retryable stream (grpcio 1.85), and the client
        # waits forever.
        {"name": [{"service": SERVICE, "method": method} for method in ("Explain", "ClassifyStream")]},
        {
            "name": [{"service": SERVICE}],
            "retryPolicy": {
                "maxAttempts": ATTEMPTS_MAX,
                "initialBackoff": f"{BACKOFF_S}s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                # The server's pushback sets the delay, but only for these codes.
                "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
            },
        },
    ],
    "retryThrottling": {"maxTokens": TOKENS_MAX, "tokenRatio": 0.1},
}


def backoff_s(attempt: int, left_s: float) -> float:
    """Seconds to wait after attempt number ``attempt`` that the server dropped, as gRPC does for other failures; at most ``left_s``."""
    return max(0.0, min(left_s, random.uniform(0, BACKOFF_S * 2 ** (attempt - 1))))  # noqa: S311 - spreads retries


def channel_options() -> list[tuple[str, str | int]]:
    """Channel arguments of the clients."""
    return [
        ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
        # Detects a vanished peer within 15 s; without pings a call waits until its deadline.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        # The option above only limits the wait for TCP acknowledgements (grpcio 1.85). The kernel of a frozen process still sends those, so
        # without this option the client waits a minute.
        ("grpc.http2.ping_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Reconnects to a server that was away within 0.1 to 5 s instead of 1 to 120 s, and gives up on an address that does not respond in
        # 5 s.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_receive_message_length", 64 * 2**20),
    ]
