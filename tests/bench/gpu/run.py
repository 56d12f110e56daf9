"""One run of all stages."""

import math
import platform
import shutil
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sentiment.model.bundle import CHECKOUT_BUNDLES
from sentiment.model.cores import cores_granted
from tests.bench.gpu import serve_stages, stages
from tests.bench.gpu.bench import Bench, plan_of, working_folder
from tests.bench.gpu.report import expected, result, table
from tests.bench.processes import idle_share

# Checks of correctness come first, and reference figures before those that are compared with them.
STAGES: dict[str, Callable[[Bench], None]] = {
    "probes": stages.probe,
    "bundles and graphs": stages.make,
    "checks": stages.check,
    "in-process": stages.offline_all,
    "BERT-base, 128 tokens": stages.at_128,
    "server, BERT-base": partial(serve_stages.serve, size="base", share=0.5),
    "server, MiniLM-L6": partial(serve_stages.serve, size="l6", share=0.5),
    "server with front ends": serve_stages.serve_front_ends,
}


def run(device: str, budget_s: float, logs: Path | None) -> tuple[dict[str, Any], str]:  # Any: JSON
    """Measure everything on a device. Returns the content of the JSON file, and the table."""
    cores = cores_granted()
    plan = plan_of(device, cores)
    with working_folder() as folder:
        bench = Bench(plan, Path(folder), CHECKOUT_BUNDLES / "english" / "1", budget_s)
        bench.meta = {
            "no_gpu": not plan.on_gpu,
            "models": dict(plan.models),
            "cores": cores,
            "idle_share": round(idle_share(0.2), 3),
            "python": platform.python_version(),
            "clients": plan.clients,
            "device": "no device",
            "onnxruntime": "?",
        }
        try:
            for name, stage in STAGES.items():
                begun = time.monotonic()
                try:
                    stage(bench)
                except Exception as error:  # keep the figures before it, and go on with the next stage
                    bench.meta.setdefault("stage_faults", {})[name] = "".join(traceback.format_exception(error))
                    print(f"{name}: {type(error).__name__}: {error}", flush=True)
                took_s = time.monotonic() - begun
                bench.meta.setdefault("stage_seconds", {})[name] = round(took_s, 1)
                print(f"{name}: {took_s:.0f} s, {max(0.0, bench.ends_at - time.monotonic()):.0f} s left", flush=True)
        finally:
            bench.close()
            if logs:
                shutil.copytree(folder, logs, dirs_exist_ok=True, ignore=shutil.ignore_patterns("bundles", "graphs"))
    seconds = time.monotonic() - bench.begun
    found = {name: value for name, value in bench.found.items() if math.isfinite(value)}
    for name in bench.found.keys() - found.keys():
        bench.not_measured[name] = f"{bench.found[name]}: too many calls failed, or there was nothing to divide by"
    not_measured = {name: bench.not_measured.get(name, "its stage did not come to it") for name in expected() if name not in found}
    meta = {**bench.meta, "seconds": round(seconds, 1), "not_measured": not_measured}
    results = [result(name, found[name]) for name in expected() if name in found]
    return {"meta": meta, "results": results}, table(found, not_measured, meta)
