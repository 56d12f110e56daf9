"""Measures a server of the default bundle: ``python -m tests.deploy.chart.footprint [RUNNERS ...]``.

The chart's memory and startup limits are based on this: seconds to ready, memory at rest, peak memory after 1,024 texts of 512 tokens in
one call, and peak memory after a full explanation of such a text. Takes about a minute on two cores for each RUNNERS.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from sentiment.client import AttentionOptions, Client, ExplainOptions, NeuronOptions

MIB = 2**20
LONG = "a gripping and beautifully shot film that I will not forget " * 60
EVERYTHING = ExplainOptions(
    methods=("shapley", "integrated_gradients"),
    counterfactuals=True,
    heads=True,
    attention=AttentionOptions(),
    neuron=NeuronOptions(),
    geometry=True,
)


def memory_mib(pid: int) -> tuple[float, float]:
    """Memory now and at its peak."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines())
    now, peak = (int(fields[name].split()[0]) * 1024 / MIB for name in ("VmRSS", "VmHWM"))
    return now, peak


def measure(runners: int) -> None:
    """Print one line."""
    flags = ["--grpc-listen", "127.0.0.1:0", "--http-listen", "", "--device", "cpu", "--runners", str(runners), "--drain-wait-s", "0"]
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "sentiment", "serve", *flags],
        stderr=subprocess.PIPE,
        env={**os.environ, "SENTIMENT_DEADLINE_MAX_S": "600"},
        text=True,
    )
    try:
        assert process.stderr is not None
        ready = next(line for line in map(json.loads, process.stderr) if line["event"] == "ready")
        seconds = time.monotonic() - begun
        rest, _ = memory_mib(process.pid)
        with Client(ready["grpc"]) as client:
            answers = client.classify_batch([LONG] * 1024, timeout_s=600)
            _, batch = memory_mib(process.pid)
            client.explain(LONG, options=EVERYTHING, timeout_s=240)
            _, peak = memory_mib(process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=60)
    failed = sum(not hasattr(answer, "label") for answer in answers)
    print(
        f"runners {runners}: ready in {seconds:.1f} s; {rest:.0f} MiB at rest, {batch:.0f} MiB after 1,024 long texts ({failed} failed), "
        f"{peak:.0f} MiB after an explanation"
    )


if __name__ == "__main__":
    for number in sys.argv[1:] or ["1", "2", "4"]:
        measure(int(number))
