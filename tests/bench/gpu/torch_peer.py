"""The same BERT in PyTorch, fp16, with scaled_dot_product_attention, eager or compiled: ``python -m tests.bench.gpu.torch_peer``.

Written here, since transformers may not be installed. Query, key and value are one product; rows of one length have no mask.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from sentiment.model.tensors import pad
from sentiment.model.tokenizer import Row
from sentiment_models.export.manifest import WEIGHTS_FILE
from tests.bench.gpu.bert import SIZES, Size, load_weights, made
from tests.bench.gpu.child import serve
from tests.bench.gpu.rows import BATCHES, Logits, Run, draw_rows, draw_trial, measure, padded_batches

INPUTS = ("input_ids", "attention_mask")


class Bert(torch.nn.Module):
    """The classifier: ids [rows, longest] and a mask [rows, 1, 1, longest] or None to logits."""

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
        """Logits [rows, labels]."""
        kinds = (self.w[f"bert.embeddings.{kind}_embeddings.weight"] for kind in ("word", "token_type", "position"))
        word, token_type, position = kinds
        hidden = self._norm(word[ids] + token_type[0] + position[: ids.shape[1]], "bert.embeddings.LayerNorm")
        for layer in range(self.size.layers):
            hidden = self._layer(hidden, mask, f"bert.encoder.layer.{layer}")
        return self._linear(torch.tanh(self._linear(hidden[:, 0], "bert.pooler.dense")), "classifier")

    def _layer(self, hidden: torch.Tensor, mask: torch.Tensor | None, name: str) -> torch.Tensor:
        rows, longest, width = hidden.shape
        split = self._linear(hidden, f"{name}.attention.self.all").view(rows, longest, 3, self.size.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        joined = mixed.transpose(1, 2).reshape(rows, longest, width)
        attended = self._norm(self._linear(joined, f"{name}.attention.output.dense") + hidden, f"{name}.attention.output.LayerNorm")
        inner = functional.gelu(self._linear(attended, f"{name}.intermediate.dense"))
        return self._norm(self._linear(inner, f"{name}.output.dense") + attended, f"{name}.output.LayerNorm")

    def _linear(self, source: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(source, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def _norm(self, source: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(source, (self.size.width,), self.w[f"{name}.weight"], self.w[f"{name}.bias"], 1e-12)


class TorchPeer:
    """The requests of the process."""

    def __init__(self, bundles: Path, device: str) -> None:
        self.bundles = bundles
        self.device = "cpu" if device == "cpu" else device
        self._runs: dict[tuple[str, str], Run] = {}

    def about(self) -> dict[str, str]:
        """The version."""
        return {"torch": torch.__version__}

    def gemm(self, width: int, seconds: float) -> dict[str, float]:
        """TFLOP/s of a product of two fp16 matrices of random numbers."""
        left, right = (torch.randn(width, width, device=self.device, dtype=torch.float16) for _ in range(2))
        count, begun = 0, 0.0
        for warm in (True, False):
            begun, count = time.perf_counter(), 0
            while not count or time.perf_counter() - begun < seconds / (5 if warm else 1):
                for _ in range(8):
                    left @ right
                self._wait()
                count += 8
        return {"tflops": count * 2 * width**3 / (time.perf_counter() - begun) / 1e12}

    def measure(self, model: str, variant: str, mix: str, tokens: int, seconds: float) -> dict[str, float]:
        """See ``rows.measure``; ``variant`` is torch_sdpa or torch_compiled."""
        size = SIZES[model]
        batches = list(padded_batches(draw_rows(mix, BATCHES * tokens, size), tokens))
        return measure(self._run_of(model, variant), batches, size, seconds)

    def answers(self, model: str, variant: str) -> dict[str, list[list[float]]]:
        """The logits of ``rows.draw_trial``."""
        return {"logits": self._run_of(model, variant)(draw_trial(SIZES[model]))[1].tolist()}

    def _run_of(self, model: str, variant: str) -> Run:
        if (model, variant) not in self._runs:
            bert = Bert(made(self.bundles / model / "1") / WEIGHTS_FILE, SIZES[model], self.device, torch.float16)
            forward: Callable[..., torch.Tensor] = torch.compile(bert, dynamic=False) if variant == "torch_compiled" else bert

            def run(rows: Sequence[Row]) -> tuple[int, Logits]:
                with torch.inference_mode():
                    ids, mask = self._inputs(rows)
                    # The copy to the host waits for the device.
                    return ids.numel(), forward(ids, mask).float().cpu().numpy()

            self._runs[model, variant] = run
        return self._runs[model, variant]

    def _inputs(self, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor | None]:
        feeds = pad(rows, INPUTS, 0, left=False)
        ids, mask = (torch.from_numpy(feeds[name]).to(self.device) for name in INPUTS)
        alike = bool(np.all(feeds["attention_mask"]))
        return ids, None if alike else mask.bool()[:, None, None, :]

    def _wait(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)


if __name__ == "__main__":
    serve(TorchPeer(Path(sys.argv[1]), sys.argv[2]))
