"""The names, units and targets of the figures, the JSON entries and the short table."""

from collections.abc import Mapping
from typing import Any

from tests.bench.gpu.rows import MIXES

OURS = ("padded", "packed")
PEERS = ("unfused_fp16", "torch_sdpa")
# Peers that are measured with 128 tokens only.
AT_128 = ("unfused_fp32", "torch_compiled", "tensorrt_fp16")
SIZES = {"base": "BERT-base", "l6": "MiniLM-L6"}
P99_MS = 50.0
KINDS = ("", "_launched")
# Cells of the grid in-process: model size, rows, tokens per row, and whether the run is captured or launched kernel by kernel.
CELLS = {
    **{f"base_{length}_alone{kind}_ms": ("base", 1, length, kind) for length in (128, 16, 512) for kind in KINDS},
    **{f"base_{rows}x{length}{kind}_ms": ("base", rows, length, kind) for rows, length in ((8, 16), (8, 128), (2, 512)) for kind in KINDS},
    "l6_32_alone_ms": ("l6", 1, 32, ""),
}
# The mixes of texts for the server of each model size; and the in-process figure that a single call is compared with, by mix.
LOADS = {"base": ("128", "mixed"), "l6": ("sst2",)}
IN_PROCESS = {"128": "base_128_alone_ms", "sst2": "l6_32_alone_ms"}

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
    "_rows": "rows",
    "_tokens": "tokens",
}
LOWER = ("_seconds", "_us", "_ms", "_move", "_flips", "_error", "_c1_over_inprocess", "_host_share", "_tensorrt_over_ours")

# Targets against the device, the best peer, the host and TensorRT (beyond 1.1 it would be worth serving with); then the checks.
TARGETS = {
    "base_128_gemm_share": 0.63,
    "base_128_over_peer": 1.0,
    "base_128_tensorrt_over_ours": 1.1,
    "base_128_server_over_gemm": 0.63,
    "base_128_served_over_offline_unary": 0.90,
    "base_128_served_over_offline_batch": 0.92,
    "base_128_front_ends_over_offline": 0.90,
    "base_128_c1_over_inprocess": 1.3,
    "base_128_c1_p50_ms": 1.0,
    "base_128_runner_busy": 0.95,
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
    "base_server_runs_captured": 1.0,
}


def offline_rows(size: str, mix: str) -> list[str]:
    """The figures of one mix of lengths, in-process."""
    name = f"{size}_{mix}"
    ours = [f"{name}_{variant}_{what}" for variant in OURS for what in ("tflops", "texts_per_s", "real_over_processed", "best_tokens")]
    return [
        *ours,
        *(f"{name}_{variant}_tflops" for variant in PEERS),
        *(f"{name}_{what}" for what in ("gemm_share", "over_peer", "served_batch_over_best")),
    ]


def server_rows(size: str, mix: str) -> list[str]:
    """The figures of a server with one mix of lengths."""
    name = f"{size}_{mix}"
    closed = [f"{name}_server_{kind}_{what}" for kind in ("unary", "batch", "stream") for what in ("texts_per_s", "p99_ms")]
    figures = (
        *("open_unary_texts_per_s", "open_batch_texts_per_s", "served_over_offline_unary", "served_over_offline_batch"),
        *("server_over_gemm", "runner_busy", "device_busy", "served_real_over_processed", "server_cpu_us"),
        *(("c1_p50_ms", "c1_over_inprocess") if mix in IN_PROCESS else ()),
    )
    return [*closed, *(f"{name}_{each}" for each in figures)]


def served_rows() -> list[str]:
    """The figures of all servers, with and without front ends."""
    return [
        *(f"{size}_server_{what}" for size in LOADS for what in ("start_seconds", "memory_pinned", "runs_captured")),
        *(name for size, mixes in LOADS.items() for mix in mixes for name in server_rows(size, mix)),
        *(f"base_128_front_ends_{what}" for what in ("unary_texts_per_s", "open_texts_per_s", "over_offline")),
    ]


def expected() -> list[str]:
    """The names of all figures."""
    probes = ("gemm_ort_tflops", "gemm_torch_tflops", "gemm_tflops", "to_device_gbs", "to_host_gbs", "device_copy_gbs", "memory_pinned")
    return [
        *(f"probe_{each}" for each in probes),
        *(f"{size}_graphs_seconds" for size in SIZES),
        *(f"{bundle}_golden_packed" for bundle in ("english", "base")),
        *(f"base_cells_{layout}_right" for layout in OURS),
        *(f"base_{variant}_logit_error" for variant in (*OURS, *PEERS)),
        *CELLS,
        "fast_attention_share",
        *(f"english_{layout}_company_{what}" for layout in OURS for what in ("move", "flips")),
        *(name for size in SIZES for mix in MIXES for name in offline_rows(size, mix)),
        "base_128_host_share",
        *(f"base_128_{variant}_tflops" for variant in AT_128),
        "base_128_tensorrt_over_ours",
        *served_rows(),
    ]


def result(name: str, value: float) -> dict[str, Any]:  # Any: JSON
    """An entry of bench.json."""
    unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "ratio")
    value = float(f"{value:.5g}")
    return {"name": name, "value": value, "unit": unit, "target": TARGETS.get(name), "higher_is_better": not name.endswith(LOWER)}


def table(found: Mapping[str, float], not_measured: Mapping[str, str], meta: Mapping[str, Any]) -> str:  # Any: JSON
    """The figures with their targets, and useful TFLOP/s by length."""
    lines = [f"{meta['device']}, onnxruntime {meta['onnxruntime']}, torch {meta.get('torch', 'not there')}, {meta['seconds']:.0f} s"]
    if meta["no_gpu"]:
        lines.append(
            "NO GPU MEASUREMENT: tiny models on a CPU in a GPU's place. What follows shows that the script works, and nothing else."
        )
    lines.append(f"\n{'beside its target':44}{'measured':>12} {'unit':12}{'target':>10}")
    for name, target in TARGETS.items():
        entry = result(name, found.get(name, 0.0))
        sign = ">=" if entry["higher_is_better"] else "<="
        value = f"{entry['value']:12.4g}" if name in found else f"{'-':>12}"
        lines.append(f"{name:44}{value} {entry['unit']:12}{sign:>5} {target:g}")
    for size, called in SIZES.items():
        lines.append(f"\n{f'{called}, useful TFLOP/s in-process':34}" + "".join(f"{mix:>8}" for mix in MIXES))
        for variant in (*OURS, *PEERS):
            names = [f"{size}_{mix}_{variant}_tflops" for mix in MIXES]
            lines.append(f"{variant:34}" + "".join(f"{found[name]:8.3g}" if name in found else f"{'-':>8}" for name in names))
    parts = ("probe", "host_share", "_server_", "_open_", "_served_over_", "front_ends")
    rest = [name for name in found if name in CELLS or any(part in name for part in parts)]
    lines += ["", *(f"{name:44}{result(name, found[name])['value']:12.5g} {result(name, found[name])['unit']}" for name in rest)]
    reasons: dict[str, list[str]] = {}
    for name, reason in not_measured.items():
        reasons.setdefault(reason, []).append(name)
    lines += ["", *(f"not measured: {names[0]}{f' and {len(names) - 1} more' * (len(names) > 1)}: {why}" for why, names in reasons.items())]
    return "\n".join(lines)
