"""In-process figures of ONNX Runtime: ``python -m tests.bench.gpu.inside BUNDLES DEVICE``, a child process of the script."""

import itertools
import math
import mmap
import random
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import tokenizers
from onnx import TensorProto, helper
from onnxruntime.transformers import float16

from sentiment.model.bundle import find_bundle, load_bundle
from sentiment.model.classifier import load_classifier
from sentiment.model.gpu.device_session import DeviceSession
from sentiment.model.gpu.graphs import PLAIN, make_graphs
from sentiment.model.gpu.on_device import load_on_device
from sentiment.model.session import Fed, Session, Stop, load_graph
from sentiment.model.tensors import pad
from sentiment.model.tokenizer import Row, Tokenizer
from sentiment.observability.logs import configure
from sentiment_models.export.manifest import TOKENIZER_FILE, WEIGHTS_FILE
from sentiment_tools.traffic.lengths import LONG, SHORT
from tests.bench.gpu import versions
from tests.bench.gpu.bert import LABELS, SIZES, load_weights, made, make_bundle, make_graph
from tests.bench.gpu.report import COPIES, EACH_CAPTURED
from tests.bench.gpu.rows import (
    BATCHES,
    CLS,
    Logits,
    Peer,
    Run,
    draw_rows,
    draw_trial,
    lengths_of,
    packed_batches,
    timed,
)
from tests.bench.gpu.stand_in import device_of
from tests.bench.texts import make_texts
from tests.packed_twin import save_twin

PRODUCTS = 4
# Random numbers of a matrix; larger ones repeat them. Odd, so that rows differ.
DRAWN_MAX = 2**20 + 7
# The greatest difference of a logit between a captured run and an uncaptured one, which may use other kernels.
CELL_ERROR_MAX = 0.01
CAPTURES = {"padded": False, "packed": False, "padded_captured": True, "packed_captured": True, EACH_CAPTURED: True}
CAPTURES |= dict.fromkeys(COPIES, False)


class EachCaptured(DeviceSession):
    """A session that captures each batch as it is, however large, and fails if it cannot: launched, it would be another variant."""

    def _cell(self, rows: int, length: int) -> None:
        return None

    def run(self, feeds: Fed, stop: Stop | None = None) -> Logits:
        """As DeviceSession does. The first run of a shape captures it."""
        self._graphs.setdefault(self._shapes_fed(feeds), str(len(self._graphs) + 1))
        return super().run(feeds, stop)

    def _end_capture(self, feeds: Fed, error: Exception) -> bool:
        return False


class Inside(Peer):
    """The requests of the process.

    ``padded`` and ``packed`` are our graphs; ``..._captured`` the same with small batches captured; EACH_CAPTURED with all batches
    captured; COPIES are sessions of the packed graph, each for a thread of its own.
    """

    def __init__(self, bundles: Path, english: Path, device: str) -> None:
        super().__init__()
        self.bundles, self.english, self.folder = bundles, english, bundles.parent / "graphs"
        self.device = device_of(device)
        # Packed attention has a kernel for CUDA only.
        self.twin = device == "cpu"
        self.session = cache(self._session)
        self.thread = cache(lambda _: ThreadPoolExecutor(1))
        # Host memory by size, and whether it is pinned. Nothing unpins it, so it must stay mapped as long as the process lives: for the
        # driver its addresses are taken, also where the next allocation of device memory would have them.
        self._host: dict[int, tuple[npt.NDArray[np.uint8], bool]] = {}

    def about(self) -> dict[str, Any]:  # Any: JSON
        """The versions and the device."""
        device = self.device
        return {
            "device": device.model,
            "uuid": device.uuid,
            "capability": device.capability,
            "provider": self._accelerator().provider,
            "onnxruntime": onnxruntime.__version__,
            "onnxruntime_libraries": versions.loaded(),
            **versions.driver(),
        }

    def make(self, model: str) -> dict[str, Any]:  # Any: JSON
        """Build a bundle and its graphs."""
        begun = time.monotonic()
        if not (self.bundles / model).exists():
            # Elsewhere first: this process is killed when its time is up, and half of a bundle must not look like one.
            making = self.bundles.with_name("making")
            shutil.rmtree(making, ignore_errors=True)
            make_bundle(making, model, SIZES[model], self.english)
            (making / model).rename(self.bundles / model)
        graphs = make_graphs(self._bundle(model), self.folder, "fp16")
        return {"fused": dict(graphs.fused), "packed": graphs.packed is not None, "seconds": time.monotonic() - begun}

    def gemm(self, rows: int, inner: int, columns: int, seconds: float) -> dict[str, list[float]]:
        """The seconds of a product of fp16 matrices of random numbers, [rows, inner] by [inner, columns], in each run of several."""
        random = np.random.default_rng(1)

        def draw(*shape: int) -> npt.NDArray[np.float16]:
            # Repeated: drawing all of the largest ones would take seconds.
            few = (random.standard_normal(min(math.prod(shape), DRAWN_MAX), np.float32) / math.sqrt(inner)).astype(np.float16)
            return np.resize(few, shape)

        # Each with weights of its own: ONNX Runtime computes a product once that is written twice.
        drawn = {"x": draw(rows, inner), **{f"w{number}": draw(inner, columns) for number in range(PRODUCTS)}}
        nodes = [helper.make_node("MatMul", ["x", f"w{number}"], [f"y{number}"]) for number in range(PRODUCTS)]
        given = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, array.shape) for name, array in drawn.items()]
        made = [helper.make_tensor_value_info(f"y{number}", TensorProto.FLOAT16, [rows, columns]) for number in range(PRODUCTS)]
        spent = self._timed(helper.make_graph(nodes, "gemm", given, made), drawn, (rows, columns), seconds)
        return {"seconds": [each / PRODUCTS for each in spent]}

    def copies(self, size: int, seconds: float) -> dict[str, Any]:  # Any: JSON
        """GB/s of each copy from the host to the device, back, and within the device, where both reading and writing count."""
        accelerator, index = self._accelerator(), self.device.index
        if size not in self._host:
            memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
            self._host[size] = memory, accelerator.pin is not None and accelerator.pin(memory.ctypes.data, size, index)
        host, pinned = self._host[size]
        value = onnxruntime.OrtValue.ortvalue_from_numpy(host, accelerator.memory, index)
        there = timed(lambda: value.update_inplace(host), seconds / 3)
        back = timed(value.numpy, seconds / 3)
        kinds = [helper.make_tensor_value_info(name, TensorProto.UINT8, [size]) for name in ("x", "y")]
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "copy", kinds[:1], kinds[1:])
        within = self._timed(graph, {"x": np.zeros(size, np.uint8)}, (size,), seconds / 3)
        moved = {"to_device": (size, there), "to_host": (size, back), "within": (2 * size, within)}
        return {**{name: [many / each / 1e9 for each in spent] for name, (many, spent) in moved.items()}, "pinned": pinned}

    def tokenize(self, texts: Sequence[str], seconds: float) -> dict[str, list[float]]:
        """The microseconds that one thread takes to tokenize a text, as the server does it, in each pass over the texts."""
        tokenizer = Tokenizer(self.english / TOKENIZER_FILE, 512)
        spent = timed(lambda: [tokenizer.encode(text) for text in texts], seconds, runs_min=2)
        return {"us": [each / len(texts) * 1e6 for each in spent]}

    def answers(self, model: str, variant: str) -> dict[str, list[list[float]]]:
        """The logits of ``rows.draw_trial``. ``variant`` may also be ``plain``: the bundle's own fp32 graph on the CPU."""
        rows = draw_trial(SIZES[model])
        if variant == "plain":
            session = Session(self._bundle(model) / PLAIN)
            return {"logits": session.run(pad(rows, session.inputs, 0, left=False)).tolist()}
        return {"logits": self.run_of(model, variant)(rows)[1].tolist()}

    def parts(self, model: str, variant: str, mix: str, tokens: int) -> dict[str, float]:
        """The parts of a batch's time: median seconds of laying out, copying and running."""
        session = self.session(model, variant)
        rows = next(packed_batches(draw_rows(mix, tokens, SIZES[model]), tokens))
        spent = []
        for _ in range(12):
            begun = time.perf_counter()
            feeds = session.feeds(rows, 0, left=False)
            laid_out = time.perf_counter()
            session.run(feeds)
            spent.append((laid_out - begun, session.copied_s, time.perf_counter() - laid_out - session.copied_s))
        pad_s, copy_s, run_s = np.median(spent[2:], axis=0).tolist()
        return {"pad_s": pad_s, "copy_s": copy_s, "run_s": run_s}

    def cells(self, model: str, layout: str) -> dict[str, float]:
        """Compare each cell of the grid, run three times (capture and replays), with the same without captured runs."""
        session, launched = self.session(model, f"{layout}_captured"), self.session(model, layout)
        right, worst = 0, 0.0
        for rows, length in session.cells:
            drawn = draw_rows("512", rows * 512, SIZES[model])
            batch = [Row(row.ids[:length], None, False) for row in drawn]
            wanted = launched.run(launched.feeds(batch, 0, left=False))[:rows]
            error = max(float(np.abs(session.run(session.feeds(batch, 0, left=False))[:rows] - wanted).max()) for _ in range(3))
            worst = max(worst, error)
            right += error < CELL_ERROR_MAX
        return {"cells": len(session.cells), "right": right, "error_max": worst}

    def golden(self, bundle: str) -> dict[str, Any]:  # Any: JSON
        """The graph of a bundle that is served here: the first that passes the golden set, packed before padded."""
        host = load_classifier(find_bundle(bundle, [self.bundles, self.english.parents[1]]), "fp32")
        served = load_on_device(host, self.device, "fp16", self.folder)
        return {"file": served.graph.file, "passed_over": list(served.passed_over)}

    def company(self, layout: str, texts: int, longest: int, batches: Sequence[int], seed: int) -> dict[str, float]:
        """How much the probabilities of a text change, and how many labels, between the text alone and in a batch with others.

        Half of ``texts`` is as long as SST-2's, half as IMDB's, cut at ``longest`` tokens; each runs once in a batch of each size.
        """
        tokenizer = Tokenizer(self.english / TOKENIZER_FILE, longest)
        session = self.session("english", layout)
        rng = random.Random(seed)
        counting = tokenizers.Tokenizer.from_file(str(self.english / TOKENIZER_FILE))
        written = [*make_texts(SHORT, texts // 2, counting), *make_texts(LONG, texts - texts // 2, counting)]
        rows = [tokenizer.encode(text) for text in written]
        alone = np.concatenate([self._probabilities(session, [row]) for row in rows])
        move, flips, seen = 0.0, 0, 0
        for number in batches:
            order = rng.sample(range(len(rows)), len(rows))
            for batch in (order[start : start + number] for start in range(0, len(order), number)):
                found = self._probabilities(session, [rows[index] for index in batch])
                move = max(move, float(np.abs(found - alone[batch]).max()))
                flips += int((found.argmax(1) != alone[batch].argmax(1)).sum())
                seen += len(batch)
        return {"move": move, "flips": flips, "seen": seen}

    def _probabilities(self, session: DeviceSession, rows: Sequence[Row]) -> Logits:
        logits = session.run(session.feeds(rows, 0, left=False))[: len(rows)]
        powers = np.exp(logits - logits.max(1, keepdims=True))
        shares: Logits = powers / powers.sum(1, keepdims=True)
        return shares

    def share(self, model: str, copies: int, rows: int, seconds: float) -> dict[str, float]:
        """Texts per second of several copies of the packed graph on the device, which take the same batches in turn.

        Batches have ``rows`` rows of SST-2's lengths, laid out before, since a server lays out the next batch while one runs.
        """
        drawn = draw_rows("sst2", round(BATCHES * rows * lengths_of("sst2").mean), SIZES[model])
        workers = [(self.session(model, copy), self.thread(copy)) for copy in COPIES[:copies]]
        batches = [workers[0][0].feeds(batch, 0, left=False) for batch in packed_batches(drawn, len(drawn) * 512, rows)]
        # Each in its thread: CUDA's libraries keep a state for each.
        for session, thread in workers:
            list(thread.map(session.run, batches))
        taken = itertools.cycle(batches)
        begun = time.perf_counter()

        def work(session: DeviceSession) -> int:
            ran = 0
            while not ran or time.perf_counter() - begun < seconds:
                session.run(next(taken))
                ran += rows
            return ran

        working = [thread.submit(work, session) for session, thread in workers]
        return {"texts_per_s": sum(each.result() for each in working) / (time.perf_counter() - begun)}

    def attend(self, model: str, lengths: Sequence[int]) -> dict[str, int]:
        """Run both layouts. With ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO, attention logs its kernels on standard error."""
        for layout, length in itertools.product(("padded", "packed"), lengths):
            print(f"attend {layout} {length}", file=sys.stderr, flush=True)
            session = self.session(model, layout)
            session.run(session.feeds([Row([CLS] * length, None, False)] * 8, 0, left=False))
        return {}

    def make_run(self, model: str, variant: str) -> Run:
        """See ``Peer``. Variants: ours, ``unfused_fp16`` and ``unfused_fp32``."""
        return (self._ours if variant in CAPTURES else self._plain)(model, variant)

    def _ours(self, model: str, variant: str) -> Run:
        session = self.session(model, variant)

        def run(rows: Sequence[Row]) -> tuple[int, Logits]:
            feeds = session.feeds(rows, 0, left=False)
            return feeds["input_ids"].size, session.run(feeds)[: len(rows)]

        return run

    def _plain(self, model: str, variant: str) -> Run:
        """Plain use of ONNX Runtime: the exported graph with its mask, fused by the session only, with host arrays."""
        providers = [(self._accelerator().provider, {"device_id": str(self.device.index)})]
        return partial(_run_arrays, onnxruntime.InferenceSession(str(self._unfused(model, variant)), providers=providers))

    def _unfused(self, model: str, variant: str) -> Path:
        kind = variant.rpartition("_")[2]
        file = self.bundles / model / f"unfused_{kind}.onnx"
        if not file.exists():
            graph = make_graph(SIZES[model], load_weights(self._bundle(model) / WEIGHTS_FILE))
            if kind == "fp16":
                graph = float16.convert_float_to_float16(graph, keep_io_types=True, disable_shape_infer=True)
            onnx.save(graph, file)
        return file

    def _session(self, model: str, variant: str) -> DeviceSession:
        layout = variant.partition("_")[0]
        graphs = make_graphs(self._bundle(model), self.folder, "fp16")
        path = graphs.packed if layout == "packed" else graphs.padded
        assert path is not None, graphs.reason
        if layout == "packed" and self.twin:
            path = path.with_name("twin.onnx")
            save_twin(path.with_name("packed.onnx"), path)
        size = SIZES.get(model)
        longest = size.positions if size else 512
        labels = len(LABELS) if size else load_bundle(self.english).manifest.logits
        kind = EachCaptured if variant == EACH_CAPTURED else DeviceSession
        return kind(path, self.device, labels, layout, longest, captures=CAPTURES[variant])

    def _bundle(self, model: str) -> Path:
        return made(self.english if model == "english" else self.bundles / model / "1")

    def _accelerator(self) -> Any:  # Any: Accelerator, which is there
        return self.device.accelerator

    def _timed(
        self, graph: onnx.GraphProto, inputs: Mapping[str, npt.NDArray[np.generic]], shape: tuple[int, ...], seconds: float
    ) -> list[float]:
        """Seconds of each run of a graph whose inputs and outputs, all of one shape, stay on the device."""
        accelerator, index = self._accelerator(), self.device.index
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        session = load_graph(model.SerializeToString(), [(accelerator.provider, {**accelerator.options, "device_id": str(index)})])
        binding = session.io_binding()
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array, accelerator.memory, index) for name, array in inputs.items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        kind = next(iter(inputs.values())).dtype
        for output in graph.output:
            made = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(shape), kind, accelerator.memory, index)
            binding.bind_ortvalue_output(output.name, made)
        return timed(lambda: session.run_with_iobinding(binding), seconds)


def _run_arrays(session: onnxruntime.InferenceSession, rows: Sequence[Row]) -> tuple[int, Logits]:
    feeds = pad(rows, [entry.name for entry in session.get_inputs()], 0, left=False)
    return feeds["input_ids"].size, session.run(["logits"], feeds)[0]


if __name__ == "__main__":
    from tests.bench.gpu.child import serve

    configure("info", "json")
    serve(Inside(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
