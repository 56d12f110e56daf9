"""A real OTLP receiver on a free port: takes spans, hangs, or refuses."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service
from opentelemetry.proto.trace.v1 import trace_pb2

# Longer than any machine takes; a test that passes never waits so long.
PATIENCE_S = 60


@dataclass(frozen=True)
class Got:
    """A received span and its resource."""

    proto: trace_pb2.Span
    resource: dict[str, Any]

    @property
    def name(self) -> str:
        return self.proto.name

    @property
    def trace(self) -> str:
        return self.proto.trace_id.hex()

    @property
    def id(self) -> str:
        return self.proto.span_id.hex()

    @property
    def parent(self) -> str:
        return self.proto.parent_span_id.hex()

    @property
    def links(self) -> set[tuple[str, str]]:
        return {(link.trace_id.hex(), link.span_id.hex()) for link in self.proto.links}

    @property
    def place(self) -> tuple[str, str]:
        return self.trace, self.id

    @property
    def attributes(self) -> dict[str, Any]:
        return values_of(self.proto.attributes)

    @property
    def failed(self) -> bool:
        return self.proto.status.code == trace_pb2.Status.STATUS_CODE_ERROR

    @property
    def server(self) -> bool:
        return self.proto.kind == trace_pb2.Span.SPAN_KIND_SERVER


def values_of(pairs: Iterable[Any]) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


class Collector(service.TraceServiceServicer):
    """Collects all spans in ``spans``."""

    def __init__(self, port: int = 0) -> None:
        self.spans: list[Got] = []
        self.raw: list[bytes] = []
        self.hangs = self.refuses = False
        self.calls = 0
        self._let = threading.Event()
        self._came = threading.Condition()
        self._server = grpc.server(ThreadPoolExecutor(4))
        service.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]  # generated without types
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()
        self.url = f"http://127.0.0.1:{self.port}"

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802  # as the stub
        with self._came:
            self.calls += 1
            self._came.notify_all()
        if self.hangs:
            self._let.wait(PATIENCE_S)
        if self.refuses:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "not yours")
        with self._came:
            self.raw.append(request.SerializeToString())
            for of_resource in request.resource_spans:
                resource = values_of(of_resource.resource.attributes)
                for scope in of_resource.scope_spans:
                    self.spans += [Got(span, resource) for span in scope.spans]
            self._came.notify_all()
        return service_pb.ExportTraceServiceResponse()

    def wait_for(self, true: Callable[[list[Got]], Any], what: str = "spans") -> list[Got]:
        """Wait until ``true`` holds for the spans; returns all of them."""
        with self._came:
            assert self._came.wait_for(lambda: true(self.spans), PATIENCE_S), f"no {what}: {[span.name for span in self.spans]}"
            return list(self.spans)

    def wait_for_calls(self, calls: int) -> None:
        with self._came:
            assert self._came.wait_for(lambda: self.calls >= calls, PATIENCE_S)

    def wait_for_trace(self, trace: str, *names: str) -> dict[str, Got]:
        """Wait for a trace's spans of these names and its server span, which comes last; returns all by name."""
        spans = self.wait_for(
            lambda spans: (
                {*names} <= {span.name for span in spans if span.trace == trace}
                and any(span.trace == trace and span.server for span in spans)
            ),
            f"{names} of trace {trace}",
        )
        return {span.name: span for span in spans if span.trace == trace}

    def stop(self) -> None:
        self._let.set()
        self._server.stop(0)
