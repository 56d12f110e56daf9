"""How many texts a second the host can feed to a GPU: ``python -m tests.bench.host``. Needs no GPU.

The real server, alone and with front ends, with a stand-in for the GPU's session that takes as long as an H100 is reckoned to and then
returns the same logits for every row. Clients are processes of their own on the same cores, so that CPU time a text is what tells: a core
of the host feeds as many texts a second as fit into its second. The busiest process is the bottleneck where there is a core for each.
"""

import argparse
import dataclasses
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from sentiment.model.bundle import bundle_roots, find_bundle
from sentiment_tools.traffic.lengths import SHORT
from sentiment_tools.traffic.texts import with_new_words
from tests.bench.gpu.serving import Clients, Server
from tests.bench.processes import cpu_s, idle_share
from tests.bench.texts import make_texts

CLIENTS = 2
# By kind of call: how many of all clients run at once, and the texts of a batch, or those that a stream has on their way.
KINDS = {"unary": (128, 1), "stream": (8, 128), "batch": (4, 256)}
# The server reads words faster that it has seen, so most of these have new ones.
TEXTS = 20_000
FRONT_ENDS = (0, 1, 2)
# Texts a second that a core of the host is to feed.
TARGETS = {"unary": 1_600, "stream": 4_000, "batch": 12_000}
# The share of the measured rate at which nothing may be refused.
SHARE = 0.9
# For the start of a server, and for a load beyond its length.
PATIENCE_S = 300.0
# Names the model to the processes of the server.
MODEL = "HOST_BENCH_MODEL"


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
        return np.tile(np.linspace(-1, 1, self.logits, dtype=np.float32), (len(feeds["token_offset"]), 1))

    for module, name, stand_in in (
        (gpu_graphs, "make_graphs", make_runnable),
        # All rows are answered alike.
        (on_device, "golden_failures", lambda _classifier: iter(())),
        (device_session.DeviceSession, "_run", run),
        (loading, "find_devices", lambda _wanted, _prove: Found((STAND_IN,))),
    ):
        setattr(module, name, stand_in)


def serve(arguments: list[str]) -> int:
    """``sentiment serve`` on the stand-in, and so its front ends' executor."""
    from sentiment.cli.main import main as sentiment  # as above
    from sentiment_front_ends import supervisor  # as above

    # With -P a process does not search its working directory, which is in PYTHONPATH.
    supervisor.COMMAND = (sys.executable, "-P", "-m", "tests.bench.host", "part")
    take_the_place_of_a_gpu(MODELS[os.environ[MODEL]])
    return sentiment(["serve", *arguments])


def part() -> int:
    """One process of several."""
    from sentiment_front_ends.__main__ import main as front_ends  # as above

    take_the_place_of_a_gpu(MODELS[os.environ[MODEL]])
    return front_ends()


def measure(model: str, lengths: str, kinds: Sequence[str], front_ends: Sequence[int], seconds: float) -> Iterator[dict[str, Any]]:
    """A row for each number of front ends and kind of call."""
    tokenizer = tokenizers.Tokenizer.from_file(str(find_bundle("english", bundle_roots([])) / "tokenizer.json"))
    rng = random.Random()
    made = itertools.cycle(make_texts(LENGTHS[lengths], 512, tokenizer))
    texts = [with_new_words(text, rng) for text in itertools.islice(made, TEXTS)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
        os.environ |= {MODEL: model, "TMPDIR": place, "PYTHONPATH": path}
        for number in front_ends:
            flags = ["--device", "auto", "--precision", "fp32", "--front-ends", str(number)]
            with (
                Server(flags, "tests.bench.host", folder / "server.log", time.monotonic() + PATIENCE_S) as server,
                Clients(CLIENTS, str(server.ready["grpc"]), texts, folder) as clients,
            ):
                started = {entry["started"]: entry["pid"] for entry in server.events if entry["event"] == "process_started"}
                pids = started or {"server": server.process.pid}
                for kind in kinds:
                    yield {"model": model, "texts": lengths, "front_ends": number, "kind": kind, **load(clients, kind, pids, seconds)}


def load(clients: Clients, kind: str, pids: Mapping[str, int], seconds: float) -> dict[str, Any]:
    """The figures of one kind of call; ``pids``: of the server's processes by name."""
    in_flight, items = KINDS[kind]
    until = time.monotonic() + 3 * seconds + PATIENCE_S
    clients.closed(kind, in_flight, items, min(1.0, seconds), until)
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    found = clients.closed(kind, in_flight, items, seconds, until)
    spent = {name: (cpu_s(pid) - before[name]) / found.texts * 1e6 for name, pid in pids.items()}
    busiest = max(spent, key=spent.__getitem__)
    # A stream takes what its server lets it send.
    calm = {} if kind == "stream" else clients.open(SHARE * found.rate.value, items, seconds, until).failed
    return {
        "texts_per_s": round(found.rate.value),
        "host_us": round(sum(spent.values()), 1),
        "per_core": round(1e6 / max(1e-9, sum(spent.values()))),
        "bottleneck": busiest,
        "bottleneck_us": round(spent[busiest], 1),
        "core_each": round(1e6 / max(1e-9, spent[busiest])),
        "refused": sum(found.failed.values()),
        "refused_at_0.9": sum(calm.values()),
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
        return serve(rest)
    if role == "part":
        return part()
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
