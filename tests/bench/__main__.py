"""``make bench``: CPU time of the server, of the ceiling and of an echo server, interleaved in one run."""

import argparse
import asyncio
import gzip
import json
import os
import platform
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import tokenizers
from google.protobuf.duration_pb2 import Duration

from sentiment.files.reading import read_texts
from sentiment.model.bundle import bundle_roots, find_bundle
from sentiment.model.cores import cores_granted
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.v1 import sentiment_pb2_grpc as pb_grpc
from sentiment_tools.traffic.lengths import LONG, SHORT
from tests.bench.explanations import measure_explanations
from tests.bench.processes import CEILING_ROWS, Started, Worker, cpu_s, idle_share, processor, start_server
from tests.bench.slo import POLICIES, SHARES, measure_objective
from tests.bench.texts import make_texts, texts_of

CONCURRENCY = 32
BATCH_ITEMS = 256
# The ways to send texts; each is a method of Load.
KINDS = ("unary", "http", "batch", "stream")
IDLE_MIN = 0.9
# Tokens of explained texts, with the aims with VNNI for the first picture and the end, in milliseconds from the answer.
EXPLAINED = {25: (300.0, None), 512: (1000.0, 4000.0)}


class Load:
    """Sends texts to the server, one text an RPC or a POST, in batches, or as a stream."""

    def __init__(self, target: str, http: str) -> None:
        self._http = http
        self._channel = grpc.aio.insecure_channel(target)
        self._stub: Any = pb_grpc.SentimentServiceStub(self._channel)

    async def unary(self, texts: Sequence[str], callers: int = CONCURRENCY) -> list[float]:
        """One text an RPC, with this number of callers; returns the seconds of each call."""
        requests = iter([pb.ClassifyRequest(text=text) for text in texts])
        seconds = []

        async def caller() -> None:
            for request in requests:
                begun = time.perf_counter()
                await self._stub.Classify(request, timeout=60)
                seconds.append(time.perf_counter() - begun)

        await asyncio.gather(*(caller() for _ in range(callers)))
        return seconds

    async def http(self, texts: Sequence[str]) -> None:
        """One text a POST, CONCURRENCY at a time."""
        posts = iter(texts)
        async with aiohttp.ClientSession() as session:

            async def caller() -> None:
                for text in posts:
                    async with session.post(f"http://{self._http}/v1/classify", json={"text": text}) as response:
                        response.raise_for_status()
                        await response.read()

            await asyncio.gather(*(caller() for _ in range(CONCURRENCY)))

    async def batch(self, texts: Sequence[str]) -> None:
        """BATCH_ITEMS texts an RPC, two at a time."""
        chunks = [texts[start : start + BATCH_ITEMS] for start in range(0, len(texts), BATCH_ITEMS)]
        requests = iter([pb.ClassifyBatchRequest(items=[pb.Item(text=text) for text in chunk]) for chunk in chunks])

        async def caller() -> None:
            for request in requests:
                response = await self._stub.ClassifyBatch(request, timeout=60)
                assert all(result.WhichOneof("result") == "response" for result in response.results)

        await asyncio.gather(caller(), caller())

    async def stream(self, texts: Sequence[str]) -> None:
        """All in one stream."""

        async def items() -> AsyncIterator[pb.ClassifyStreamRequest]:
            for number, text in enumerate(texts):
                yield pb.ClassifyStreamRequest(id=str(number), item=pb.Item(text=text), timeout=Duration(seconds=60))

        async for response in self._stub.ClassifyStream(items()):
            assert response.WhichOneof("result") == "response"


async def measure_echo_stream(target: str, pid: int, texts: Sequence[str]) -> float:
    """CPU milliseconds of the echo server a message of one stream: the least that a stream costs."""

    async def messages() -> AsyncIterator[bytes]:
        for text in texts:
            yield pb.ClassifyStreamRequest(item=pb.Item(text=text)).SerializeToString()

    async with grpc.aio.insecure_channel(target) as channel:
        call: Any = channel.stream_stream("/bench.Echo/EchoStream")
        begun = cpu_s(pid)
        async for _ in call(messages()):
            pass
        return (cpu_s(pid) - begun) / len(texts) * 1e3


async def measure_echo(target: str, pid: int, texts: Sequence[str], callers: int = CONCURRENCY) -> tuple[float, float]:
    """CPU milliseconds of the echo server a call, and the median milliseconds of one."""
    async with grpc.aio.insecure_channel(target) as channel:
        call: Any = channel.unary_unary("/bench.Echo/Echo")
        requests = iter([pb.ClassifyRequest(text=text).SerializeToString() for text in texts])
        seconds = []

        async def caller() -> None:
            for request in requests:
                begun = time.perf_counter()
                await call(request)
                seconds.append(time.perf_counter() - begun)

        begun = cpu_s(pid)
        await asyncio.gather(*(caller() for _ in range(callers)))
        return (cpu_s(pid) - begun) / len(texts) * 1e3, statistics.median(seconds) * 1e3


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything; returns what bench.json holds."""
    bundle = find_bundle(options.model, bundle_roots([]))
    threads = cores_granted()
    idle = idle_share()
    if idle < IDLE_MIN:
        print(f"warning: the machine is only {idle:.0%} idle; the figures below are marked")
    tokenizer = tokenizers.Tokenizer.from_file(str(bundle / "tokenizer.json"))
    if options.texts:
        mixes = {"": list(read_texts(options.texts, options.column))}
    else:
        mixes = {"": make_texts(SHORT, 300, tokenizer), "_long": make_texts(LONG, 60, tokenizer)}
    measured = (str(bundle), str(threads))
    echo, ceiling = Worker("processes", "echo"), Worker("processes", "ceiling", *measured)
    server = start_server(options.model)
    try:
        results: list[dict[str, Any]] = []
        for suffix, texts in mixes.items():
            results += await measure(suffix, texts, echo, ceiling, server, options)
            fp32 = Worker("processes", "ceiling", *measured, "fp32")
            results += compare_precisions(suffix, texts, ceiling, fp32, options)
            fp32.close()
        for tokens, (first_ms, end_ms) in EXPLAINED.items():
            found = await measure_explanations(server.grpc, texts_of([tokens] * options.rounds, tokenizer, random.Random(1)))
            aims = {"first": first_ms, "final": None, "end": end_ms}
            results += [result(f"explain_{tokens}_tokens_{name}_ms", found[name], "ms", aim) for name, aim in aims.items()]
    finally:
        for worker in (echo, ceiling):
            worker.close()
        server.end()
    mixed = [text for texts in mixes.values() for text in texts[:: max(1, len(texts) // 60)]]
    results += summarize_objective(await measure_objective(options.model, mixed, options.seconds))
    meta = {
        "model": options.model,
        "digest": ceiling.hello["digest"],
        "precision": ceiling.hello["precision"],
        "cores": threads,
        "cpu": processor(),
        "python": platform.python_version(),
        "idle_share": round(idle, 3),
        "rounds": options.rounds,
        "concurrency": CONCURRENCY,
        "batch_items": BATCH_ITEMS,
    }
    return {"meta": meta, "results": results}


async def measure(
    suffix: str,
    texts: list[str],
    echo: Worker,
    ceiling: Worker,
    server: Started,
    options: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Measure one mix of texts, every part once a round; medians over the rounds."""
    load, pid = Load(server.grpc, server.http), server.process.pid
    seen: dict[str, list[float]] = {}
    passes = options.passes
    for number in range(options.rounds + 1):
        echo_target, echo_pid = echo.hello["target"], echo.process.pid
        echoed = texts * passes * (1 if suffix else 4)
        found = {"echo": (await measure_echo(echo_target, echo_pid, echoed))[0]}
        found["echo_stream"] = await measure_echo_stream(echo_target, echo_pid, echoed)
        for rows in CEILING_ROWS:
            found[f"ceiling_{rows}"] = ceiling.ask(texts=texts, rows=rows, passes=passes)["ms"]
        for kind in KINDS:
            begun, wall = cpu_s(pid), time.perf_counter()
            await getattr(load, kind)(texts * passes)
            found[kind] = (cpu_s(pid) - begun) / (passes * len(texts)) * 1e3
            found[f"{kind}_texts_per_s"] = passes * len(texts) / (time.perf_counter() - wall)
        alone = texts[:: max(1, len(texts) // 60)]
        found["echo_p50"] = (await measure_echo(echo_target, echo_pid, alone, callers=1))[1]
        found["inprocess_p50"] = statistics.median(ceiling.ask(latency=alone)["seconds"]) * 1e3
        found["server_p50"] = statistics.median(await load.unary(alone, callers=1)) * 1e3
        print(f"round {number} of {options.rounds}{' (warm-up)' if not number else ''}{suffix}", flush=True)
        for name, value in found.items() if number else ():
            seen.setdefault(name, []).append(value)
    return summarize(suffix, {name: statistics.median(values) for name, values in seen.items()})


def summarize(suffix: str, median: dict[str, float]) -> list[dict[str, Any]]:
    """The results of one mix, named and aimed as docs/internals/performance.md says."""
    best = min(CEILING_ROWS, key=lambda rows: median[f"ceiling_{rows}"])
    least = median[f"ceiling_{best}"]
    aimed = not suffix

    def entry(name: str, value: float, unit: str, target: float | None = None, higher: bool = False) -> dict[str, Any]:
        return result(name + suffix, value, unit, target if aimed else None, higher)

    return [
        entry("echo_ms", median["echo"], "core-ms/call"),
        entry("echo_stream_ms", median["echo_stream"], "core-ms/message"),
        *(entry(f"ceiling_rows_{rows}_ms", median[f"ceiling_{rows}"], "core-ms/text") for rows in CEILING_ROWS),
        entry("ceiling_ms", least, "core-ms/text"),
        *(entry(f"server_{kind}_ms", median[kind], "core-ms/text") for kind in KINDS),
        *(entry(f"{kind}_texts_per_s", median[f"{kind}_texts_per_s"], "texts/s", None, True) for kind in KINDS),
        entry("http_over_unary", median["http"] / median["unary"], "ratio", 1.0),
        entry("overhead_unary_over_echo", (median["unary"] - least) / median["echo"], "ratio", 2.0),
        entry("overhead_batch_ms", median["batch"] - least, "core-ms/text", 0.07),
        entry("overhead_stream_ms", median["stream"] - least, "core-ms/text", 0.07),
        entry("efficiency_unary", least / median["unary"], "ratio", 0.80, True),
        entry("efficiency_batch", least / median["batch"], "ratio", 0.95, True),
        entry("efficiency_stream", least / median["stream"], "ratio", 0.95, True),
        entry("p50_c1_minus_inprocess_ms", median["server_p50"] - median["inprocess_p50"], "ms", 0.5),
        entry("echo_p50_c1_ms", median["echo_p50"], "ms"),
    ]


def compare_precisions(suffix: str, texts: Sequence[str], int8: Worker, fp32: Worker, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The speed of the served graph relative to the fp32 graph, each at its best batch size; and the loss of accuracy."""
    workers, least = {"int8": int8, "fp32": fp32}, dict[str, list[float]]()
    for number in range(options.rounds + 1):
        for name, worker in workers.items():
            # The first round warms up.
            sent = texts if number else texts[:8]
            least.setdefault(name, []).append(min(worker.ask(texts=sent, rows=rows, passes=1)["ms"] for rows in CEILING_ROWS))
    speedup = statistics.median(least["fp32"][1:]) / statistics.median(least["int8"][1:])
    found = [result(f"int8_speedup{suffix}", speedup, "ratio", None if suffix else 2.2, higher=True)]
    if options.labelled and not suffix:
        lines = [line.partition("\t") for line in read_lines(options.labelled)]
        lines = lines[:: max(1, len(lines) // options.labelled_rows)]
        command = {"texts": [text for _, _, text in lines], "labels": [int(label) for label, _, _ in lines]}
        loss = fp32.ask(**command)["accuracy"] - int8.ask(**command)["accuracy"]
        found.append(result("int8_accuracy_loss_points", 100 * loss, f"points, {len(lines)} rows", 0.3))
    return found


def read_lines(path: Path) -> list[str]:
    """Lines of a text file, gzip-compressed or not."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines()


def summarize_objective(found: dict[str, float]) -> list[dict[str, Any]]:
    """The results under open-loop load."""
    fifo = max(found["load_fifo-8"], found["load_fifo-32"])
    return [
        result("capacity_mixed_texts_per_s", found["capacity"], "texts/s", None, higher=True),
        *(result(f"slo_load_{name}", found[f"load_{name}"], "texts/s", None, higher=True) for name in POLICIES),
        result("slo_load_over_fifo", found["load_ours"] / fifo, "ratio", 2.0, higher=True),
        result("slo_load_over_single", found["load_ours"] / found["load_single"], "ratio", 1.2, higher=True),
        result("overload_goodput_ratio", found["overload_ours"] / found["capacity"], "ratio", 0.95, higher=True),
        *(
            result(f"overload_goodput_ratio_{name}", found[f"overload_{name}"] / found["capacity"], "ratio", None, higher=True)
            for name in POLICIES
            if name != "ours"
        ),
        *(
            result(f"p{percentile}_over_single_at_{share:g}", _over(found, percentile, share), "ratio", most)
            for share in SHARES
            for percentile, most in ((50, 1.0), (99, 1.05))
        ),
    ]


def _over(found: dict[str, float], percentile: int, share: float) -> float:
    """A percentile of our latency over that of one row at a time, in order of arrival."""
    return found[f"p{percentile}_ours_at_{share:g}"] / found[f"p{percentile}_single_at_{share:g}"]


def result(name: str, value: float, unit: str, target: float | None = None, higher: bool = False) -> dict[str, Any]:
    """An entry of bench.json."""
    return {"name": name, "value": round(value, 4), "unit": unit, "target": target, "higher_is_better": higher}


def table(results: Sequence[dict[str, Any]]) -> str:
    """The results for a terminal."""
    lines = [f"{'name':34} {'value':>10}  {'unit':14} {'target':>10}"]
    for result in results:
        sign = ">=" if result["higher_is_better"] else "<="
        target = f"{sign} {result['target']}" if result["target"] is not None else ""
        lines.append(f"{result['name']:34} {result['value']:10.4f}  {result['unit']:14} {target:>10}")
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, measure, print, write."""
    parser = argparse.ArgumentParser(prog="make bench", description="Measure the server beside the ceiling and an empty echo.")
    parser.add_argument("--texts", type=Path, help="use these texts (.txt, .tsv, .csv, .jsonl, .parquet) instead of generated ones")
    parser.add_argument("--column", default="text")
    parser.add_argument("--model", default="english")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds, after one to warm up")
    parser.add_argument("--passes", type=int, default=3, help="times the texts are sent a round")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of each step of the search for the highest load")
    parser.add_argument("--labelled", type=Path, help="label<TAB>text lines (.tsv, .tsv.gz) on which to compare int8 with fp32")
    parser.add_argument("--labelled-rows", type=int, default=2000, help="rows of it, evenly spread")
    parser.add_argument("--output", type=Path, default=Path("bench.json"))
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    found = asyncio.run(run(options))
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    meta = found["meta"]
    machine = f"{meta['cores']} cores of {meta['cpu']}, {meta['idle_share']:.0%} idle before"
    print(f"\n{meta['model']} {meta['precision']}, {machine}, medians of {meta['rounds']} rounds")
    print(table(found["results"]))
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
