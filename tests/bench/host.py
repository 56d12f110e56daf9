"""How many texts a second the host can feed to a GPU: ``python -m tests.bench.host``. Needs no GPU.

The real server, alone and with front ends, with a stand-in for the GPU's session that takes as long as an H100 is reckoned to and then
returns the same logits for every row. Clients are processes of their own on the same cores, so that CPU time a text is what tells: a core
of the host feeds as many texts a second as fit into its second. The busiest process is the bottleneck where there is a core for each.
"""

import argparse
import asyncio
import dataclasses
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import tokenizers
from google.protobuf.duration_pb2 import Duration

from sentiment.model.bundle import bundle_roots, find_bundle
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from sentiment_tools.traffic.lengths import SHORT
from sentiment_tools.traffic.texts import with_new_words
from tests.bench.processes import cpu_s, idle_share
from tests.bench.texts import make_texts

CLIENTS = 2
CHANNELS = 4
# Texts that one client has on their way: calls, texts of a stream, batches.
CALLS, STREAMED, BATCHES, ITEMS = 64, 512, 2, 256
KINDS = ("unary", "stream", "batch")
FRONT_ENDS = (0, 1, 2)
# Texts a second that a core of the host is to feed.
TARGETS = {"unary": 1_600, "stream": 4_000, "batch": 12_000}
# The share of the measured rate at which nothing may be refused.
SHARE = 0.9
TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Reckoned:
    """Seconds of a run: ``least_s`` to start its kernels, or ``token_s`` for each token if that is more."""

    least_s: float
    token_s: float

    def run_s(self, tokens: int) -> float:
        """Of a batch of this many tokens."""
        return max(self.least_s, self.token_s * tokens)


# An H100, reckoned: 1.5 ms for 1,024 rows of 25 tokens of the default bundle, 8 ms for 128 rows of 128 tokens of BERT-base.
MODELS = {"default": Reckoned(3e-4, 1.5e-3 / (1024 * 25)), "base": Reckoned(9e-4, 8e-3 / (128 * 128))}
LENGTHS = {"short": SHORT, "128": [128] * len(SHORT)}


def take_the_place_of_a_gpu(model: Reckoned) -> None:
    """Make this process serve on the stand-in."""
    # Here, since the measuring process needs none of it.
    from sentiment.lifecycle import loading
    from sentiment.model.gpu import device_session, on_device
    from sentiment.model.gpu import graphs as gpu_graphs
    from sentiment.model.gpu.devices import Found
    from tests.bench.gpu.stand_in import STAND_IN
    from tests.packed_twin import save_twin

    make = gpu_graphs.make_graphs

    def make_runnable(*arguments: Any) -> Any:  # Any: those of make_graphs
        made = make(*arguments)
        assert made.packed is not None
        twin = made.packed.with_name("twin.onnx")
        save_twin(made.packed, twin)
        return dataclasses.replace(made, packed=twin)

    def run(self: device_session.DeviceSession, feeds: Any, _options: Any) -> npt.NDArray[np.float32]:  # Any: of ONNX Runtime
        time.sleep(model.run_s(feeds["input_ids"].size))
        return np.tile(np.array([-1, 1], np.float32), (len(feeds["token_offset"]), 1))

    for module, name, stand_in in (
        (gpu_graphs, "make_graphs", make_runnable),
        # All rows are answered alike.
        (on_device, "golden_failures", lambda _classifier: iter(())),
        (device_session.DeviceSession, "_run", run),
        (loading, "find_devices", lambda _wanted, _prove: Found((STAND_IN,))),
    ):
        setattr(module, name, stand_in)


def serve(model: str, arguments: list[str]) -> int:
    """``sentiment serve`` on the stand-in, and so its front ends' executor."""
    from sentiment.cli.main import main as sentiment  # as above
    from sentiment_front_ends import supervisor  # as above

    supervisor.COMMAND = (sys.executable, "-P", "-m", "tests.bench.host", "part", model)
    take_the_place_of_a_gpu(MODELS[model])
    return sentiment(["serve", *arguments])


def part(model: str) -> None:
    """One process of several."""
    from sentiment_front_ends.__main__ import main as front_ends  # as above

    take_the_place_of_a_gpu(MODELS[model])
    sys.exit(front_ends())


class Client:
    """Sends texts, as fast as they are answered or at a rate, and counts."""

    def __init__(self, target: str, texts: Sequence[str], seconds: float, rate: float) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self._channels = [grpc.aio.insecure_channel(target, options) for _ in range(CHANNELS)]
        self._stubs: list[Any] = [pb_grpc.SentimentServiceStub(channel) for channel in self._channels]
        # The server reads words faster that it has seen.
        rng = random.Random()
        self._texts = (with_new_words(text, rng) for text in itertools.cycle(texts))
        self._begun = time.monotonic()
        self._until = self._begun + seconds
        self._rate = rate
        self._due = 0
        self.answered = self.refused = 0

    async def drive(self, kind: str) -> None:
        """Send for the time given."""
        work, count = {"unary": (self._unary, CALLS), "stream": (self._stream, CHANNELS), "batch": (self._batch, BATCHES)}[kind]
        await asyncio.gather(*(work(self._stubs[number % CHANNELS]) for number in range(count)))
        for channel in self._channels:
            await channel.close()

    async def _next(self, texts: int) -> bool:
        """Wait until that many texts are due; False once the time is over."""
        due_at = self._begun + self._due / self._rate if self._rate else 0.0
        self._due += texts
        if (early_s := due_at - time.monotonic()) > 0:
            await asyncio.sleep(early_s)
        return time.monotonic() < self._until

    async def _unary(self, stub: Any) -> None:  # Any: generated code has no types
        while await self._next(1):
            try:
                await stub.Classify(pb.ClassifyRequest(text=next(self._texts)), timeout=TIMEOUT_S)
                self.answered += 1
            except grpc.aio.AioRpcError:
                self.refused += 1

    async def _batch(self, stub: Any) -> None:  # Any: as above
        while await self._next(ITEMS):
            items = [pb.Item(text=text) for text in itertools.islice(self._texts, ITEMS)]
            self._count((await stub.ClassifyBatch(pb.ClassifyBatchRequest(items=items), timeout=TIMEOUT_S)).results)

    async def _stream(self, stub: Any) -> None:  # Any: as above
        room = asyncio.Semaphore(STREAMED // CHANNELS)

        async def requests() -> AsyncIterator[pb.ClassifyStreamRequest]:
            number = 0
            while await self._next(1):
                await room.acquire()
                number += 1
                item = pb.Item(text=next(self._texts))
                yield pb.ClassifyStreamRequest(id=str(number), item=item, timeout=Duration(seconds=TIMEOUT_S))

        async for response in stub.ClassifyStream(requests()):
            self._count([response])
            room.release()

    def _count(self, results: Sequence[Any]) -> None:  # Any: as above
        answered = sum(result.WhichOneof("result") == "response" for result in results)
        self.answered += answered
        self.refused += len(results) - answered


async def send(target: str, kind: str, texts: Sequence[str], seconds: float, rate: float) -> Client:
    """Send texts, and return the client with its counts."""
    client = Client(target, texts, seconds, rate)
    await client.drive(kind)
    return client


@dataclass(frozen=True, slots=True)
class Load:
    """What all clients together saw."""

    texts_per_s: float
    refused: int


def load(target: str, kind: str, texts: Path, seconds: float, rate: float = 0.0) -> Load:
    """Send texts from CLIENTS processes, at ``rate`` texts a second if it is given."""
    command = [sys.executable, "-m", "tests.bench.host", "client", target, kind, str(texts), str(seconds), str(rate / CLIENTS)]
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(CLIENTS)]
    counted = [json.loads(client.communicate()[0]) for client in clients]
    return Load(sum(one["answered"] for one in counted) / seconds, sum(one["refused"] for one in counted))


@contextmanager
def server(model: str, front_ends: int, folder: Path) -> Iterator[tuple[str, dict[str, int]]]:
    """A server's target, and its processes by name."""
    flags = ["--device", "auto", "--precision", "fp32", "--grpc-listen", "127.0.0.1:0", "--http-listen", "", "--drain-wait-s", "0"]
    command = [sys.executable, "-m", "tests.bench.host", "serve", model, *flags, "--no-explain", "--front-ends", str(front_ends)]
    # With -P a process does not search its working directory.
    path = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": path}
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(command, stderr=log, text=True, env=environment)
        try:
            entries = _ready(process, folder / "log")
            started = {entry["started"]: entry["pid"] for entry in entries if entry["event"] == "process_started"}
            yield str(entries[-1]["grpc"]), started or {"server": process.pid}
        finally:
            process.terminate()
            process.wait()


def _ready(process: "subprocess.Popen[str]", log: Path) -> list[dict[str, Any]]:  # Any: JSON
    """The log's entries until the one that says that the server is ready."""
    while process.poll() is None:
        entries = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
        for place, entry in enumerate(entries):
            if entry["event"] == "ready":
                return entries[: place + 1]
        time.sleep(0.1)
    raise RuntimeError(f"the server ended with {process.returncode}: {log.read_text()[-2000:]}")


def measure(model: str, lengths: str, kinds: Sequence[str], front_ends: Sequence[int], seconds: float) -> Iterator[dict[str, Any]]:
    """A row for each number of front ends and kind of call."""
    tokenizer = tokenizers.Tokenizer.from_file(str(find_bundle("english", bundle_roots([])) / "tokenizer.json"))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        texts = folder / "texts.json"
        texts.write_text(json.dumps(make_texts(LENGTHS[lengths], 512, tokenizer)))
        for number in front_ends:
            with server(model, number, folder) as (target, pids):
                for kind in kinds:
                    load(target, kind, texts, min(1.0, seconds))
                    before = {name: cpu_s(pid) for name, pid in pids.items()}
                    found = load(target, kind, texts, seconds)
                    answered = max(1.0, found.texts_per_s * seconds)
                    spent = {name: (cpu_s(pid) - before[name]) / answered * 1e6 for name, pid in pids.items()}
                    busiest = max(spent, key=spent.__getitem__)
                    calm = load(target, kind, texts, seconds, SHARE * found.texts_per_s)
                    yield {
                        "model": model,
                        "texts": lengths,
                        "front_ends": number,
                        "kind": kind,
                        "texts_per_s": round(found.texts_per_s),
                        "host_us": round(sum(spent.values()), 1),
                        "per_core": round(1e6 / max(1e-9, sum(spent.values()))),
                        "bottleneck": busiest,
                        "bottleneck_us": round(spent[busiest], 1),
                        "core_each": round(1e6 / max(1e-9, spent[busiest])),
                        "refused": found.refused,
                        "refused_at_0.9": calm.refused,
                        "target_per_core": TARGETS[kind],
                    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The rows as a table in Markdown."""
    print("| model, texts | front ends | calls | texts/s here | host CPU, us a text | texts/s a core (target) | the busiest process, us |")
    print("|---|---:|---|---:|---:|---:|---|")
    for row in rows:
        print(
            f"| {row['model']}, {row['texts']} | {row['front_ends']} | {row['kind']} | {row['texts_per_s']:,} | {row['host_us']:,} "
            f"| {row['per_core']:,} ({row['target_per_core']:,}) | {row['bottleneck']} {row['bottleneck_us']:,} |"
        )
    refused = [row for row in rows if row["refused_at_0.9"]]
    print(f"refused at {SHARE:g} of the rate: {[(row['front_ends'], row['kind'], row['refused_at_0.9']) for row in refused] or 'none'}")


def main() -> int:
    """Measure, or be one of the processes of a measurement."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    role, *rest = sys.argv[1:] or [""]
    if role == "serve":
        return serve(rest[0], rest[1:])
    if role == "part":
        part(rest[0])
    if role == "client":
        target, kind, texts, seconds, rate = rest
        client = asyncio.run(send(target, kind, json.loads(Path(texts).read_text()), float(seconds), float(rate)))
        print(json.dumps({"answered": client.answered, "refused": client.refused}))
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.bench.host", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each load is held")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of calls, by commas")
    parser.add_argument("--front-ends", default=",".join(map(str, FRONT_ENDS)), help="numbers of front ends, by commas")
    parser.add_argument("--output", type=Path, help="also write the rows here, as JSON")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, {idle_share():.0%} idle")
    kinds, numbers = options.kinds.split(","), [int(number) for number in options.front_ends.split(",")]
    rows = [
        row
        for model, lengths in (("default", "short"), ("base", "128"))
        for row in measure(model, lengths, kinds, numbers, options.seconds)
    ]
    show(rows)
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
