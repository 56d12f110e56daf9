"""The measured processes (an echo server, the ceiling and the server), and how their CPU time is read."""

import asyncio
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from sentiment.model.classifier import Classifier, load_classifier

CEILING_ROWS = (1, 4, 16, 32)
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """CPU seconds that all threads of a process have used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def idle_share(seconds: float = 1.0) -> float:
    """Share of the machine's CPU time that is idle now."""
    first = _cpu_times()
    time.sleep(seconds)
    spent = [after - before for before, after in zip(first, _cpu_times(), strict=True)]
    return (spent[3] + spent[4]) / max(1, sum(spent))


def _cpu_times() -> list[int]:
    return [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def processor() -> str:
    """Its name, and the widest of the instructions for products of int8 that it has, since they decide the speed."""
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    fields = {name.strip(): value.strip() for name, _, value in lines}
    flags = set(fields.get("flags", "").split())
    kinds = {"AMX": {"amx_int8"}, "VNNI": {"avx512_vnni", "avx_vnni"}, "AVX2 alone": {"avx2"}}
    kind = next((kind for kind, needed in kinds.items() if needed & flags), "none of AMX, VNNI and AVX2")
    return f"{fields.get('model name', platform.machine())} with {kind}"


class Started(NamedTuple):
    """A server that is ready, and its addresses."""

    process: "subprocess.Popen[str]"
    grpc: str
    http: str

    def end(self) -> None:
        """Stop it, and wait for that."""
        self.process.terminate()
        self.process.wait(60)


def start_server(bundle: str, policy: str = "", *more: str) -> Started:
    """Start ``sentiment serve``, or a server with another batching policy, with ``more`` flags; returns it once it is ready."""
    flags = ["--model", bundle, "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--drain-wait-s", "0", *more]
    program = ["-m", "tests.bench.policies", policy] if policy else ["-m", "sentiment"]
    process = subprocess.Popen([sys.executable, *program, "serve", *flags], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        entry = json.loads(line)
        if entry["event"] == "ready":
            # Read to the end, since a full pipe would block the server.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return Started(process, entry["grpc"], entry["http"])
    raise RuntimeError(f"the server ended with {process.wait()}")


class Worker:
    """A process of tests/bench/MODULE.py that prints a first line and answers commands, all as lines of JSON."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", f"tests.bench.{module}", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.hello: dict[str, Any] = self._read()

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


async def echo() -> None:
    """The least a gRPC call costs in Python: an aio server that returns the bytes it gets. Runs until it is killed."""

    async def answer(data: bytes, _context: Any) -> bytes:
        return data

    async def answer_all(messages: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        async for data in messages:
            yield data

    server = grpc.aio.server()
    handlers: Any = {  # of bytes to bytes, which the stub cannot say
        "Echo": grpc.unary_unary_rpc_method_handler(answer),
        "EchoStream": grpc.stream_stream_rpc_method_handler(answer_all),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(json.dumps({"target": f"127.0.0.1:{port}"}), flush=True)
    await server.wait_for_termination()


def run_ceiling(classifier: Classifier, texts: Sequence[str], rows: int, passes: int, pool: ThreadPoolExecutor) -> float:
    """CPU milliseconds per text of a plain loop: tokenize, sort by length, pad, run, softmax. No queue, no network."""
    begun = time.process_time()
    for _ in range(passes):
        encoded = sorted(classifier.tokenizer.encode_many(texts), key=lambda row: row.tokens)
        batches = [encoded[start : start + rows] for start in range(0, len(encoded), rows)]
        for logits in pool.map(classifier.run, batches):
            for row in logits:
                classifier.score(row)
    return (time.process_time() - begun) / passes / len(texts) * 1e3


def ceiling(bundle: Path, threads: int, precision: str | None) -> None:
    """Answer ``{"texts", "rows", "passes"}`` with ``{"ms"}``, ``{"latency": texts}`` with the seconds of each alone, and
    ``{"texts", "labels"}`` with ``{"accuracy"}``.
    """
    classifier = load_classifier(bundle, precision)
    pool = ThreadPoolExecutor(threads)
    print(json.dumps({"precision": classifier.graph.precision, "digest": classifier.bundle.digest}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if "labels" in command:
            batches = [[classifier.tokenizer.encode(text)] for text in command["texts"]]
            # Other labels of the model than those of the file do not count.
            among = sorted(set(command["labels"]))
            answers = [max(among, key=row.__getitem__) for logits in pool.map(classifier.run, batches) for row in logits]
            right = sum(answer == label for answer, label in zip(answers, command["labels"], strict=True))
            print(json.dumps({"accuracy": right / len(answers)}), flush=True)
        elif "latency" in command:
            seconds = []
            for text in command["latency"]:
                begun = time.perf_counter()
                classifier.score(classifier.run([classifier.tokenizer.encode(text)])[0])
                seconds.append(time.perf_counter() - begun)
            print(json.dumps({"seconds": seconds}), flush=True)
        else:
            ms = run_ceiling(classifier, command["texts"], command["rows"], command["passes"], pool)
            print(json.dumps({"ms": ms}), flush=True)


def main() -> None:
    """Run the worker that the arguments name."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if sys.argv[1] == "echo":
        asyncio.run(echo())
    else:
        ceiling(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)


if __name__ == "__main__":
    main()
