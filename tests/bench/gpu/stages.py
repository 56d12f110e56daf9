"""The in-process stages, in order. Each has a share of the remaining time, and records why a figure is missing."""

import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from tests.bench.gpu.bench import Bench
from tests.bench.gpu.child import Child, Gone
from tests.bench.gpu.report import AT_128, CELLS, OURS, PEERS, SIZES, offline_rows
from tests.bench.gpu.rows import MIXES
from tests.bench.gpu.wheels import with_libraries

# The most important first, since the last ones are skipped if time is short.
ORDER = ("128", "mixed", "sst2", "imdb", "32", "512", "64", "256", "16")
KERNEL = re.compile(r"Operator=(\w+).*SdpaKernel=(\w+)")
ATTEND_LENGTHS = (32, 128, 512)


def probe(bench: Bench) -> None:
    """Measure GEMM and copies, the references of the other figures."""
    plan, until = bench.plan, bench.part(0.12)
    names = {"to_device": "probe_to_device_gbs", "to_host": "probe_to_host_gbs", "within": "probe_device_copy_gbs"}

    def copies() -> dict[str, float]:
        said = bench.inside().ask(until, "copies", size=plan.copy_bytes, seconds=0.5)
        return {**{name: said[key] for key, name in names.items()}, "probe_memory_pinned": said["pinned"]}

    def gemm(child: Callable[[], Child], name: str) -> dict[str, float]:
        return {name: child().ask(until, "gemm", width=plan.gemm_width, seconds=1.0 if plan.on_gpu else 0.1)["tflops"]}

    for child, name in ((bench.inside, "probe_gemm_ort_tflops"), (bench.torch, "probe_gemm_torch_tflops")):
        bench.attempt([name], until, 0.5, partial(gemm, child, name))
    probed = [bench.found[name] for name in ("probe_gemm_ort_tflops", "probe_gemm_torch_tflops") if name in bench.found]
    bench.attempt(["probe_gemm_tflops"], until, 0.0, lambda: {"probe_gemm_tflops": max(probed)} if probed else {})
    bench.attempt([*names.values(), "probe_memory_pinned"], until, 0.5, copies)


def make(bench: Bench) -> None:
    """Bundles and their graphs."""
    for size, model in bench.plan.models.items():
        until = bench.part(0.25)

        def made(model: str = model, name: str = f"{size}_graphs_seconds", until: float = until) -> dict[str, float]:
            said = bench.inside().ask(until, "make", model=model)
            bench.meta.setdefault("fused", {})[model] = said["fused"]
            return {name: said["seconds"]}

        bench.attempt([f"{size}_graphs_seconds"], until, 1.0, made)


def check(bench: Bench) -> None:
    """Check that the measured graphs compute the right logits, and which kernels they use."""
    plan, until = bench.plan, bench.part(0.22)
    base = plan.models["base"]
    bench.attempt([f"base_{variant}_logit_error" for variant in (*OURS, *PEERS)], until, 1.0, lambda: errors(bench, until))

    def golden(bundle: str, name: str) -> dict[str, float]:
        said = bench.inside().ask(until, "golden", bundle=bundle)
        bench.meta.setdefault("served", {})[name] = [said["file"], *said["passed_over"]]
        return {name: float("packed" in said["file"])}

    for bundle, name in ((base, "base_golden_packed"), ("english", "english_golden_packed")):
        bench.attempt([name], until, 1.0, partial(golden, bundle, name))
    for layout in OURS:

        def cells(layout: str = layout) -> dict[str, float]:
            said = bench.inside().ask(until, "cells", model=base, layout=layout)
            bench.meta[f"cells_{layout}"] = said
            return {f"base_cells_{layout}_right": said["right"] / max(1, said["cells"])}

        def company(layout: str = layout) -> dict[str, float]:
            said = bench.inside().ask(until, "company", layout=layout, seed=7, **plan.company)
            return {f"english_{layout}_company_{what}": said[what] for what in ("move", "flips")}

        bench.attempt([f"base_cells_{layout}_right"], until, 1.0, cells)
        bench.attempt([f"english_{layout}_company_{what}" for what in ("move", "flips")], until, 1.0, company)
    for name, (size, rows, length, kind) in CELLS.items():
        variant = ("packed" if bench.found.get("base_golden_packed") else "padded") + kind
        shape = {"rows": rows, "length": length, "seconds": 0.3 if plan.on_gpu else 0.02}
        asked = {"model": plan.models[size], "variant": variant, **shape}

        def cell(name: str = name, asked: Mapping[str, Any] = asked) -> dict[str, float]:
            return {name: bench.inside().ask(until, "cell", **asked)["ms"]}

        bench.attempt([name], until, 0.2, cell)
    bench.attempt(["fast_attention_share"], until, 1.0, lambda: kernels(bench, until))


def errors(bench: Bench, until: float) -> dict[str, float]:
    """The largest difference between each variant's logits and those of the fp32 graph on the CPU."""
    asked = {"model": bench.plan.models["base"]}
    wanted = np.array(bench.inside().ask(until, "answers", variant="plain", **asked)["logits"])
    found = {}
    for variant in (*OURS, *PEERS):
        try:
            child = bench.torch() if variant.startswith("torch") else bench.inside()
            logits = np.array(child.ask(until, "answers", variant=variant, **asked)["logits"])
            found[f"base_{variant}_logit_error"] = float(np.abs(logits - wanted).max())
        except Gone as error:
            bench.not_measured[f"base_{variant}_logit_error"] = str(error)
    return found


def kernels(bench: Bench, until: float) -> dict[str, float]:
    """The fraction of attention nodes that use a kernel other than the fallback (MATH). The kernels go to ``meta``."""
    said = bench.folder / "kernels.log"
    arguments = (str(bench.bundles), str(bench.english), bench.plan.device)
    child = Child("inside", said, *arguments, environment={**with_libraries(), "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1"})
    try:
        child.ask(until, "attend", model=bench.plan.models["base"], lengths=ATTEND_LENGTHS)
    finally:
        child.close()
    seen = read_kernels(said.read_text(errors="replace"))
    bench.meta["kernels"] = {batch: dict(count) for batch, count in seen.items()}
    counts = sum(seen.values(), Counter())
    if not counts:
        raise Gone(f"no attention node of {bench.meta.get('provider')} said which kernel it runs on")
    return {"fast_attention_share": 1 - sum(count for name, count in counts.items() if name.endswith(" MATH")) / counts.total()}


def read_kernels(said: str) -> dict[str, "Counter[str]"]:
    """The kernels of attention nodes in a log, by the batch that was announced before them."""
    seen: dict[str, Counter[str]] = {}
    batch = ""
    for line in said.splitlines():
        if line.startswith("attend "):
            batch = line.removeprefix("attend ")
        if match := KERNEL.search(line):
            seen.setdefault(batch, Counter())[" ".join(match.groups())] += 1
    return seen


def offline(bench: Bench, size: str, share: float) -> None:
    """All mixes of lengths, for our variants and the peers in turns, each at its best batch size."""
    ends_at = bench.part(share)
    for number, mix in enumerate(ORDER):
        now = time.monotonic()
        until = now + max(0.0, ends_at - now) / (len(ORDER) - number)
        needs_s = 2.0 if bench.plan.on_gpu else 0.2
        bench.attempt(offline_rows(size, mix), until, needs_s, partial(_mix, bench, size, mix, until))
    assert set(ORDER) == set(MIXES)


def _mix(bench: Bench, size: str, mix: str, until: float) -> dict[str, float]:
    plan, name = bench.plan, f"{size}_{mix}"
    begun = time.monotonic()
    variants = [*OURS, *PEERS]
    each_s = max(0.02, 0.3 * (until - begun) / (len(variants) * len(plan.budgets)))
    best: dict[str, tuple[float, int]] = {}
    served: dict[str, float] = {}
    for variant in variants:
        for tokens in plan.budgets:
            measured = _measure(bench, size, variant, mix, tokens, each_s, until)
            if measured is None:
                break
            if tokens == plan.served_tokens:
                served[variant] = measured["tflops"]
            # A larger batch is slower already, so larger ones are not tried.
            if measured["tflops"] < 0.97 * best.setdefault(variant, (measured["tflops"], tokens))[0]:
                break
            best[variant] = max(best[variant], (measured["tflops"], tokens))
    rounds: dict[str, list[Mapping[str, float]]] = {}
    each_s = max(0.02, 0.8 * (until - time.monotonic()) / (max(1, len(best)) * plan.rounds))
    for _ in range(plan.rounds):
        for variant, (_, tokens) in best.items():
            measured = _measure(bench, size, variant, mix, tokens, each_s, until)
            if measured is not None:
                rounds.setdefault(variant, []).append(measured)
    found: dict[str, float] = {}
    for variant, all_of_it in rounds.items():
        whats = ("tflops", "texts_per_s", "real_over_processed") if variant in OURS else ("tflops",)
        found |= {f"{name}_{variant}_{what}": statistics.median(one[what] for one in all_of_it) for what in whats}
        if variant in OURS:
            found[f"{name}_{variant}_best_tokens"] = best[variant][1]
    return found | _ratios(bench, name, found, {variant: served[variant] / best[variant][0] for variant in served})


def _ratios(bench: Bench, name: str, found: Mapping[str, float], served: Mapping[str, float]) -> dict[str, float]:
    """Our best variant over its references."""
    speeds = {variant: found[f"{name}_{variant}_tflops"] for variant in (*OURS, *PEERS) if f"{name}_{variant}_tflops" in found}
    ours = max((speeds[variant] for variant in OURS if variant in speeds), default=None)
    peers = [speeds[variant] for variant in PEERS if variant in speeds]
    ratios: dict[str, float] = {}
    if ours is not None and "probe_gemm_tflops" in bench.found:
        ratios[f"{name}_gemm_share"] = ours / bench.found["probe_gemm_tflops"]
    if ours is not None and peers:
        ratios[f"{name}_over_peer"] = ours / max(peers)
    layout = "packed" if "packed" in served else "padded"
    if layout in served:
        ratios[f"{name}_served_batch_over_best"] = served[layout]
    return ratios


def _measure(bench: Bench, size: str, variant: str, mix: str, tokens: int, seconds: float, until: float) -> Mapping[str, float] | None:
    """Measure one variant once. Returns None if it does not work, and records the reason."""
    try:
        child = bench.torch() if variant.startswith("torch") else bench.inside()
        asked = {"model": bench.plan.models[size], "variant": variant, "mix": mix, "tokens": tokens, "seconds": seconds}
        return child.ask(until, "measure", **asked)
    except Gone as error:
        bench.not_measured.setdefault(f"{size}_{mix}_{variant}_tflops", str(error))
        return None


def at_128(bench: Bench) -> None:
    """BERT-base with 128 tokens again: the parts of a batch's time, and the peers that are measured only here."""
    plan = bench.plan
    until = bench.part(0.3)
    tokens = int(bench.found.get("base_128_packed_best_tokens", plan.served_tokens))

    def parts() -> dict[str, float]:
        said = bench.inside().ask(until, "parts", model=plan.models["base"], variant="packed", mix="128", tokens=plan.served_tokens)
        bench.meta["parts_of_a_batch"] = {"tokens": plan.served_tokens, **said}
        return {"base_128_host_share": (said["pad_s"] + said["copy_s"]) / sum(said.values())}

    bench.attempt(["base_128_host_share"], until, 0.5, parts)
    for variant in AT_128:

        def peer(variant: str = variant) -> dict[str, float]:
            measured = _measure(bench, "base", variant, "128", tokens, 1.0 if plan.on_gpu else 0.1, until)
            return {} if measured is None else {f"base_128_{variant}_tflops": measured["tflops"]}

        needs_s = {"torch_compiled": plan.compile_s, "tensorrt_fp16": plan.engine_s}.get(variant, 1.0)
        bench.attempt([f"base_128_{variant}_tflops"], until, needs_s, peer)
    compiled, tensorrt = (bench.found.get(f"base_128_{variant}_tflops") for variant in ("torch_compiled", "tensorrt_fp16"))
    best = max((bench.found.get(f"base_128_{variant}_tflops", 0.0) for variant in OURS), default=0.0)
    if compiled and "base_128_over_peer" in bench.found:
        bench.found["base_128_over_peer"] = min(bench.found["base_128_over_peer"], best / compiled)
    over = {"base_128_tensorrt_over_ours": tensorrt / best} if tensorrt and best else {}
    bench.attempt(["base_128_tensorrt_over_ours"], until, 0.0, lambda: over)


def offline_all(bench: Bench) -> None:
    """Both sizes; BERT-base, whose figures have targets, gets more of the time."""
    for size, share in zip(SIZES, bench.plan.in_process_shares, strict=True):
        offline(bench, size, share)
