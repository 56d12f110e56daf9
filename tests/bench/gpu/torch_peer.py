"""The same BERT in PyTorch, fp16: padded and eager, padded and compiled, and padding-free: ``python -m tests.bench.gpu.torch_peer``.

Written here, since transformers may not be installed. Query, key and value are one product; rows of one length have no mask. Padding-free
is ``torch.nn.attention.varlen``, which every wheel of PyTorch 2.10 and later has: flash attention over rows that lie one behind the other,
without the dispatch in Python that nested tensors cost each operator.
"""

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from sentiment.model.tensors import pad
from sentiment.model.tokenizer import Row
from sentiment_models.export.manifest import WEIGHTS_FILE
from tests.bench.gpu import versions
from tests.bench.gpu.bert import SIZES, Size, load_weights, made
from tests.bench.gpu.child import serve
from tests.bench.gpu.rows import BATCHES, Logits, Run, draw_rows, draw_trial, measure, packed_batches, padded_batches

INPUTS = ("input_ids", "attention_mask")
VARLEN = "torch_varlen"
# Products between two waits for the device.
PRODUCTS = 8
Attend = Callable[[torch.Tensor], torch.Tensor]
"""Attention of query, key and value [tokens, 3, heads, width of a head] to [tokens, heads, width of a head]."""


class Bert(torch.nn.Module):
    """The classifier. Its products and norms are for [tokens, width]: padded rows are only seen as rows by attention."""

    def __init__(self, file: Path, size: Size, device: str, kind: torch.dtype) -> None:
        super().__init__()
        self.size = size
        self.w = {name: torch.from_numpy(array.copy()).to(device, kind) for name, array in load_weights(file).items()}
        for layer in range(size.layers):
            name = f"bert.encoder.layer.{layer}.attention.self"
            for part in ("weight", "bias"):
                parts = [self.w.pop(f"{name}.{which}.{part}") for which in ("query", "key", "value")]
                self.w[f"{name}.all.{part}"] = torch.cat(parts)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Logits [rows, labels] of padded rows: ids [rows, longest], and a mask [rows, 1, 1, longest] or None."""
        rows, longest = ids.shape

        def attend(all_three: torch.Tensor) -> torch.Tensor:
            query, key, value = all_three.view(rows, longest, *all_three.shape[1:]).permute(2, 0, 3, 1, 4).unbind(0)
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            return mixed.transpose(1, 2).reshape(rows * longest, *all_three.shape[2:])

        positions = torch.arange(longest, device=ids.device).expand(rows, longest)
        hidden = self._layers(ids.reshape(-1), positions.reshape(-1), attend)
        return self._head(hidden.view(rows, longest, -1)[:, 0])

    def packed(self, ids: torch.Tensor, positions: torch.Tensor, begins: torch.Tensor, longest: int) -> torch.Tensor:
        """Logits [rows, labels] of rows one behind the other: ids and positions [tokens]; ``begins``: int32 [rows + 1], with the end."""
        hidden = self._layers(ids, positions, lambda all_three: attend_packed(all_three, begins, longest))
        return self._head(hidden[begins[:-1].long()])

    def _layers(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        word, token_type, position = (self.w[f"bert.embeddings.{kind}_embeddings.weight"] for kind in ("word", "token_type", "position"))
        hidden = self._norm(word[ids] + token_type[0] + position[positions], "bert.embeddings.LayerNorm")
        for layer in range(self.size.layers):
            hidden = self._layer(hidden, attend, f"bert.encoder.layer.{layer}")
        return hidden

    def _layer(self, hidden: torch.Tensor, attend: Attend, name: str) -> torch.Tensor:
        mixed = attend(self._linear(hidden, f"{name}.attention.self.all").view(len(hidden), 3, self.size.heads, -1))
        joined = mixed.reshape(hidden.shape)
        attended = self._norm(self._linear(joined, f"{name}.attention.output.dense") + hidden, f"{name}.attention.output.LayerNorm")
        inner = functional.gelu(self._linear(attended, f"{name}.intermediate.dense"))
        return self._norm(self._linear(inner, f"{name}.output.dense") + attended, f"{name}.output.LayerNorm")

    def _head(self, first: torch.Tensor) -> torch.Tensor:
        return self._linear(torch.tanh(self._linear(first, "bert.pooler.dense")), "classifier")

    def _linear(self, source: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(source, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def _norm(self, source: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(source, (self.size.width,), self.w[f"{name}.weight"], self.w[f"{name}.bias"], 1e-12)


def attend_packed(all_three: torch.Tensor, begins: torch.Tensor, longest: int) -> torch.Tensor:
    """Attention within each row. The kernel exists for GPUs only; on a CPU, row by row, which shows that the rest is right.

    Raises:
        ImportError: PyTorch is older than 2.10.
    """
    if all_three.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        query, key, value = all_three.unbind(1)
        mixed = varlen_attn(query, key, value, begins, begins, longest, longest)
        assert isinstance(mixed, torch.Tensor)
        return mixed
    rows = []
    for begin, end in itertools.pairwise(begins.tolist()):
        query, key, value = all_three[begin:end].permute(1, 2, 0, 3).unbind(0)
        rows.append(functional.scaled_dot_product_attention(query[None], key[None], value[None])[0].transpose(0, 1))
    return torch.cat(rows)


class TorchPeer:
    """The requests of the process."""

    def __init__(self, bundles: Path, device: str) -> None:
        self.bundles = bundles
        self.device = "cpu" if device == "cpu" else device
        self._runs: dict[tuple[str, str], Run] = {}
        self._berts: dict[str, Bert] = {}

    def about(self) -> dict[str, Any]:  # Any: JSON
        """The versions. The first product loads the libraries."""
        self.gemm(8, 8, 8, 0.0)
        return {"torch": torch.__version__, "torch_cuda": torch.version.cuda, "torch_libraries": versions.loaded()}

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
            if self.device != "cpu":
                torch.cuda.synchronize(self.device)
            spent.append((time.perf_counter() - from_s) / PRODUCTS)
        # The first ones load kernels.
        return {"seconds": spent[2:]}

    def measure(self, model: str, variant: str, mix: str, tokens: int, seconds: float) -> dict[str, float]:
        """See ``rows.measure``; ``variant`` is torch_sdpa, torch_compiled or torch_varlen."""
        size = SIZES[model]
        rows = draw_rows(mix, BATCHES * tokens, size)
        batches = list(packed_batches(rows, tokens) if variant == VARLEN else padded_batches(rows, tokens))
        return measure(self._run_of(model, variant), batches, size, seconds)

    def answers(self, model: str, variant: str) -> dict[str, list[list[float]]]:
        """The logits of ``rows.draw_trial``."""
        return {"logits": self._run_of(model, variant)(draw_trial(SIZES[model]))[1].tolist()}

    def _run_of(self, model: str, variant: str) -> Run:
        if (model, variant) not in self._runs:
            if model not in self._berts:
                self._berts[model] = Bert(made(self.bundles / model / "1") / WEIGHTS_FILE, SIZES[model], self.device, torch.float16)
            bert = self._berts[model]
            self._runs[model, variant] = self._packed(bert) if variant == VARLEN else self._padded(bert, variant == "torch_compiled")
        return self._runs[model, variant]

    def _padded(self, bert: Bert, compiled: bool) -> Run:
        forward: Callable[..., torch.Tensor] = torch.compile(bert, dynamic=False) if compiled else bert

        def run(rows: Sequence[Row]) -> tuple[int, Logits]:
            feeds = pad(rows, INPUTS, 0, left=False)
            with torch.inference_mode():
                ids, mask = (torch.from_numpy(feeds[name]).to(self.device) for name in INPUTS)
                alike = bool(np.all(feeds["attention_mask"]))
                # The copy to the host waits for the device.
                return ids.numel(), forward(ids, None if alike else mask.bool()[:, None, None, :]).float().cpu().numpy()

        return run

    def _packed(self, bert: Bert) -> Run:
        def run(rows: Sequence[Row]) -> tuple[int, Logits]:
            lengths = np.array([row.tokens for row in rows])
            begins = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            ids = np.fromiter(itertools.chain.from_iterable(row.ids for row in rows), np.int64, begins[-1])
            positions = np.arange(len(ids)) - np.repeat(begins[:-1], lengths)
            with torch.inference_mode():
                tokens, places, starts = (torch.from_numpy(array).to(self.device) for array in (ids, positions, begins))
                return len(ids), bert.packed(tokens, places, starts, int(lengths.max())).float().cpu().numpy()

        return run


if __name__ == "__main__":
    serve(TorchPeer(Path(sys.argv[1]), sys.argv[2]))
