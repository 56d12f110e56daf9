"""Default behaviour of the clients: load balancing, retries, keepalive, message sizes. See docs/guide/grpc.md for other languages."""

import json
import random
from dataclasses import dataclass

from sentiment.v1 import sentiment_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["SentimentService"].full_name
ATTEMPTS_MAX = 4


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before each further attempt: ``first_s``, then ``factor`` times as long each time, at most ``most_s``.

    ``jitter``: the share of each wait that chance may take away; 1: any wait up to it, as gRPC does.
    """

    first_s: float
    most_s: float
    factor: float = 2
    jitter: float = 0

    def pause_s(self, attempt: int) -> float:
        """Seconds to wait after attempt number ``attempt``, from 1."""
        longest_s = min(self.most_s, self.first_s * self.factor ** (attempt - 1))
        return longest_s * (1 - random.uniform(0, self.jitter))  # noqa: S311 - spreads retries


# Of a call that failed or that the server dropped.
RETRIES = Backoff(0.05, 1.0, jitter=1)
# Of texts of many that the server refused. Each wait is whole: together they outlast a restart of the server.
RESENDING = Backoff(0.1, 10.0)
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
                "initialBackoff": f"{RETRIES.first_s:g}s",
                "maxBackoff": f"{RETRIES.most_s:g}s",
                "backoffMultiplier": RETRIES.factor,
                # The server's pushback sets the delay, but only for these codes.
                "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
            },
        },
    ],
    "retryThrottling": {"maxTokens": TOKENS_MAX, "tokenRatio": 0.1},
}


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
        # Reconnects to a lost server within 0.1 to 5 s instead of 1 to 120 s, and gives up on an address that does not respond in
        # 5 s.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_receive_message_length", 64 * 2**20),
    ]
