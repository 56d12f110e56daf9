"""One run of all stages."""

import contextlib
import math
import os
import platform
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from sentiment.model.bundle import CHECKOUT_BUNDLES, find_bundle
from sentiment.model.cores import cores_granted
from tests.bench.gpu import engines, serve_stages, stages
from tests.bench.gpu.bench import Bench, plan_of, working_folder
from tests.bench.gpu.child import Gone, end_all
from tests.bench.gpu.report import expected, peers_there, result, table
from tests.bench.gpu.sensors import NoSensors, Sensors
from tests.bench.gpu.wheels import find_peers
from tests.bench.processes import idle_share

Stage = Callable[[Bench, float], None]
# In order, with the share of the stages' time that is spent when each must end; time that is left over goes to the next. Checks of
# correctness come first, and reference figures before those that are compared with them. BERT-base's server has 90 s of steady loads.
STAGES: dict[str, tuple[Stage, float]] = {
    "probes": (stages.probe, 0.06),
    "bundles and graphs": (stages.make, 0.15),
    "checks": (stages.check, 0.25),
    "in-process, BERT-base": (partial(stages.offline, size="base"), 0.33),
    "in-process, default bundle": (stages.default_bundle, 0.38),
    "BERT-base, 128 tokens": (stages.at_128, 0.5),
    "server, BERT-base": (partial(serve_stages.serve, size="base"), 0.84),
    "server, default bundle": (partial(serve_stages.serve, size="l6"), 0.89),
    "server with front ends": (serve_stages.serve_front_ends, 1.0),
}
# After the budget: the ends of servers and children. Then the process ends, whatever hangs.
LATE_S = 25.0
Deliver = Callable[[dict[str, Any], str], None]  # Any: JSON


def engine_stages(texts: Path | None) -> dict[str, tuple[Stage, float]]:
    """The stages of ``--engines``; ``texts``: see there."""
    return {
        "probes": (stages.probe, 0.06),
        "bundles and graphs": (stages.make, 0.18),
        "engines": (partial(engines.engines, texts_file=texts), 1.0),
    }


def run(
    device: str,
    budget_s: float,
    logs: Path | None,
    seed: int,
    deliver: Deliver,
    chosen: Mapping[str, tuple[Stage, float]] = STAGES,
    leave: Callable[[int], object] = os._exit,
) -> bool:
    """Measure everything on a device. Returns whether anything was measured.

    Args:
        device: cuda:N or cpu.
        budget_s: seconds for all of it.
        logs: a folder for the logs of all processes; None to keep none.
        seed: of the order in which things are compared.
        deliver: gets the content of the JSON file and the table, once.
        chosen: the stages.
        leave: ends the process if something hangs LATE_S after the budget; what was found until then is delivered first.
    """
    cores = cores_granted()
    plan = plan_of(device, cores)
    with working_folder() as folder:
        bench = Bench(plan, Path(folder), find_bundle("english", [CHECKOUT_BUNDLES]), budget_s, seed)
        bench.versions = dict(find_peers())
        print(peers_there(bench.versions), flush=True)
        bench.meta = {
            "no_gpu": not plan.on_gpu,
            "seed": seed,
            "models": dict(plan.models),
            "cores": cores,
            "idle_share": round(idle_share(0.2), 3),
            "python": platform.python_version(),
            "packages": {each.name: each.version for each in distributions() if (each.name or "").startswith("nvidia-")},
            "peers": bench.versions,
            "clients": plan.clients,
            "device": "no device",
            "onnxruntime": "?",
            **({"engines": []} if "engines" in chosen else {}),
        }

        def give_up() -> None:
            bench.meta["hung"] = f"the run did not end {LATE_S:g} s after its budget; what it had found was kept"
            found = conclude(bench)
            deliver(*found)
            end_all()
            leave(0 if found[0]["results"] else 1)

        watchdog = threading.Timer(budget_s + LATE_S, give_up)
        watchdog.daemon = True
        watchdog.start()
        try:
            _measure(bench, chosen)
        finally:
            bench.close()
            if logs:
                shutil.copytree(folder, logs, dirs_exist_ok=True, ignore=shutil.ignore_patterns("bundles", "graphs"))
        watchdog.cancel()
        found = conclude(bench)
        deliver(*found)
        return bool(found[0]["results"])


def _measure(bench: Bench, chosen: Mapping[str, tuple[Stage, float]]) -> None:
    sensors, reason = _sensors(bench)
    _start_torch(bench)
    bench.meta["children_seconds"] = round(time.monotonic() - bench.begun, 1)
    bench.stages_from = min(time.monotonic(), bench.ends_at)
    for name, (stage, share) in chosen.items():
        begun = time.monotonic()
        try:
            stage(bench, bench.by(share))
        except Exception as error:  # keep the figures before it, and go on with the next stage
            bench.meta.setdefault("stage_faults", {})[name] = "".join(traceback.format_exception(error))
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
        took_s = time.monotonic() - begun
        said = {"seconds": round(took_s, 1), "sensors": sensors.take() if sensors else None, "sensors_absent": reason}
        bench.meta.setdefault("stages", {})[name] = said
        print(f"{name}: {took_s:.0f} s, {max(0.0, bench.ends_at - time.monotonic()):.0f} s left", flush=True)


def _start_torch(bench: Bench) -> None:
    """Start the process of PyTorch before the stages: importing it from a cold disk takes longer than the first stage has."""
    # The figures that need it say why it does not work.
    with contextlib.suppress(Gone, OSError):
        if time.monotonic() < bench.ends_at:
            bench.torch()


def _sensors(bench: Bench) -> tuple[Sensors | None, str]:
    """The sensors of the GPU; or the reason why there are none."""
    if time.monotonic() > bench.ends_at:
        return None, "there was no time to look for them"
    try:
        # Its process says which GPU it is.
        bench.inside()
        if not bench.plan.on_gpu:
            raise NoSensors("nothing is read without a GPU")
        sensors = Sensors(bench.meta["uuid"])
    except (Gone, NoSensors) as error:
        return None, str(error)
    sensors.start()
    return sensors, ""


def conclude(bench: Bench) -> tuple[dict[str, Any], str]:  # Any: JSON
    """The content of the JSON file, and the table."""
    figures, reasons = dict(bench.found), dict(bench.not_measured)
    found = {name: value for name, value in figures.items() if math.isfinite(value)}
    for name in figures.keys() - found.keys():
        reasons[name] = f"{figures[name]}: there was nothing to divide by"
    names = expected("engines" in bench.meta)
    not_measured = {name: reasons.get(name, "its stage did not come to it") for name in names if name not in found}
    meta: Mapping[str, Any] = {  # Any: JSON
        **bench.meta,
        "seconds": round(time.monotonic() - bench.begun, 1),
        "not_measured": not_measured,
    }
    results = [result(name, found[name], bench.spreads.get(name)) for name in names if name in found]
    return {"meta": dict(meta), "results": results}, table(found, bench.spreads, not_measured, meta)
