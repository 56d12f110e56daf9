"""The cost of tracing: python -m tests.bench.tracing [--before FOLDER] [--model english] [--rounds 7] [--calls 4000].

CPU time of the server process a Classify call, in microseconds, all threads: tracing off, of one request in a hundred, of every one, and
of every one while nobody takes the spans. ``--before`` names the folder ``service`` of another checkout, measured beside them. Servers
run side by side and are measured in turn, in another order each round, so that what else the machine does hits all alike; what is told
are medians.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from sentiment.v1 import sentiment_pb2 as pb
from tests.bench.processes import cpu_s, idle_share
from tests.tiny import make_bundle

CALLERS = 16
TEXT = "a good film and a great film"
EXPORT = "opentelemetry.proto.collector.trace.v1.TraceService"


def collector() -> tuple[grpc.Server, str]:
    """Takes spans and forgets them."""
    server = grpc.server(ThreadPoolExecutor(4))
    answer = ExportTraceServiceResponse().SerializeToString()
    handler: Any = grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)  # Any: bytes in and out
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(EXPORT, {"Export": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"http://127.0.0.1:{port}"


class Server:
    """A server with variables of its own."""

    def __init__(self, flags: list[str], environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "sentiment", "serve", "--grpc-listen", "127.0.0.1:0", "--http-listen", "", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
        assert self.process.stderr is not None
        ready = next(line for line in map(json.loads, self.process.stderr) if line["event"] == "ready")
        self.target = str(ready["grpc"])
        self.us: list[float] = []
        # Read to the end, since a full pipe would block the server.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    async def measure(self, calls: int) -> float:
        """CPU microseconds of the server a call."""
        request = pb.ClassifyRequest(text=TEXT).SerializeToString()
        async with grpc.aio.insecure_channel(self.target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            call: Any = channel.unary_unary("/sentiment.v1.SentimentService/Classify")  # Any: bytes in and out

            async def caller() -> None:
                for _ in range(calls // CALLERS):
                    await call(request, timeout=60)

            begun = cpu_s(self.process.pid)
            await asyncio.gather(*(caller() for _ in range(CALLERS)))
            return (cpu_s(self.process.pid) - begun) / calls * 1e6


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=Path)
    parser.add_argument("--model", default="")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=4000)
    options = parser.parse_args()
    taking, url = collector()
    print(f"{idle_share():.0%} of the machine is idle")
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--model", options.model] if options.model else ["--model", "tiny", "--bundles", folder]
        make_bundle(Path(folder))
        sampled = {"SENTIMENT_TRACING": "true", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_EXPORTER_OTLP_ENDPOINT": url}
        servers = {"before": Server(flags, {"PYTHONPATH": str(options.before)})} if options.before else {}
        servers |= {"off": Server(flags, {})}
        servers |= {ratio: Server(flags, {**sampled, "OTEL_TRACES_SAMPLER_ARG": ratio}) for ratio in ("0", "0.01", "0.1", "1")}
        servers |= {"1, nobody takes": Server(flags, {**sampled, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})}
        for number in range(options.rounds + 1):
            for server in random.sample(list(servers.values()), len(servers)):
                us = asyncio.run(server.measure(options.calls))
                # The first round warms up.
                server.us += [us] * bool(number)
        for name, server in servers.items():
            low, middle, high = statistics.quantiles(server.us, n=4)
            print(f"{name:16} {middle:7.1f} core-us/call  (half of the rounds between {low:.1f} and {high:.1f})")
            server.process.terminate()
        for server in servers.values():
            server.process.wait()
    taking.stop(0)


if __name__ == "__main__":
    main()
