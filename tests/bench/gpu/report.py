"""The names, units and targets of the figures, the JSON entries and the short table."""

from collections.abc import Iterator, Mapping
from typing import Any

from tests.bench.gpu.rows import MIXES
from tests.bench.gpu.sensors import line
from tests.bench.gpu.wheels import PEERS as PACKAGES

OURS = ("padded", "packed")
PEERS = ("unfused_fp16", "torch_sdpa", "torch_fp16")
# What ``--engines`` compares with our packed graph, and the mixes of lengths.
ENGINES = ("torch_fp16", "torch_fp8", "torch_int8")
ENGINE_MIXES = ("128", "sst2", "mixed")
# The packed graph with each batch captured; copies of it on one GPU, and the rows of the batches that they share. The largest has as many
# tokens as the server's batches have at most.
EACH_CAPTURED = "packed_each_captured"
COPIES = ("packed_first_copy", "packed_second_copy")
COPIES_ROWS = (1, 4, 16, 640)
# The default bundle against fp32; and what batch mates change, then the same with products of one number of rows.
ACCURACY = ("golden_error", "text_error", "changed")
COMPANY = ("move", "alike", "one_move", "one_alike")
# Peers that are measured with 128 tokens only.
AT_128 = ("unfused_fp32", "torch_compiled")
SIZES = {"base": "BERT-base", "l6": "MiniLM-L6"}
# The mixes of lengths that are measured in-process. The default bundle has the size of MiniLM-L6.
OFFLINE = {"base": MIXES, "l6": ("sst2", "mixed", "128")}
# The limits of rows of a batch that the default bundle's short texts are measured with.
ROWS_MAX = (256, 1024)
P99_MS = 50.0
KINDS = ("launched", "captured")
# Cells of the grid in-process, each captured and launched kernel by kernel: model size, rows, tokens per row.
CELLS = {
    **{f"base_{length}_alone": ("base", 1, length) for length in (128, 16, 512)},
    **{f"base_{rows}x{length}": ("base", rows, length) for rows, length in ((8, 16), (8, 128), (2, 512))},
    "l6_32_alone": ("l6", 1, 32),
}
# The mixes of texts for the server of each model size; and the cell that a single call is compared with, by mix.
LOADS = {"base": ("128", "mixed"), "l6": ("sst2",)}
IN_PROCESS = {"128": "base_128_alone_launched_ms", "sst2": "l6_32_alone_launched_ms"}
CALLS = ("unary", "batch", "stream")
# The load whose latency is measured, at these percents of the rate of its closed loop. The most telling first.
STEADY, SHARES = "base_mixed", (70, 90, 50)

UNITS = {
    "_tflops": "TFLOP/s",
    "_gbs": "GB/s",
    "_per_s": "texts/s",
    "_seconds": "s",
    "_us": "us/text",
    "_ms": "ms",
    "_move": "probability",
    "_flips": "labels",
    "_error": "logits",
    "_tokens": "tokens",
    "_failed": "texts",
}
LOWER = ("_seconds", "_us", "_ms", "_move", "_flips", "_error", "_failed", "_host_share", "_changed")

# Targets against the device, the best peer and the host; then the checks. What one process serves has no target against the device: on a
# fast one tokenizing alone keeps the process below it. But one side must be busy.
TARGETS = {
    # Reckoned on an H100: of 7.65 ms for 128 texts products take 4.7, attention 0.65, traffic of what is not fused 2.3.
    "base_128_products_share": 0.6,
    "base_128_over_peer": 1.0,
    "base_mixed_over_peer": 1.0,
    # Beyond that the setting that captures small batches is worth it.
    "capture_gain": 1.1,
    **{f"base_128_{kind}_limit_busy": 0.9 for kind in CALLS},
    "base_128_c1_minus_inprocess_ms": 0.5,
    f"{STEADY}_at_70_p99_ms": P99_MS,
    f"{STEADY}_at_70_failed": 0.0,
    "base_sst2_packed_real_over_processed": 0.96,
    "base_imdb_packed_real_over_processed": 0.96,
    "base_mixed_packed_real_over_processed": 0.96,
    "base_padded_logit_error": 0.03,
    "base_packed_logit_error": 0.03,
    "base_cells_padded_right": 1.0,
    "base_cells_packed_right": 1.0,
    "base_golden_packed": 1.0,
    "english_golden_packed": 1.0,
    "fast_attention_share": 1.0,
    "english_padded_company_move": 0.002,
    "english_packed_company_move": 0.002,
    "english_padded_company_flips": 0.0,
    "english_packed_company_flips": 0.0,
    "base_server_memory_pinned": 1.0,
}


def offline_rows(size: str, mix: str) -> list[str]:
    """The figures of one mix of lengths, in-process."""
    name = f"{size}_{mix}"
    ours = [f"{name}_{variant}_{what}" for variant in OURS for what in ("tflops", "texts_per_s", "real_over_processed", "best_tokens")]
    return [
        *ours,
        *(f"{name}_{variant}_{what}" for variant in PEERS for what in ("tflops", "texts_per_s")),
        *(f"{name}_{what}" for what in ("products_share", "over_peer", "served_batch_over_best")),
    ]


def engine_rows(mix: str) -> list[str]:
    """The figures of one mix of lengths with ``--engines``."""
    ours = [f"base_{mix}_packed_{what}" for what in ("tflops", "texts_per_s")]
    return [*ours, *(f"base_{mix}_{variant}_{what}" for variant in (EACH_CAPTURED, *ENGINES) for what in ("tflops", "texts_per_s", "gain"))]


def engine_checks() -> list[str]:
    """The other figures of ``--engines``."""
    return [
        *(f"english_{variant}_{what}" for variant in ENGINES for what in ACCURACY),
        *(f"base_{variant}_company_{what}" for variant in ENGINES for what in COMPANY),
        *(f"base_128_alone_{variant}_ms" for variant in ("packed", "packed_captured", *ENGINES)),
        f"base_{EACH_CAPTURED}_logit_error",
        *copies_rows(),
    ]


def copies_rows() -> list[str]:
    """The figures of one and two copies of the model on one GPU."""
    return [f"base_sst2_{rows}_rows_{what}" for rows in COPIES_ROWS for what in ("1_texts_per_s", "2_texts_per_s", "copies_gain")]


def capped_rows() -> list[str]:
    """The figures of the default bundle's short texts with limits of rows."""
    return [*(f"l6_sst2_{rows}_rows_texts_per_s" for rows in ROWS_MAX), "l6_sst2_rows_gain"]


def call_rows(name: str, kind: str) -> list[str]:
    """The figures of a closed loop of one kind of call."""
    more = ("host_limit_per_s",) if kind == "unary" else ("over_offline",)
    return [f"{name}_{kind}_{what}" for what in ("texts_per_s", "failed", "limit_busy", *more)]


def server_rows(size: str, mix: str) -> list[str]:
    """The figures of a server with one mix of lengths."""
    name = f"{size}_{mix}"
    steady = [f"{name}_at_{share}_{what}" for share in sorted(SHARES) for what in ("p99_ms", "failed")] if name == STEADY else []
    alone = [f"{name}_c1_p50_ms", f"{name}_c1_minus_inprocess_ms"] if mix in IN_PROCESS else []
    figures = [f"{name}_{each}" for each in ("server_cpu_us", "device_busy", "served_real_over_processed")]
    return [*(row for kind in CALLS for row in call_rows(name, kind)), *figures, *alone, *steady]


def front_ends_rows() -> list[str]:
    """The figures of the server with front ends."""
    return [f"base_128_front_ends_{what}" for what in ("unary_texts_per_s", "unary_failed", "unary_limit_busy", "over_offline")]


def served_rows() -> list[str]:
    """The figures of all servers of ours, with and without front ends."""
    return [
        *(f"{size}_server_{what}" for size in LOADS for what in ("start_seconds", "memory_pinned")),
        *(name for size, mixes in LOADS.items() for mix in mixes for name in server_rows(size, mix)),
        *front_ends_rows(),
    ]


def tokenize_rows() -> list[str]:
    """The figures of the tokenizer."""
    return [f"{size}_{mix}_tokenize_us" for size, mixes in LOADS.items() for mix in mixes]


def expected(engines: bool) -> list[str]:
    """The names of all figures, or of those of ``--engines``."""
    probes = ("square_tflops", *(f"{size}_products_tflops" for size in SIZES))
    copies = ("to_device_gbs", "to_host_gbs", "device_copy_gbs", "memory_pinned")
    if engines:
        mixes = (name for mix in ENGINE_MIXES for name in engine_rows(mix))
        return [*(f"probe_{each}" for each in (*probes, *copies)), "base_graphs_seconds", *mixes, *engine_checks()]
    return [
        *(f"probe_{each}" for each in (*probes, *copies)),
        *(f"{size}_graphs_seconds" for size in SIZES),
        *(f"{bundle}_golden_packed" for bundle in ("english", "base")),
        *(f"base_cells_{layout}_right" for layout in OURS),
        *(f"base_{variant}_logit_error" for variant in (*OURS, *PEERS)),
        *(f"{cell}_{kind}_ms" for cell in CELLS for kind in KINDS),
        "capture_gain",
        "fast_attention_share",
        *(f"english_{layout}_company_{what}" for layout in OURS for what in ("move", "flips")),
        *(name for size, mixes in OFFLINE.items() for mix in mixes for name in offline_rows(size, mix)),
        *capped_rows(),
        "base_128_host_share",
        *tokenize_rows(),
        *(f"base_128_{variant}_tflops" for variant in AT_128),
        *served_rows(),
    ]


def result(name: str, value: float, spread: Mapping[str, float] | None = None) -> dict[str, Any]:  # Any: JSON
    """An entry of bench.json. ``spread``: of the rounds that the value comes from; None if it was measured once, or computed."""
    unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "ratio")
    lower = name.endswith(LOWER)
    rounded = {key: each if key == "rounds" else _rounded(each) for key, each in spread.items()} if spread else None
    return {
        "name": name,
        "value": _rounded(value),
        "spread": rounded,
        "unit": unit,
        "target": TARGETS.get(name),
        "higher_is_better": not lower,
    }


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def peers_there(versions: Mapping[str, str | None]) -> str:
    """What is said at the start: which peers are measured, and what is left out without the others."""
    found = [f"{peer.name} {versions[peer.name]}" for peer in PACKAGES if versions.get(peer.name)]
    lines = [f"peers: {', '.join(found) or 'none'}"]
    lines += [
        f"{peer.name} is not there; left out: {peer.gives} (--list-wheels names its wheels)"
        for peer in PACKAGES
        if not versions.get(peer.name)
    ]
    return "\n".join(lines)


def table(
    found: Mapping[str, float],
    spreads: Mapping[str, Mapping[str, float]],
    not_measured: Mapping[str, str],
    meta: Mapping[str, Any],  # Any: JSON
) -> str:
    """The figures with their targets, useful TFLOP/s by length, what limited each load, and the state of the GPU in each stage."""
    versions = ", ".join(f"{name} {meta.get(name) or '?'}" for name in ("driver", "onnxruntime", "torch"))
    lines = [f"{meta['device']}, {versions}, seed {meta['seed']}, {meta['seconds']:.0f} s"]
    if meta["no_gpu"]:
        lines.append(
            "NO GPU MEASUREMENT: tiny models on a CPU in a GPU's place. What follows shows that the script works, and nothing else."
        )
    if "engines" in meta:
        reason = meta.get("torch_without_kernel")
        lines += ["", *meta["engines"], *([f"without a kernel of our own between products: {reason}"] if reason else [])]
        lines += [f"{name}: tokens with which products keep their bits: {said}" for name, said in meta.get("products_alike", {}).items()]
        shown = set()
    else:
        lines += _beside_targets(found)
        shown = {name for size, mixes in OFFLINE.items() for mix in mixes for name in offline_rows(size, mix)} | TARGETS.keys()
    lines += ["", *(_line(name, found[name], spreads.get(name)) for name in found if name not in shown)]
    lines += ["", *(f"{load}: the limit was {said['limit']}" for load, said in meta.get("loads", {}).items())]
    lines += ["", *(line(name, said["seconds"], said["sensors"]) for name, said in meta.get("stages", {}).items())]
    reasons: dict[str, list[str]] = {}
    for name, reason in not_measured.items():
        reasons.setdefault(reason, []).append(name)
    lines += ["", *(f"not measured: {names[0]}{f' and {len(names) - 1} more' * (len(names) > 1)}: {why}" for why, names in reasons.items())]
    return "\n".join(lines)


def _beside_targets(found: Mapping[str, float]) -> Iterator[str]:
    """The figures that have a target, and useful TFLOP/s by length."""
    yield f"\n{'beside its target':44}{'measured':>12} {'unit':12}{'target':>10}"
    for name, target in TARGETS.items():
        entry = result(name, found.get(name, 0.0))
        sign = ">=" if entry["higher_is_better"] else "<="
        value = f"{entry['value']:12.4g}" if name in found else f"{'-':>12}"
        yield f"{name:44}{value} {entry['unit']:12}{sign:>5} {target:g}"
    for size, mixes in OFFLINE.items():
        yield f"\n{f'{SIZES[size]}, useful TFLOP/s in-process':34}" + "".join(f"{mix:>8}" for mix in mixes)
        for variant in (*OURS, *PEERS):
            names = [f"{size}_{mix}_{variant}_tflops" for mix in mixes]
            yield f"{variant:34}" + "".join(f"{found[name]:8.3g}" if name in found else f"{'-':>8}" for name in names)


def _line(name: str, value: float, spread: Mapping[str, float] | None) -> str:
    entry = result(name, value)
    between = f"  {spread['min']:.4g} to {spread['max']:.4g}" if spread else ""
    return f"{name:44}{entry['value']:12.5g} {entry['unit']:10}{between}"
