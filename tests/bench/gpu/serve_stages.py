"""The server under load: one text an RPC, batches and streams in closed loops; at steady rates; and with front ends."""

import contextlib
import http.client
import random
import threading
import time
from functools import partial

import tokenizers

from sentiment_models.export.manifest import TOKENIZER_FILE
from tests.bench.gpu import limits
from tests.bench.gpu.bench import Bench, part
from tests.bench.gpu.bert import SIZES, made
from tests.bench.gpu.child import Gone
from tests.bench.gpu.report import CALLS, IN_PROCESS, LOADS, OURS, SHARES, STEADY, call_rows, front_ends_rows, server_rows
from tests.bench.gpu.rows import lengths_of
from tests.bench.gpu.serving import Answered, Clients, Server, tree_cpu_s
from tests.bench.gpu.spread import Rounds
from tests.bench.texts import texts_of

TEXTS = 300
STREAMS = 4
BATCH_CALLS = 16
# The share of the time of a server's stage within which it must be ready.
START_SHARE = 0.7
LOOPS, RUNNERS = "sentiment_loop_busy_seconds_total", "sentiment_runner_busy_seconds_total"
BUSY = "sentiment_device_busy_ratio"
Figures = dict[str, float | Rounds]


class Loaded:
    """Measures one server with one mix of texts."""

    def __init__(self, bench: Bench, name: str, server: Server, clients: Clients, until: float) -> None:
        self.bench, self.plan, self.name, self.server, self.clients, self.until = bench, bench.plan, name, server, clients, until

    def warm(self) -> None:
        """Send what the next loads send, unmeasured."""
        if self.plan.warm_s:
            self.clients.closed("unary", self.plan.in_flight, 1, self.plan.warm_s, self.until)

    def closed(self, kind: str) -> Figures:
        """Closed loop: each caller sends its next call after the answer to the last."""
        in_flight = {"unary": self.plan.in_flight, "batch": BATCH_CALLS, "stream": STREAMS}[kind]
        items = self.plan.stream_items if kind == "stream" else self.plan.batch_items
        name = f"{self.name}_{kind}"
        watch = Watch(self.bench, self.server, self.plan.load_s)
        said = self.clients.closed(kind, in_flight, items, self.plan.load_s, self.until)
        shares = watch.end(name, said, self._tokenize_s())
        found: Figures = {
            f"{name}_texts_per_s": said.rate,
            f"{name}_failed": sum(said.failed.values()),
            f"{name}_limit_busy": limits.server_busy(shares),
        }
        if kind == "unary":
            found[f"{self.name}_server_cpu_us"] = watch.server_cpu * said.seconds / said.texts * 1e6
            if limit := limits.host_limit(said.rate.value, shares):
                found[f"{name}_host_limit_per_s"] = limit
        elif offline := self.offline():
            found[f"{name}_over_offline"] = said.rate.value / offline
        if kind == "batch":
            real, padded = (watch.grown[f"sentiment_tokens_total.{each}"] for each in ("real", "padded"))
            found[f"{self.name}_served_real_over_processed"] = real / max(1.0, real + padded)
            if BUSY in watch.under_load:
                found[f"{self.name}_device_busy"] = watch.under_load[BUSY]
        return found

    def steady(self, share: int) -> Figures:
        """Open loop at a share, in percent, of the rate of the closed loop: the latency that callers see at that load."""
        capacity = self.bench.found.get(f"{self.name}_unary_texts_per_s")
        if capacity is None:
            raise Gone("the closed loop did not tell the capacity")
        name = f"{self.name}_at_{share}"
        watch = Watch(self.bench, self.server, self.plan.steady_s)
        said = self.clients.open(share / 100 * capacity, 1, self.plan.steady_s, self.until)
        watch.end(name, said, self._tokenize_s())
        return {f"{name}_p99_ms": said.p99_ms, f"{name}_failed": sum(said.failed.values())}

    def alone(self, in_process: str) -> Figures:
        """One call at a time. ``in_process``: the figure of the same text in-process."""
        said = self.clients.closed("unary", 1, 1, self.plan.load_s / 2, self.until)
        found: Figures = {f"{self.name}_c1_p50_ms": said.p50_ms}
        if alone_ms := self.bench.found.get(in_process):
            found[f"{self.name}_c1_minus_inprocess_ms"] = said.p50_ms - alone_ms
        return found

    def offline(self) -> float:
        """Texts per second in-process, in the better layout; 0 if not measured."""
        return max(self.bench.found.get(f"{self.name}_{layout}_texts_per_s", 0.0) for layout in OURS)

    def _tokenize_s(self) -> float:
        return self.bench.found.get(f"{self.name}_tokenize_us", 0.0) / 1e6


class Watch:
    """What the server and its machine do during a load: from its creation to ``end``."""

    def __init__(self, bench: Bench, server: Server, seconds: float) -> None:
        self._bench, self._server = bench, server
        self._cpu, self._before = tree_cpu_s(server.process.pid), server.metrics()
        self.under_load: dict[str, float] = {}
        # The driver reports recent utilization only, so it is read during the load.
        self._timer = threading.Timer(0.7 * seconds, self._read)
        self._timer.start()

    def _read(self) -> None:
        # A server that is gone is noticed elsewhere.
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.under_load = self._server.metrics()

    def end(self, name: str, said: Answered, tokenize_s: float) -> dict[str, float]:
        """Note what was busy and what failed in ``meta``; returns the share of the time that each side was busy.

        Args:
            name: of the load.
            said: what the clients measured.
            tokenize_s: seconds that one thread takes to tokenize a text; 0 if not known.
        """
        self._timer.join()
        after = self._server.metrics()
        # The server does nothing before and after.
        took_s = said.seconds
        self.grown = {key: after[key] - self._before.get(key, 0.0) for key in after}
        # CPU seconds a second of all processes of the server.
        self.server_cpu = (tree_cpu_s(self._server.process.pid) - self._cpu) / took_s
        loops = [grown for key, grown in self.grown.items() if key.startswith(LOOPS)]
        shares = {
            limits.CLIENT: said.client_busy,
            limits.DEVICE: self.grown.get(RUNNERS, 0.0) / took_s,
            limits.LOOP: max(loops, default=0.0) / took_s,
            # Front ends tokenize in their own processes.
            limits.TOKENIZER: said.texts / took_s * tokenize_s / max(1, len(loops) - 1),
        }
        self._bench.meta.setdefault("loads", {})[name] = {
            "limit": limits.limit_of(shares),
            "busy": {side: round(share, 3) for side, share in shares.items()},
            "server_cpu": round(self.server_cpu, 2),
            "failed": dict(said.failed),
            "failure": said.failure,
        }
        return shares


def serve(bench: Bench, until: float, size: str) -> None:
    """Start a server for one model size and measure it with each of its mixes of texts."""
    names = [
        *(name for mix in LOADS[size] for name in server_rows(size, mix)),
        *(f"{size}_server_{what}" for what in ("start_seconds", "memory_pinned")),
    ]
    bench.attempt(names, until, 10.0 if bench.plan.on_gpu else 1.0, partial(_serve, bench, size, until))


def _serve(bench: Bench, size: str, until: float) -> Figures:
    with _server(bench, size, 0, part(until, START_SHARE)) as server:
        bench.found[f"{size}_server_start_seconds"] = server.start_s
        if bench.plan.on_gpu:
            bench.found[f"{size}_server_memory_pinned"] = float(server.event("memory_not_pinned") is None)
        else:
            bench.not_measured[f"{size}_server_memory_pinned"] = "there is nothing to see of it without a GPU"
        bench.meta.setdefault("ready", {})[size] = server.ready
        for mix in LOADS[size]:
            with Clients(bench.plan.clients, str(server.ready["grpc"]), texts_for(bench, mix), bench.folder) as clients:
                _load(Loaded(bench, f"{size}_{mix}", server, clients, until), mix)
    return {}


def _load(loaded: Loaded, mix: str) -> None:
    bench, plan, name, until = loaded.bench, loaded.plan, loaded.name, loaded.until
    loaded.warm()
    cpu = {"unary": [f"{name}_server_cpu_us"], "batch": [f"{name}_served_real_over_processed", f"{name}_device_busy"]}
    for kind in bench.rng.sample(CALLS, len(CALLS)):
        bench.attempt([*call_rows(name, kind), *cpu.get(kind, [])], until, plan.load_s, partial(loaded.closed, kind))
    if mix in IN_PROCESS:
        names = [f"{name}_c1_p50_ms", f"{name}_c1_minus_inprocess_ms"]
        bench.attempt(names, until, plan.load_s, partial(loaded.alone, IN_PROCESS[mix]))
    if name == STEADY:
        # Those that there is time for, in random order.
        possible = int(max(0.0, until - time.monotonic()) / (1.05 * plan.steady_s))
        order = [*bench.rng.sample(SHARES[:possible], min(possible, len(SHARES))), *SHARES[possible:]]
        for share in order:
            names = [f"{name}_at_{share}_{what}" for what in ("p99_ms", "failed")]
            bench.attempt(names, until, plan.steady_s, partial(loaded.steady, share))
    if f"{name}_device_busy" not in bench.found:
        bench.not_measured[f"{name}_device_busy"] = "NVML says nothing of the device: no GPU, or nvidia-ml-py is not installed"


def serve_front_ends(bench: Bench, until: float) -> None:
    """BERT-base with 128 tokens, one text per RPC, behind several front ends."""
    bench.attempt(front_ends_rows(), until, 10.0 if bench.plan.on_gpu else 1.0, partial(_front_ends, bench, until))


def _front_ends(bench: Bench, until: float) -> Figures:
    plan, name = bench.plan, "base_128_front_ends"
    with (
        _server(bench, "base", plan.front_ends, part(until, START_SHARE)) as server,
        Clients(plan.clients, str(server.ready["grpc"]), texts_for(bench, "128"), bench.folder) as clients,
    ):
        bench.meta["front_ends"] = plan.front_ends
        loaded = Loaded(bench, "base_128", server, clients, until)
        loaded.warm()
        watch = Watch(bench, server, plan.load_s)
        said = clients.closed("unary", min(2, plan.front_ends) * plan.in_flight, 1, plan.load_s, until)
        shares = watch.end(name, said, bench.found.get("base_128_tokenize_us", 0.0) / 1e6)
        found: Figures = {
            f"{name}_unary_texts_per_s": said.rate,
            f"{name}_unary_failed": sum(said.failed.values()),
            f"{name}_unary_limit_busy": limits.server_busy(shares),
        }
        offline = loaded.offline()
        return found | ({f"{name}_over_offline": said.rate.value / offline} if offline else {})


def _server(bench: Bench, size: str, front_ends: int, until: float) -> Server:
    """Start a server with the default bundle (size l6 on a GPU) or a random model. Ends the other processes first, to free the device."""
    bench.close()
    plan = bench.plan
    model = "english" if size == "l6" and plan.on_gpu else plan.models[size]
    if model != "english":
        made(bench.bundles / model / "1")
    flags = ["--bundles", str(bench.bundles), "--model", model, "--cache-dir", str(bench.folder / "graphs"), *plan.server_flags]
    flags += ["--front-ends", str(front_ends)]
    if front_ends:
        # The stand-in for a GPU works only in the server's own process, not in an executor's.
        flags += ["--device", plan.device]
        return Server(flags, "sentiment", bench.folder / "front_ends.log", until)
    program = "sentiment" if plan.on_gpu else "tests.bench.gpu.stand_in"
    return Server([*flags, "--device", plan.device if plan.on_gpu else "cuda:0"], program, bench.folder / f"server_{size}.log", until)


def texts_for(bench: Bench, mix: str) -> list[str]:
    """Texts with the lengths of a mix, as the model's tokenizer counts them."""
    tokenizer = tokenizers.Tokenizer.from_file(str(bench.english / TOKENIZER_FILE))
    longest, rng = SIZES[bench.plan.models["base"]].positions, random.Random(1)
    drawn = lengths_of(mix).spread(TEXTS if bench.plan.on_gpu else 40, rng)
    return texts_of((min(length, longest) for length in drawn), tokenizer, rng)
