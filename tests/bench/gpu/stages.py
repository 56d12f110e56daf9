"""The in-process stages, in order. Each ends at an instant of its own, and records why a figure is missing."""

import itertools
import re
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from tests.bench.gpu.bench import Bench, part
from tests.bench.gpu.bert import SIZES as MODELS
from tests.bench.gpu.child import Child, Gone
from tests.bench.gpu.report import (
    AT_128,
    CELLS,
    KINDS,
    LOADS,
    OFFLINE,
    OURS,
    PEERS,
    ROWS_MAX,
    SIZES,
    capped_rows,
    offline_rows,
    tokenize_rows,
)
from tests.bench.gpu.serve_stages import texts_for
from tests.bench.gpu.spread import Rounds, median
from tests.bench.gpu.wheels import with_libraries

KERNEL = re.compile(r"Operator=(\w+).*SdpaKernel=(\w+)")
ATTEND_LENGTHS = (32, 128, 512)
LIBRARIES = ("onnxruntime", "torch")
Shape = tuple[int, int, int]


def probe(bench: Bench, until: float) -> None:
    """Measure products and copies, the references of the other figures. Of two libraries the faster one counts, for each shape.

    What measured them ends with them: it keeps device memory of the largest matrices, and pinned memory.
    """
    plan = bench.plan
    width = plan.gemm_width
    shapes = {"square": {"square": (width, width, width)}}
    shapes |= {f"{size}_products": MODELS[plan.models[size]].products(plan.served_tokens) for size in SIZES}
    for probed, products in shapes.items():
        bench.attempt([f"probe_{probed}_tflops"], until, 0.5, partial(_products, bench, probed, products, until))
    names = {"to_device": "probe_to_device_gbs", "to_host": "probe_to_host_gbs", "within": "probe_device_copy_gbs"}

    def copies() -> dict[str, float | Rounds]:
        said = bench.inside().ask(until, "copies", size=plan.copy_bytes, seconds=0.5)
        return {**{name: median(said[key]) for key, name in names.items()}, "probe_memory_pinned": said["pinned"]}

    bench.attempt([*names.values(), "probe_memory_pinned"], until, 0.5, copies)
    bench.close("inside")


def _products(bench: Bench, probed: str, products: Mapping[str, Shape], until: float) -> dict[str, float]:
    """TFLOP/s of all products together, one after the other. Those of each library and shape go to ``meta``."""
    best: dict[str, float] = {}
    asked = list(itertools.product(LIBRARIES, products))
    bench.rng.shuffle(asked)
    fault: Gone | None = None
    for library, name in asked:
        rows, inner, columns = products[name]
        try:
            child = bench.torch() if library == "torch" else bench.inside()
            said = child.ask(until, "gemm", rows=rows, inner=inner, columns=columns, seconds=bench.plan.gemm_s)["seconds"]
        except Gone as error:
            fault = error
            continue
        rates = median([flop(products[name]) / each / 1e12 for each in said])
        found = bench.meta.setdefault("products_tflops", {}).setdefault(probed, {}).setdefault(library, {})
        found[name] = {"shape": products[name], "median": rates.value, **rates.spread()}
        best[name] = min(best.get(name, np.inf), statistics.median(said))
    if fault is not None and len(best) < len(products):
        raise fault
    return {f"probe_{probed}_tflops": sum(map(flop, products.values())) / sum(best.values()) / 1e12}


def flop(shape: Shape) -> float:
    """The operations of a product."""
    rows, inner, columns = shape
    return 2.0 * rows * inner * columns


def make(bench: Bench, until: float) -> None:
    """Bundles and their graphs."""
    for size, model in bench.plan.models.items():

        def made(model: str = model, name: str = f"{size}_graphs_seconds") -> dict[str, float]:
            said = bench.inside().ask(until, "make", model=model)
            bench.meta.setdefault("fused", {})[model] = said["fused"]
            return {name: said["seconds"]}

        bench.attempt([f"{size}_graphs_seconds"], until, 1.0, made)


def check(bench: Bench, until: float) -> None:
    """Check that the measured graphs compute the right logits, and which kernels they use; then the cells."""
    plan = bench.plan
    base = plan.models["base"]
    bench.attempt([f"base_{variant}_logit_error" for variant in (*OURS, *PEERS)], until, 1.0, lambda: errors(bench, until))

    def golden(bundle: str, name: str) -> dict[str, float]:
        said = bench.inside().ask(until, "golden", bundle=bundle)
        bench.meta.setdefault("served", {})[name] = [said["file"], *said["passed_over"]]
        return {name: float("packed" in said["file"])}

    for bundle, name in ((base, "base_golden_packed"), ("english", "english_golden_packed")):
        bench.attempt([name], until, 1.0, partial(golden, bundle, name))
    for layout in OURS:

        def right(layout: str = layout) -> dict[str, float]:
            said = bench.inside().ask(until, "cells", model=base, layout=layout)
            bench.meta[f"cells_{layout}"] = said
            return {f"base_cells_{layout}_right": said["right"] / max(1, said["cells"])}

        def company(layout: str = layout) -> dict[str, float]:
            said = bench.inside().ask(until, "company", layout=layout, seed=7, **plan.company)
            return {f"english_{layout}_company_{what}": said[what] for what in ("move", "flips")}

        bench.attempt([f"base_cells_{layout}_right"], until, 1.0, right)
        bench.attempt([f"english_{layout}_company_{what}" for what in ("move", "flips")], until, 1.0, company)
    names = [f"{cell}_{kind}_ms" for cell in CELLS for kind in KINDS]
    bench.attempt([*names, "capture_gain"], until, 1.0, partial(_cells, bench, until))
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


def _cells(bench: Bench, until: float) -> dict[str, float | Rounds]:
    """Small batches captured and launched, in random order in each round; and the geometric mean of what capturing gains."""
    layout = "packed" if bench.found.get("base_golden_packed") else "padded"
    rounds: dict[str, list[float]] = {}
    for _ in range(bench.plan.rounds):
        asked = list(itertools.product(CELLS, KINDS))
        bench.rng.shuffle(asked)
        for cell, kind in asked:
            if rounds and time.monotonic() > until:
                break
            size, rows, length = CELLS[cell]
            variant = f"{layout}_captured" if kind == "captured" else layout
            shape = {"model": bench.plan.models[size], "rows": rows, "length": length}
            said = bench.inside().ask(until, "cell", variant=variant, seconds=bench.plan.cell_s, **shape)
            rounds.setdefault(f"{cell}_{kind}_ms", []).append(said["ms"])
    found: dict[str, float | Rounds] = {name: median(each) for name, each in rounds.items()}
    both = [[f"{cell}_{kind}_ms" for kind in KINDS] for cell in CELLS]
    gains = [statistics.median(rounds[slow]) / statistics.median(rounds[fast]) for slow, fast in both if {slow, fast} <= rounds.keys()]
    return found | ({"capture_gain": statistics.geometric_mean(gains)} if gains else {})


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


def offline(bench: Bench, until: float, size: str) -> None:
    """All mixes of lengths, for our variants and the peers in random order, each at its best batch size."""
    mixes = OFFLINE[size]
    for number, mix in enumerate(mixes):
        ends_at = part(until, 1 / (len(mixes) - number))
        needs_s = 2.0 if bench.plan.on_gpu else 0.2
        bench.attempt(offline_rows(size, mix), ends_at, needs_s, partial(measure_mix, bench, size, mix, ends_at))


def default_bundle(bench: Bench, until: float) -> None:
    """The default bundle's size; and its short texts with each limit of rows."""
    offline(bench, part(until, 0.75), "l6")
    bench.attempt(capped_rows(), until, 1.0 if bench.plan.on_gpu else 0.2, partial(_capped, bench, until))


def _capped(bench: Bench, until: float) -> dict[str, float | Rounds]:
    rounds: dict[int, list[float]] = {rows: [] for rows in ROWS_MAX}
    each_s = max(0.02, (until - time.monotonic()) / (2 * len(ROWS_MAX) * bench.plan.rounds))
    for _ in range(bench.plan.rounds):
        for rows in bench.rng.sample(ROWS_MAX, len(ROWS_MAX)):
            asked = {"model": bench.plan.models["l6"], "variant": "packed", "mix": "sst2", "tokens": bench.plan.served_tokens}
            said = bench.inside().ask(until, "measure", seconds=each_s, rows_max=rows, **asked)
            rounds[rows].append(said["texts_per_s"])
    found: dict[str, float | Rounds] = {f"l6_sst2_{rows}_rows_texts_per_s": median(each) for rows, each in rounds.items()}
    few, many = (statistics.median(rounds[rows]) for rows in ROWS_MAX)
    return found | {"l6_sst2_rows_gain": many / few}


def measure_mix(bench: Bench, size: str, mix: str, until: float, compared: Sequence[str] = (*OURS, *PEERS)) -> dict[str, float | Rounds]:
    """One mix of lengths: each variant's best batch size first, then rounds of all variants in random order."""
    plan, name = bench.plan, f"{size}_{mix}"
    variants = bench.rng.sample(compared, len(compared))
    each_s = max(0.02, 0.3 * (until - time.monotonic()) / (len(variants) * len(plan.budgets)))
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
        for variant in bench.rng.sample(tuple(best), len(best)):
            measured = _measure(bench, size, variant, mix, best[variant][1], each_s, until)
            if measured is not None:
                rounds.setdefault(variant, []).append(measured)
    found: dict[str, float | Rounds] = {}
    for variant, all_of_it in rounds.items():
        whats = ("tflops", "texts_per_s", "real_over_processed") if variant in OURS else ("tflops", "texts_per_s")
        found |= {f"{name}_{variant}_{what}": median([one[what] for one in all_of_it]) for what in whats}
        if variant in OURS:
            found[f"{name}_{variant}_best_tokens"] = best[variant][1]
    return found | _ratios(bench, size, mix, rounds, {variant: served[variant] / best[variant][0] for variant in served})


def _ratios(
    bench: Bench, size: str, mix: str, rounds: Mapping[str, Sequence[Mapping[str, float]]], served: Mapping[str, float]
) -> dict[str, float]:
    """Our best variant over its references."""
    speeds = {variant: statistics.median(one["tflops"] for one in all_of_it) for variant, all_of_it in rounds.items()}
    ours = max((speeds[variant] for variant in OURS if variant in speeds), default=None)
    peers = [speeds[variant] for variant in PEERS if variant in speeds]
    name, ratios = f"{size}_{mix}", {}
    if ours is not None and f"probe_{size}_products_tflops" in bench.found:
        ratios[f"{name}_products_share"] = ours / bench.found[f"probe_{size}_products_tflops"]
    if ours is not None and peers:
        ratios[f"{name}_over_peer"] = ours / max(peers)
    layout = "packed" if "packed" in served else "padded"
    if layout in served:
        ratios[f"{name}_served_batch_over_best"] = served[layout]
    return ratios


def _measure(bench: Bench, size: str, variant: str, mix: str, tokens: int, seconds: float, until: float) -> Mapping[str, float] | None:
    """Measure one variant once. Returns None if it does not work, and records the reason."""
    try:
        if time.monotonic() > until:
            raise Gone("its time was up")
        child = bench.torch() if variant.startswith("torch") else bench.inside()
        asked = {"model": bench.plan.models[size], "variant": variant, "mix": mix, "tokens": tokens, "seconds": seconds}
        return child.ask(until, "measure", **asked)
    except Gone as error:
        bench.not_measured.setdefault(f"{size}_{mix}_{variant}_tflops", str(error))
        return None


def at_128(bench: Bench, until: float) -> None:
    """The host's share of a batch and of a text; and BERT-base with 128 tokens again for the peers that are measured only so."""
    plan = bench.plan
    tokens = int(bench.found.get("base_128_packed_best_tokens", plan.served_tokens))

    def parts() -> dict[str, float]:
        said = bench.inside().ask(until, "parts", model=plan.models["base"], variant="packed", mix="128", tokens=plan.served_tokens)
        bench.meta["parts_of_a_batch"] = {"tokens": plan.served_tokens, **said}
        return {"base_128_host_share": (said["pad_s"] + said["copy_s"]) / sum(said.values())}

    def tokenize() -> dict[str, float | Rounds]:
        loads = {f"{size}_{mix}_tokenize_us": mix for size, mixes in LOADS.items() for mix in mixes}
        asked = {name: bench.inside().ask(until, "tokenize", texts=texts_for(bench, mix), seconds=0.2) for name, mix in loads.items()}
        return {name: median(said["us"]) for name, said in asked.items()}

    bench.attempt(["base_128_host_share"], until, 0.5, parts)
    bench.attempt(tokenize_rows(), until, 0.5, tokenize)
    for variant in AT_128:

        def peer(variant: str = variant) -> dict[str, float]:
            measured = _measure(bench, "base", variant, "128", tokens, 1.0 if plan.on_gpu else 0.1, until)
            return {} if measured is None else {f"base_128_{variant}_tflops": measured["tflops"]}

        needs_s = {"torch_compiled": plan.compile_s}.get(variant, 1.0)
        bench.attempt([f"base_128_{variant}_tflops"], until, needs_s, peer)
    compiled = bench.found.get("base_128_torch_compiled_tflops")
    best = max((bench.found.get(f"base_128_{variant}_tflops", 0.0) for variant in OURS), default=0.0)
    if compiled and "base_128_over_peer" in bench.found:
        bench.found["base_128_over_peer"] = min(bench.found["base_128_over_peer"], best / compiled)
