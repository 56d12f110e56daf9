"""The script that measures a GPU, on a CPU: it measures all of its figures, and the graphs that it measures compute the same logits."""

import dataclasses
import gc
import json
import math
import re
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from sentiment.model.devices import Accelerator, Device
from sentiment.model.session import Session
from sentiment.model.tensors import pad
from sentiment.model.tokenizer import Row
from sentiment_models.export.checkpoint import Checkpoint
from sentiment_models.export.checkpoint import save_weights as save_halves
from sentiment_models.export.graphs.graph import serialize
from sentiment_models.export.manifest import TOKENIZER_FILE, WEIGHTS_FILE
from sentiment_models.export.weights import refer
from tests.bench.gpu import __main__ as script
from tests.bench.gpu import run, tensorrt_peer
from tests.bench.gpu.bench import Bench, plan_of
from tests.bench.gpu.bert import SIZES, Size, load_weights, make_graph, make_weights, save_weights
from tests.bench.gpu.child import Child, Gone
from tests.bench.gpu.inside import Inside
from tests.bench.gpu.report import LOADS, SHARES, STEADY, TARGETS, UNITS, capped_rows, expected, served_rows, tokenize_rows
from tests.bench.gpu.rows import BATCHES, MIXES, draw_rows, measure, packed_batches, padded_batches
from tests.bench.gpu.spread import median
from tests.bench.gpu.stages import flop, read_kernels
from tests.bench.gpu.wheels import find_peers
from tests.english import ENGLISH
from tests.models.tiny_families import TINY, save_tiny

ROOT = Path(__file__).parents[1]
# The reasons why a trial may lack a figure: time, no GPU, or another missing figure.
NO_TIME = ("were left of its share of the time", "its time was up", "there was no time to", "did not come to it")
NO_GPU = ("no attention node of CPUExecutionProvider said", "without a GPU", "NVML says nothing", "nvidia-pytriton is not installed")
FOLLOWS = ("the closed loop did not tell", "the same texts were not measured", "what it is computed from")
# Figures of the first stages, which need no server.
EARLY = (
    *("probe_square_tflops", "probe_base_products_tflops", "probe_l6_products_tflops", "base_graphs_seconds", "base_golden_packed"),
    *("base_padded_logit_error", "base_packed_logit_error", "base_torch_varlen_logit_error", "base_8x16_captured_ms", "capture_gain"),
    *capped_rows(),
    *tokenize_rows(),
)


def test_a_trial_on_a_cpu_names_every_figure_or_the_reason_and_keeps_to_its_budget(tmp_path: Path) -> None:
    output, begun, budget_s = tmp_path / "bench.json", time.monotonic(), 6
    command = [sys.executable, "-m", "tests.bench.gpu", "--device", "cpu", "--budget-s", str(budget_s), "--output", str(output)]

    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)

    report = json.loads(output.read_text())
    found = {entry["name"]: entry for entry in report["results"]}
    missing = report["meta"]["not_measured"]
    assert ran.returncode == (0 if found else 1), ran.stderr
    assert found.keys() | missing.keys() == set(expected())
    assert {why for why in missing.values() if not any(known in why for known in (*NO_TIME, *NO_GPU, *FOLLOWS))} == set()
    assert all(entry.keys() == {"name", "value", "spread", "unit", "target", "higher_is_better"} for entry in report["results"])
    assert "NO GPU MEASUREMENT" in ran.stdout
    assert "triton is not there; left out: the server base_128_triton" in ran.stdout
    assert report["meta"]["stages"].keys() == run.STAGES.keys()
    assert all(said["sensors"] is None and said["sensors_absent"] for said in report["meta"]["stages"].values())
    # Far above the few seconds that the end of a server and its clients take.
    assert time.monotonic() - begun < budget_s + 50


def test_every_stage_measures_all_its_figures_without_a_gpu_with_512_calls_in_flight(tmp_path: Path) -> None:
    plan = dataclasses.replace(plan_of("cpu", 2), load_s=0.1, steady_s=0.2)
    bench = Bench(plan, tmp_path, ENGLISH, 600.0)
    bench.versions = find_peers()
    assert plan.in_flight == 512

    try:
        for name, (stage, _) in run.STAGES.items():
            if name.startswith("server"):
                # Figures of the in-process stage that the servers are compared with; the stage may have had no time for them.
                for figure in [f"{size}_{mix}_packed_texts_per_s" for size in LOADS for mix in LOADS[size]]:
                    bench.found.setdefault(figure, 1.0)
            stage(bench, time.monotonic() + (2.4 if name.startswith("in-process") else 60.0))
            if name == "probes":
                assert "inside" not in bench._children
    finally:
        bench.close()

    missing = {name: bench.not_measured[name] for name in served_rows() if name not in bench.found}
    without = ("_memory_pinned", "_device_busy")
    assert {name: why for name, why in missing.items() if not name.endswith(without)} == {}
    assert all(any(known in why for known in NO_GPU) for why in missing.values()), missing
    assert all(math.isfinite(bench.found[name]) for name in served_rows() if name not in missing)
    assert {name: bench.not_measured.get(name) for name in EARLY if name not in bench.found} == {}
    assert max(bench.found["base_packed_logit_error"], bench.found["base_torch_varlen_logit_error"]) < 0.03
    assert {f"{STEADY}_at_{share}" for share in SHARES} | {"base_128_unary", "base_128_front_ends"} <= bench.meta["loads"].keys()
    assert bench.spreads["base_128_unary_texts_per_s"]["rounds"] == 5
    others = {name: why for name, why in bench.not_measured.items() if name not in bench.found}
    assert {why for why in others.values() if not any(known in why for known in (*NO_TIME, *NO_GPU, *FOLLOWS))} == set()


def test_a_missing_device_ends_the_script_with_1_and_no_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "bench.json"
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cuda:99", "--budget-s", "20", "--output", str(output)])

    assert script.main() == 1

    assert "device = cuda:99" in capsys.readouterr().out
    assert json.loads(output.read_text())["results"] == []


def test_every_figure_has_its_name_once_and_every_target_is_a_figure() -> None:
    names = expected()

    assert len(names) == len(set(names))
    assert TARGETS.keys() <= set(names)
    assert all(any(name.endswith(unit) for unit in UNITS) for name in names if name.endswith(("_s", "_ms", "_tflops")))


def test_the_random_bert_has_the_answers_of_an_exported_checkpoint_with_its_weights(tmp_path: Path) -> None:
    tiny = TINY["bert"]
    checkpoint = Checkpoint(save_tiny(tmp_path / "checkpoint", tiny))
    exported = tmp_path / "exported"
    exported.mkdir()
    save_halves(checkpoint.weights, exported / WEIGHTS_FILE)
    graph = checkpoint.to_onnx(checkpoint.weights)
    (exported / "fp32.onnx").write_bytes(serialize(refer(graph, exported / WEIGHTS_FILE)))
    weights = load_weights(exported / WEIGHTS_FILE)
    vocabulary = len(weights["bert.embeddings.word_embeddings.weight"])
    size = Size(tiny.sizes["num_hidden_layers"], tiny.sizes["hidden_size"], 4, tiny.sizes["intermediate_size"], vocabulary, tiny.positions)
    onnx.save(make_graph(size, weights), tmp_path / "ours.onnx")
    random = np.random.default_rng(1)
    rows = [
        Row(random.integers(0, vocabulary, length).tolist(), sorted(random.integers(0, 2, length).tolist()), False) for length in (1, 7, 64)
    ]

    theirs, ours = Session(exported / "fp32.onnx"), Session(tmp_path / "ours.onnx")

    assert theirs.inputs == ours.inputs
    feeds = pad(rows, ours.inputs, 0, left=False)
    assert np.abs(theirs.run(feeds) - ours.run(feeds)).max() < 1e-5
    assert {node.op_type for node in onnx.load(tmp_path / "ours.onnx").graph.node} == {node.op_type for node in graph.graph.node}


def test_a_missing_tensorrt_is_an_error_and_nothing_else_is_measured_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])

    with pytest.raises(tensorrt_peer.NoTensorRT, match=r"onnxruntime [0-9.]+ is built without TensorrtExecutionProvider"):
        tensorrt_peer.load(Path("nothing.onnx"), 128, 128, 0)


def test_an_engine_has_one_shape_and_the_answers_of_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The CPU in TensorRT's place.
    monkeypatch.setattr(tensorrt_peer, "PROVIDER", "CPUExecutionProvider")
    graph, size = tmp_path / "graph.onnx", SIZES["tiny-base"]
    onnx.save(make_graph(size, make_weights(size)), graph)
    feeds = pad(draw_rows("16", 48, size), Session(graph).inputs, 0, left=False)

    # ONNX Runtime warns that CUDA is missing.
    with warnings.catch_warnings(action="ignore"):
        engine = tensorrt_peer.load(graph, 3, 16, 0)

    assert np.abs(engine.run(None, feeds)[0] - Session(graph).run(feeds)).max() < 1e-5
    assert [entry.shape for entry in engine.get_inputs()] == [[3, 16]] * 3


def test_weights_are_read_as_they_were_written(tmp_path: Path) -> None:
    weights = make_weights(dataclasses.replace(SIZES["tiny-l6"], vocabulary=11))

    save_weights(weights, tmp_path / "w.safetensors")

    found = load_weights(tmp_path / "w.safetensors")
    assert found.keys() == weights.keys()
    assert all(np.array_equal(found[name], weights[name]) for name in weights)


@pytest.mark.parametrize("cut", [padded_batches, packed_batches])
@pytest.mark.parametrize("mix", MIXES)
def test_batches_have_all_rows_once_and_padding_does_not_count_as_useful(cut: object, mix: str) -> None:
    size = SIZES["tiny-base"]
    rows = draw_rows(mix, BATCHES * 2048, size)

    batches = list(cut(rows, 2048))  # type: ignore[operator]

    assert sorted(id(row) for batch in batches for row in batch) == sorted(map(id, rows))
    for batch in batches:
        longest, tokens = max(row.tokens for row in batch), sum(row.tokens for row in batch)
        assert (len(batch) * longest if cut is padded_batches else tokens) <= 2048
    found = measure(lambda rows: (2 * sum(row.tokens for row in rows), np.zeros(0, np.float32)), batches, size, 0.0)
    assert found["real_over_processed"] == 0.5


def test_a_packed_batch_has_no_more_rows_than_its_limit() -> None:
    rows = draw_rows("32", 32 * 10, SIZES["tiny-base"])

    assert [len(batch) for batch in packed_batches(rows, 2048, rows_max=4)] == [4, 4, 2]


def test_memory_that_copies_are_measured_from_stays_mapped_since_nothing_unpins_it(tmp_path: Path) -> None:
    pinned: list[tuple[int, int, int]] = []

    def pin(address: int, size: int, index: int) -> bool:
        pinned.append((address, size, index))
        return True

    inside = Inside(tmp_path, tmp_path, "cpu")
    inside.device = Device("cuda:0", 0, Accelerator("CPUExecutionProvider", "cpu", pin=pin))

    found = [inside.copies(2**20, 0.03) for _ in range(2)]
    gc.collect()

    ((address, size, _),) = pinned
    maps = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    assert any(int(begin, 16) <= address and address + size <= int(end, 16) for begin, end in maps)
    assert all(each["pinned"] and min(each["to_device"]) > 0 for each in found)


def test_the_products_of_a_layer_are_the_operations_of_its_texts_without_attention() -> None:
    size = SIZES["bert-base"]

    products = size.products(128)

    assert set(products.values()) == {(128, 768, 768), (128, 768, 2304), (128, 768, 3072), (128, 3072, 768)}
    attention = 4 * size.layers * size.width * 128**2
    assert size.layers * sum(map(flop, products.values())) + attention == size.flop(128)
    assert {inner for _, inner, _ in SIZES["minilm-l6"].products(1).values()} == {384, 1536}


def test_the_operations_of_a_text_are_those_of_the_notes() -> None:
    assert SIZES["bert-base"].flop(128) == pytest.approx(22.35e9, rel=1e-3)
    assert SIZES["minilm-l6"].flop(512) == pytest.approx(13.3e9, rel=5e-3)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_every_token_of_the_borrowed_tokenizer_has_an_embedding(size: Size) -> None:
    words = json.loads((ENGLISH / TOKENIZER_FILE).read_text(encoding="utf-8"))
    ids = [*words["model"]["vocab"].values(), *(added["id"] for added in words["added_tokens"])]

    assert max(ids) < size.vocabulary


def test_the_attention_kernels_in_the_log_are_counted_by_batch() -> None:
    log = "\n".join(
        [
            "attend padded 32",
            "\x1b[36mOperator=Attention Node=a DataType=fp16 SdpaKernel=CUDNN_FLASH_ATTENTION\x1b[0m",
            '{"event": "x"}',
            "attend packed 32",
            *["\x1b[36mOperator=PackedMultiHeadAttention DataType=fp16 SdpaKernel=MATH\x1b[0m"] * 2,
        ]
    )

    seen = read_kernels(log)

    assert seen == {"padded 32": {"Attention CUDNN_FLASH_ATTENTION": 1}, "packed 32": {"PackedMultiHeadAttention MATH": 2}}


def test_a_failed_request_an_ended_process_and_a_late_one_have_different_errors(tmp_path: Path) -> None:
    child = Child("client", tmp_path / "log", "127.0.0.1:1", str(ROOT / "nothing.json"))
    with pytest.raises(Gone, match=r"client ended with 1: FileNotFoundError.*nothing.json"):
        child.ask(time.monotonic() + 30, "closed")

    (tmp_path / "texts.json").write_text('["a"]')
    child = Child("client", tmp_path / "log", "127.0.0.1:1", str(tmp_path / "texts.json"))
    with pytest.raises(Gone, match="TypeError"):
        child.ask(time.monotonic() + 30, "closed", wrong=1)
    assert child.alive
    with pytest.raises(Gone, match="was not asked, since its time was up"):
        child.ask(time.monotonic() - 3, "closed", wrong=1)
    assert child.alive
    # The client waits for a connection that never comes, far beyond its time.
    child.begin("closed", kind="unary", in_flight=1, items=1, seconds=60, seed=0)
    with pytest.raises(Gone, match="was ended because its time was up"):
        child.answer(time.monotonic() - 3)
    assert not child.alive


@pytest.mark.parametrize(
    ("said", "ends"),
    [
        ("CUDA failure 700: an illegal memory access was encountered", True),
        ("onnxruntime/core/providers/cuda/cuda_call.cc:154 " + "x" * 900 + " CUBLAS failure 14", True),
        ("bfc_arena.cc:360 Failed to allocate memory for requested buffer of size 4718592", True),
        ("TensorRT is not measured without a GPU, on CUDAExecutionProvider", False),
    ],
)
def test_a_process_in_which_cuda_failed_is_ended_so_that_the_next_request_starts_another(tmp_path: Path, said: str, ends: bool) -> None:
    (tmp_path / "texts.json").write_text('["a"]')
    child = Child("client", tmp_path / "log", "127.0.0.1:1", str(tmp_path / "texts.json"))

    # Its error names the request that it does not know.
    with pytest.raises(Gone, match=re.escape(said[-18:])):
        child.ask(time.monotonic() + 30, said)

    assert child.alive is not ends
    child.close()


def test_a_failure_in_a_stage_costs_no_figure_of_another_stage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def first(bench: Bench, until: float) -> None:
        bench.attempt(["probe_square_tflops"], until, 0, lambda: {"probe_square_tflops": median([9.0, 7.0, 5.0])})
        bench.attempt(["probe_copy_gb_per_s"], until, 0, lambda: {"probe_copy_gb_per_s": bench.found["nowhere"]})
        raise ZeroDivisionError("in the stage")

    def second(bench: Bench, until: float) -> None:
        bench.found |= {"base_graphs_seconds": 2.0, "base_padded_logit_error": math.inf}

    delivered: list[tuple[dict[str, Any], str]] = []
    monkeypatch.setattr(run, "STAGES", {"first": (first, 0.5), "second": (second, 1.0)})
    monkeypatch.setattr(run, "_sensors", lambda bench: (None, "no GPU"))
    monkeypatch.setattr(run, "_start_torch", lambda bench: None)

    assert run.run("cpu", 5.0, None, 7, lambda *found: delivered.append(found))

    ((said, _),) = delivered
    found = {entry["name"]: entry["value"] for entry in said["results"]}
    assert found == {"probe_square_tflops": 7.0, "base_graphs_seconds": 2.0}
    assert said["results"][0]["spread"] == {"min": 5.0, "q1": 6.0, "q3": 8.0, "max": 9.0, "rounds": 3}
    assert said["results"][1]["spread"] is None
    assert said["meta"]["seed"] == 7
    assert said["meta"]["not_measured"]["base_padded_logit_error"].startswith("inf: there was nothing to divide by")
    assert "ZeroDivisionError: in the stage" in said["meta"]["stage_faults"]["first"]
    assert "first: ZeroDivisionError: in the stage" in capsys.readouterr().out
    json.dumps(said, allow_nan=False)


def test_the_time_that_processes_take_to_start_is_taken_from_no_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[float] = []

    def start(bench: Bench) -> None:
        # As if 4 of the 10 seconds had gone by.
        bench.begun -= 4.0

    def stage(bench: Bench, until: float) -> None:
        ends.append(until - bench.begun)

    monkeypatch.setattr(run, "STAGES", {"half": (stage, 0.5), "whole": (stage, 1.0)})
    monkeypatch.setattr(run, "_sensors", lambda bench: (None, "no GPU"))
    monkeypatch.setattr(run, "_start_torch", start)

    run.run("cpu", 10.0, None, 7, lambda *found: None)

    assert ends == pytest.approx([7.0, 10.0], abs=0.5)


def test_a_stage_that_hangs_loses_nothing_that_was_found_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hung = threading.Event()
    codes: list[int] = []

    def hang(bench: Bench, until: float) -> None:
        bench.found["probe_square_tflops"] = 7.0
        hung.wait(30)

    def leave(code: int) -> None:
        codes.append(code)
        hung.set()

    delivered: list[tuple[dict[str, Any], str]] = []
    monkeypatch.setattr(run, "STAGES", {"hang": (hang, 1.0)})
    monkeypatch.setattr(run, "_sensors", lambda bench: (None, "no GPU"))
    monkeypatch.setattr(run, "_start_torch", lambda bench: None)
    monkeypatch.setattr(run, "LATE_S", 0.0)

    run.run("cpu", 0.3, None, 7, lambda *found: delivered.append(found), leave)

    said, _ = delivered[0]
    assert codes == [0]
    assert "did not end" in said["meta"]["hung"]
    assert [entry["name"] for entry in said["results"]] == ["probe_square_tflops"]
