"""The same BERT in PyTorch: padded, eager or compiled; and padding-free, in a captured run: ``python -m tests.bench.gpu.torch_peer``.

Written here, since transformers may not be installed. Query, key and value are one product; rows of one length have no mask. Padding-free
is ``torch.nn.attention.varlen``, which every wheel of PyTorch 2.10 and later has: flash attention over rows that lie one behind the other.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sentiment.model.tensors import pad
from sentiment.model.tokenizer import Row, Tokenizer
from sentiment_models.export.manifest import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from sentiment_models.export.weights import real
from tests.bench.gpu import versions
from tests.bench.gpu.bert import SIZES, Size, Weights, load_weights, make_weights
from tests.bench.gpu.child import serve
from tests.bench.gpu.report import ENGINES
from tests.bench.gpu.rows import Logits, Peer, Run, draw_rows, draw_trial
from tests.bench.gpu.torch_bert import Bert, Operand, compiled

INPUTS = ("input_ids", "attention_mask")
# Products between two waits for the device.
PRODUCTS = 8
# A padding-free batch is filled up to a multiple of these tokens.
STEP = 64
# The products of a layer, as named in the weights, and the numbers of tokens among which their bits are compared.
LAYER = "bert.encoder.layer.0"
NAMES = ("attention.self.all", "attention.output.dense", "intermediate.dense", "output.dense")
LADDER = tuple(STEP * 2**power for power in range(10))
# Rows of a batch in which the answers to texts are compared.
TEXTS = 64
Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class TorchPeer(Peer):
    """The requests of the process. Variants: torch_sdpa, torch_compiled, and ENGINES, which are padding-free."""

    def __init__(self, english: Path, device: str) -> None:
        super().__init__()
        self.english, self.device = english, device
        self.on_gpu = device != "cpu"
        # Why the kernel of our own is not used.
        self.no_kernel = "there is no GPU"
        if self.on_gpu:
            torch.cuda.set_device(device)
            self.no_kernel = _no_kernel()
        self.bert = cache(self._bert)

    def about(self) -> dict[str, Any]:  # Any: JSON
        """The versions. The first product loads the libraries."""
        self.gemm(8, 8, 8, 0.0)
        found = {"torch": torch.__version__, "torch_cuda": torch.version.cuda, "torch_libraries": versions.loaded()}
        return found | {"torch_without_kernel": self.no_kernel}

    def gemm(self, rows: int, inner: int, columns: int, seconds: float) -> dict[str, list[float]]:
        """The seconds of a product of fp16 matrices of random numbers, [rows, inner] by [inner, columns], in each run of several."""
        shapes = ((rows, inner), (inner, columns))
        left, right = (torch.randn(*shape, device=self.device, dtype=torch.float16) for shape in shapes)
        spent: list[float] = []
        begun = time.perf_counter()
        while len(spent) < 3 or time.perf_counter() - begun < seconds:
            from_s = time.perf_counter()
            for _ in range(PRODUCTS):
                left @ right
            if self.on_gpu:
                torch.cuda.synchronize(self.device)
            spent.append((time.perf_counter() - from_s) / PRODUCTS)
        # The first ones load kernels.
        return {"seconds": spent[2:]}

    def answers(self, model: str, variant: str) -> dict[str, list[list[float]]]:
        """The logits of ``rows.draw_trial``."""
        return {"logits": self.run_of(model, variant)(draw_trial(SIZES[model]))[1].tolist()}

    def accuracy(self, variant: str, texts: Sequence[str]) -> dict[str, float]:
        """The default bundle in a variant against fp32: the largest error of its golden texts' logits, and what changes on ``texts``."""
        tokenizer = Tokenizer(self.english / TOKENIZER_FILE, 512)
        manifest = json.loads((self.english / "manifest.json").read_bytes())
        golden = [entry["text"] for entry in manifest["golden"] if "text_pair" not in entry]
        rows = [tokenizer.encode(text) for text in (*golden, *texts)]
        reference, run = self._padded(self.bert("english", "fp32", False)), self._packed(self._engine("english", variant), False)
        batches = [rows[begin : begin + TEXTS] for begin in range(0, len(rows), TEXTS)]
        wanted, found = (np.concatenate([each(batch)[1] for batch in batches]) for each in (reference, run))
        labels = len(manifest["labels"])
        changed = wanted[:, :labels].argmax(1) != found[:, :labels].argmax(1)
        errors = np.abs(wanted - found).max(1)
        golden_error, text_error = (float(each.max()) for each in np.split(errors, [len(golden)]))
        return {"golden_error": golden_error, "text_error": text_error, "changed": float(changed[len(golden) :].mean())}

    def company(self, model: str, variant: str, tokens: int, batches: Sequence[int]) -> dict[str, float]:
        """How answers change with batch mates: the largest move of a probability, and the share of rows with all bits alike.

        As batches come; and ``one_``: each filled up to ``tokens`` tokens, so that all products have the same rows.
        """
        rows = draw_rows("mixed", tokens // 2, SIZES[model])
        found: dict[str, float] = {}
        for name, step in (("", STEP), ("one_", tokens)):
            run = self._packed(self._engine(model, variant), False, step)
            alone = np.concatenate([run([row])[1] for row in rows])
            moves, alike = [0.0], []
            for number in batches:
                together = np.concatenate([run(rows[begin : begin + number])[1] for begin in range(0, len(rows), number)])
                moves.append(float(np.abs(_probabilities(together) - _probabilities(alone)).max()))
                alike.append(float((together == alone).all(1).mean()))
            found |= {f"{name}move": max(moves), f"{name}alike": min(alike)}
        return found

    def alike(self, model: str, variant: str) -> dict[str, list[int]]:
        """For each product of a layer: with how many tokens the first ones have the bits that they have with the most tokens."""
        bert = self._engine(model, variant)
        found: dict[str, list[int]] = {}
        for name in NAMES:
            width = bert.size.inner if name == "output.dense" else bert.size.width
            source = bert.finish(torch.randn(LADDER[-1], width, device=self.device, dtype=torch.float16))

            def first(rows: int, name: str = name, source: Operand = source) -> torch.Tensor:
                some = Operand(*(None if each is None else each[:rows] for each in source))  # type: ignore[arg-type]  # the first is there
                return bert.product(some, f"{LAYER}.{name}", rounds=False).plain[:STEP]

            wanted = first(LADDER[-1])
            found[name] = [rows for rows in LADDER if torch.equal(first(rows), wanted)]
        return found

    def _engine(self, model: str, variant: str) -> Bert:
        return self.bert(model, variant.removeprefix("torch_"), not self.no_kernel)

    def _bert(self, model: str, kind: str, kernel: bool) -> Bert:
        if model != "english":
            return Bert(_weights(model), SIZES[model], self.device, kind, kernel)
        config = json.loads((self.english / CONFIG_FILE).read_bytes())
        size = Size(*(config[name] for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")))
        return Bert(real(load_weights(self.english / WEIGHTS_FILE)), size, self.device, kind, kernel)

    def make_run(self, model: str, variant: str) -> Run:
        """See ``Peer``."""
        if variant in ENGINES:
            return self._packed(self._engine(model, variant), self.on_gpu)
        return self._padded(self.bert(model, "fp16", False), variant == "torch_compiled")

    def _padded(self, bert: Bert, compile_it: bool = False) -> Run:
        forward: Callable[..., torch.Tensor] = torch.compile(bert, dynamic=False) if compile_it else bert

        def run(rows: Sequence[Row]) -> tuple[int, Logits]:
            feeds = pad(rows, INPUTS, 0, left=False)
            with torch.inference_mode():
                ids, mask = (torch.from_numpy(feeds[name]).to(self.device) for name in INPUTS)
                alike = bool(np.all(feeds["attention_mask"]))
                # The copy to the host waits for the device.
                return ids.numel(), forward(ids, None if alike else mask.bool()[:, None, None, :]).float().cpu().numpy()

        return run

    def _packed(self, bert: Bert, captured: bool, step: int = STEP) -> Run:
        """Padding-free, with the tokens filled up to a multiple of ``step``; ``captured``: each shape as a CUDA graph."""
        runs: dict[tuple[int, int, int], Forward] = {}

        def run(rows: Sequence[Row]) -> tuple[int, Logits]:
            lengths = np.array([row.tokens for row in rows])
            begins = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            ids, positions = np.zeros((2, -(-int(begins[-1]) // step) * step), np.int64)
            ids[: begins[-1]] = list(itertools.chain.from_iterable(row.ids for row in rows))
            positions[: begins[-1]] = np.arange(begins[-1]) - np.repeat(begins[:-1], lengths)
            shape = (len(ids), len(rows), int(lengths.max()))
            with torch.inference_mode():
                given = [torch.from_numpy(array).to(self.device) for array in (ids, positions, begins)]
                if shape not in runs:
                    forward = partial(bert.packed, longest=shape[-1])
                    runs[shape] = capture(forward, given) if captured else forward
                return len(ids), runs[shape](*given).float().cpu().numpy()

        return run


@cache
def _weights(model: str) -> Weights:
    """The weights of the bundle of that name, which need not be there."""
    return make_weights(SIZES[model])


@cache
def _pool() -> Any:  # Any: has no type
    """The memory that all captured runs share: one runs after the other, and its logits are copied before the next."""
    return torch.cuda.graph_pool_handle()


def capture(forward: Forward, given: Sequence[torch.Tensor]) -> Forward:
    """A CUDA graph of a run, which copies its inputs to where the graph reads them."""
    kept = [each.clone() for each in given]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        forward(*kept)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_pool()):
        logits = forward(*kept)

    def replay(*inputs: torch.Tensor) -> torch.Tensor:
        for place, tensor in zip(kept, inputs, strict=True):
            place.copy_(tensor)
        graph.replay()
        return logits

    return replay


def _no_kernel() -> str:
    """Why our own kernel cannot be compiled; "" if it can."""
    try:
        compiled("1.0f", INT32=0, ADD=0, GELU=0, NORM=0, PLAIN=1, ROUND=0, INT8=0, WIDTH=64)
    except Exception as error:  # measured without it, and the report says so
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def _probabilities(logits: Logits) -> Logits:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    shares: Logits = powers / powers.sum(1, keepdims=True)
    return shares


if __name__ == "__main__":
    serve(TorchPeer(Path(sys.argv[1]), sys.argv[2]))
