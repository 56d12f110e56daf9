"""The server under load: one text an RPC, batches and streams, closed and open loop; then with front ends."""

import random
import threading
import time
from collections.abc import Mapping
from functools import partial

import tokenizers

from sentiment_models.export.manifest import TOKENIZER_FILE
from tests.bench.gpu.bench import Bench
from tests.bench.gpu.bert import SIZES
from tests.bench.gpu.child import Gone
from tests.bench.gpu.report import IN_PROCESS, LOADS, P99_MS, server_rows
from tests.bench.gpu.rows import MIXES
from tests.bench.gpu.serving import Answered, Clients, Server
from tests.bench.processes import cpu_s
from tests.bench.texts import texts_of

TEXTS = 300
STREAMS = 4
BATCH_CALLS = 16


class Loaded:
    """Measures one server with one mix of texts."""

    def __init__(self, bench: Bench, size: str, mix: str, server: Server, clients: Clients, until: float) -> None:
        self.bench, self.plan, self.server, self.clients, self.until = bench, bench.plan, server, clients, until
        self.name, self.size, self.mix = f"{size}_{mix}", size, mix

    def closed(self, kind: str) -> dict[str, float]:
        """Closed loop: each caller sends its next call after the answer to the last."""
        in_flight = {"unary": self.plan.in_flight, "batch": BATCH_CALLS, "stream": STREAMS}[kind]
        before, cpu, begun = self.server.metrics(), cpu_s(self.server.process.pid), time.monotonic()
        under_load: dict[str, float] = {}
        # The driver reports recent utilization only, so it is read during the load.
        timer = threading.Timer(0.7 * self.plan.load_s, lambda: under_load.update(self.server.metrics()))
        timer.start()
        items = self.plan.stream_items if kind == "stream" else self.plan.batch_items
        said = self.clients.closed(kind, in_flight, items, self.plan.load_s, self.until)
        timer.join()
        after = self.server.metrics()
        took_s, spent_s = time.monotonic() - begun, cpu_s(self.server.process.pid) - cpu
        if not said.texts_per_s:
            raise Gone(f"no text of {kind} was answered; {said.failed} failed")
        found = {f"{self.name}_server_{kind}_texts_per_s": said.texts_per_s, f"{self.name}_server_{kind}_p99_ms": said.p99_ms}
        if kind == "unary":
            found[f"{self.name}_server_cpu_us"] = spent_s / (said.texts_per_s * took_s) * 1e6
        if kind == "batch":
            found |= self._busy(before, after, took_s)
            if "sentiment_device_busy_ratio" in under_load:
                found[f"{self.name}_device_busy"] = under_load["sentiment_device_busy_ratio"]
        return found

    def _busy(self, before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
        """Figures from the server's own metrics, between two scrapes."""
        grown = {key: after[key] - before.get(key, 0.0) for key in after}
        real, padded = grown["sentiment_tokens_total.real"], grown["sentiment_tokens_total.padded"]
        return {
            f"{self.name}_runner_busy": grown["sentiment_runner_busy_seconds_total"] / seconds,
            f"{self.name}_served_real_over_processed": real / max(1.0, real + padded),
        }

    def open(self, kind: str) -> dict[str, float]:
        """Open loop: the highest Poisson rate whose p99 is within the limit, and its ratio to the in-process rate."""
        closed = self.bench.found.get(f"{self.name}_server_{kind}_texts_per_s")
        if closed is None:
            raise Gone("the closed loop did not tell where to begin")
        items = self.plan.batch_items if kind == "batch" else 1
        said = self.clients.highest(closed, items, P99_MS, self.plan.load_s, self.until)
        if said is None:
            raise Gone(f"no rate tried had a p99 within {P99_MS:g} ms, or there was no time to try more")
        found = {f"{self.name}_open_{kind}_texts_per_s": said.texts_per_s}
        if offline := self.offline():
            found[f"{self.name}_served_over_offline_{kind}"] = said.texts_per_s / offline
        return found

    def offline(self) -> float:
        """Texts per second in-process, in the better layout; 0 if not measured."""
        return max(self.bench.found.get(f"{self.name}_{layout}_texts_per_s", 0.0) for layout in ("padded", "packed"))

    def alone(self) -> dict[str, float]:
        """One call at a time."""
        said: Answered = self.clients.closed("unary", 1, 1, self.plan.load_s / 2, self.until)
        found = {f"{self.name}_c1_p50_ms": said.p50_ms}
        if alone_ms := self.bench.found.get(IN_PROCESS[self.mix]):
            found[f"{self.name}_c1_over_inprocess"] = said.p50_ms / alone_ms
        return found

    def saturated(self) -> dict[str, float]:
        """The ratio of the useful TFLOP/s of the fastest closed loop to those of the GEMM."""
        rates = [self.bench.found.get(f"{self.name}_server_{kind}_texts_per_s", 0.0) for kind in ("unary", "batch", "stream")]
        offline, tflops = max(
            (self.bench.found.get(f"{self.name}_{layout}_texts_per_s", 0.0), self.bench.found.get(f"{self.name}_{layout}_tflops", 0.0))
            for layout in ("padded", "packed")
        )
        if not offline:
            raise Gone("the same texts were not measured in-process")
        return {f"{self.name}_server_over_gemm": max(rates) / offline * tflops / self.bench.found["probe_gemm_tflops"]}


def serve(bench: Bench, size: str, share: float) -> None:
    """Start a server for one model size and measure it with each of its mixes of texts."""
    until = bench.part(share)
    names = [
        *(name for mix in LOADS[size] for name in server_rows(size, mix)),
        *(f"{size}_server_{what}" for what in ("start_seconds", "memory_pinned", "runs_captured")),
    ]
    bench.attempt(names, until, 10.0 if bench.plan.on_gpu else 1.0, partial(_serve, bench, size, until))


def _serve(bench: Bench, size: str, until: float) -> dict[str, float]:
    begun = time.monotonic()
    with _server(bench, size, 0, begun + 0.6 * (until - begun)) as server:
        bench.found[f"{size}_server_start_seconds"] = server.start_s
        for what, event in (("memory_pinned", "memory_not_pinned"), ("runs_captured", "runs_not_captured")):
            if bench.plan.on_gpu:
                bench.found[f"{size}_server_{what}"] = float(server.event(event) is None)
            else:
                bench.not_measured[f"{size}_server_{what}"] = "there is nothing to see of it without a GPU"
        bench.meta.setdefault("ready", {})[size] = server.ready
        for mix in LOADS[size]:
            with Clients(bench.plan.clients, str(server.ready["grpc"]), _texts(bench, mix), bench.folder) as clients:
                _load(Loaded(bench, size, mix, server, clients, until))
    return {}


def _load(loaded: Loaded) -> None:
    bench, plan, name, until = loaded.bench, loaded.plan, loaded.name, loaded.until
    needs_s = plan.load_s
    loaded.clients.closed("unary", plan.in_flight, 1, plan.load_s / 3, until)
    for kind in ("unary", "batch", "stream"):
        names = [each for each in server_rows(loaded.size, loaded.mix) if f"_server_{kind}_" in each]
        bench.attempt(names, until, needs_s, partial(loaded.closed, kind))
    if loaded.mix in IN_PROCESS:
        bench.attempt([f"{name}_c1_p50_ms", f"{name}_c1_over_inprocess"], until, needs_s, loaded.alone)
    bench.attempt([f"{name}_server_over_gemm"], until, 0.0, loaded.saturated)
    for kind in ("unary", "batch"):
        names = [f"{name}_open_{kind}_texts_per_s", f"{name}_served_over_offline_{kind}"]
        bench.attempt(names, until, needs_s, partial(loaded.open, kind))
    if f"{name}_device_busy" not in bench.found:
        bench.not_measured[f"{name}_device_busy"] = "NVML says nothing of the device: no GPU, or nvidia-ml-py is not installed"


def serve_front_ends(bench: Bench) -> None:
    """BERT-base with 128 tokens, one text per RPC, behind several front ends."""
    until = bench.part(0.95)
    names = [f"base_128_front_ends_{what}" for what in ("unary_texts_per_s", "open_texts_per_s", "over_offline")]
    bench.attempt(names, until, 10.0 if bench.plan.on_gpu else 1.0, partial(_front_ends, bench, until))


def _front_ends(bench: Bench, until: float) -> dict[str, float]:
    plan, begun = bench.plan, time.monotonic()
    with (
        _server(bench, "base", plan.front_ends, begun + 0.6 * (until - begun)) as server,
        Clients(plan.clients, str(server.ready["grpc"]), _texts(bench, "128"), bench.folder) as clients,
    ):
        clients.closed("unary", plan.in_flight, 1, plan.load_s / 3, until)
        closed = clients.closed("unary", 2 * plan.in_flight, 1, plan.load_s, until).texts_per_s
        found = {"base_128_front_ends_unary_texts_per_s": closed}
        bench.meta["front_ends"] = plan.front_ends
        said = clients.highest(closed, 1, P99_MS, plan.load_s, until)
        if said is None:
            return found
        found["base_128_front_ends_open_texts_per_s"] = said.texts_per_s
        offline = max(bench.found.get(f"base_128_{layout}_texts_per_s", 0.0) for layout in ("padded", "packed"))
        return found | ({"base_128_front_ends_over_offline": said.texts_per_s / offline} if offline else {})


def _server(bench: Bench, size: str, front_ends: int, until: float) -> Server:
    """Start a server with the default bundle (size l6 on a GPU) or a random model. Ends the other processes first, to free the device."""
    bench.close()
    plan = bench.plan
    model = "english/1" if size == "l6" and plan.on_gpu else plan.models[size]
    flags = ["--bundles", str(bench.bundles), "--model", model, "--cache-dir", str(bench.folder / "graphs"), *plan.server_flags]
    if front_ends:
        # The stand-in for a GPU works only in the server's own process, not in an executor's.
        flags += ["--front-ends", str(front_ends), "--device", plan.device]
        return Server(flags, "sentiment", bench.folder / "front_ends.log", until)
    program = "sentiment" if plan.on_gpu else "tests.bench.gpu.stand_in"
    return Server([*flags, "--device", plan.device if plan.on_gpu else "cuda:0"], program, bench.folder / f"server_{size}.log", until)


def _texts(bench: Bench, mix: str) -> list[str]:
    tokenizer = tokenizers.Tokenizer.from_file(str(bench.english / TOKENIZER_FILE))
    longest, rng = SIZES[bench.plan.models["base"]].positions, random.Random(1)
    drawn = MIXES[mix].spread(TEXTS if bench.plan.on_gpu else 40, rng)
    return texts_of((min(length, longest) for length in drawn), tokenizer, rng)
