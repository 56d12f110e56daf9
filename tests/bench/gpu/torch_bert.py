"""BERT in PyTorch as an engine of cuBLASLt, flash attention and one kernel of our own would compute it: in fp16, fp8 or int8.

With eight bits the products of the layers are exact to a scale for each row, of activations as of weights; all else is as in fp16.
What stands between two products (sums, norm, gelu, rounding) is one kernel that NVRTC compiles, since nothing here needs Triton. On
a CPU, and for padded rows, the same is computed by PyTorch's operators.
"""

import functools
import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from tests.bench.gpu.bert import Size

# The numbers of eight bits, and the largest of them.
EIGHT = {"fp8": (torch.float8_e4m3fn, 448.0), "int8": (torch.int8, 127.0)}
KINDS = ("fp16", *EIGHT)
EPSILON = 1e-12
# Threads of a block; each holds pairs of numbers of one row in registers.
THREADS = 128
Scales = tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None
"""Of an int32 product: the scales of its rows and of its columns, fp32 [rows, 1] and [columns, 1], and the bias."""
Attend = Callable[[torch.Tensor], torch.Tensor]
"""Attention of query, key and value [tokens, 3, heads, width of a head] to [tokens, heads, width of a head]."""

KERNEL = """
__device__ float wide(unsigned bits) { float v; asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"((unsigned short)bits)); return v; }
__device__ unsigned narrow(float v) { unsigned short bits; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v)); return bits; }
__device__ unsigned short fp8(float a, float b) {
    unsigned short bits; asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(b), "f"(a)); return bits;
}
__device__ float whole_row(float v, bool largest) {
    __shared__ float parts[THREADS / 32];
    for (int step = 16; step; step >>= 1) {
        float other = __shfl_xor_sync(~0u, v, step);
        v = largest ? fmaxf(v, other) : v + other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = parts[0];
    for (int i = 1; i < THREADS / 32; i++) v = largest ? fmaxf(v, parts[i]) : v + parts[i];
    return v;
}
#define EACH for (int k = 0, p = threadIdx.x; k < PAIRS; k++, p += THREADS) if (p < WIDTH / 2)
extern "C" __global__ void finish(const void* x, const float* row_scale, const float* column_scale, const unsigned* bias,
    const unsigned* added, const unsigned* gain, const unsigned* shift, unsigned* plain, unsigned short* rounded, float* scale) {
    const size_t row = (size_t)blockIdx.x * (WIDTH / 2);
    float a[PAIRS], b[PAIRS], sum = 0;
    #pragma unroll
    EACH {
#if INT32
        int2 both = ((const int2*)x)[row + p];
        float by = row_scale[blockIdx.x];
        a[k] = both.x * by * column_scale[2 * p] + wide(bias[p]);
        b[k] = both.y * by * column_scale[2 * p + 1] + wide(bias[p] >> 16);
#else
        unsigned both = ((const unsigned*)x)[row + p];
        a[k] = wide(both); b[k] = wide(both >> 16);
#endif
#if ADD
        a[k] += wide(added[row + p]); b[k] += wide(added[row + p] >> 16);
#endif
#if GELU
        a[k] *= 0.5f + 0.5f * erff(a[k] * 0.70710678f); b[k] *= 0.5f + 0.5f * erff(b[k] * 0.70710678f);
#endif
        sum += a[k] + b[k];
    }
#if NORM
    const float mean = whole_row(sum, false) / WIDTH;
    float squares = 0;
    #pragma unroll
    EACH { a[k] -= mean; b[k] -= mean; squares += a[k] * a[k] + b[k] * b[k]; }
    const float by = rsqrtf(whole_row(squares, false) / WIDTH + 1e-12f);
    #pragma unroll
    EACH {
        a[k] = a[k] * by * wide(gain[p]) + wide(shift[p]);
        b[k] = b[k] * by * wide(gain[p] >> 16) + wide(shift[p] >> 16);
    }
#endif
#if PLAIN
    #pragma unroll
    EACH plain[row + p] = narrow(a[k]) | narrow(b[k]) << 16;
#endif
#if ROUND
    float most = 0;
    #pragma unroll
    EACH most = fmaxf(most, fmaxf(fabsf(a[k]), fabsf(b[k])));
    most = fmaxf(whole_row(most, true), 1e-12f);
    const float to = LARGEST / most;
    #pragma unroll
    EACH {
#if INT8
        rounded[row + p] = (unsigned char)__float2int_rn(a[k] * to) | (unsigned short)((unsigned char)__float2int_rn(b[k] * to) << 8);
#else
        rounded[row + p] = fp8(a[k] * to, b[k] * to);
#endif
    }
    if (threadIdx.x == 0) scale[blockIdx.x] = most / LARGEST;
#endif
}
"""


class Operand(NamedTuple):
    """What a product reads: [tokens, width] in fp16, or with eight bits and what they are to be multiplied with, fp32 [tokens, 1]."""

    plain: torch.Tensor
    rounded: torch.Tensor | None = None
    scale: torch.Tensor | None = None


class Bert(torch.nn.Module):
    """The classifier. Its products and norms are for [tokens, width]: padded rows are only seen as rows by attention.

    ``kind``: fp32 (what the others are compared with), fp16, fp8 or int8. ``kernel``: whether our own kernel is used.
    """

    def __init__(self, weights: Mapping[str, npt.NDArray[Any]], size: Size, device: str, kind: str, kernel: bool = False) -> None:
        super().__init__()
        self.size, self.kind, self.kernel = size, kind, kernel
        number = torch.float32 if kind == "fp32" else torch.float16
        self.w = {name: torch.from_numpy(np.array(array)).to(device, number) for name, array in weights.items()}
        for layer in range(size.layers):
            name = f"bert.encoder.layer.{layer}.attention.self"
            for part in ("weight", "bias"):
                parts = [self.w.pop(f"{name}.{which}.{part}") for which in ("query", "key", "value")]
                self.w[f"{name}.all.{part}"] = torch.cat(parts)
        ends = ("self.all.weight", "dense.weight")
        deep = [name for name in self.w if ".layer." in name and name.endswith(ends)] if kind in EIGHT else []
        self.rounded = {name.removesuffix(".weight"): round_rows(self.w.pop(name), kind) for name in deep}

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
        """Logits [rows, labels] of rows one behind the other: ids and positions [tokens]; ``begins``: int32 [rows + 1], with the end.

        Tokens behind the last row belong to none.
        """
        hidden = self._layers(ids, positions, lambda all_three: attend_packed(all_three, begins, longest))
        return self._head(hidden[begins[:-1].long()])

    def _layers(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        word, token_type, position = (self.w[f"bert.embeddings.{kind}_embeddings.weight"] for kind in ("word", "token_type", "position"))
        summed = word[ids] + token_type[0] + position[positions]
        hidden = self.finish(summed, norm="bert.embeddings.LayerNorm")
        for layer in range(self.size.layers):
            hidden = self._layer(hidden, attend, f"bert.encoder.layer.{layer}")
        return hidden.plain

    def _layer(self, hidden: Operand, attend: Attend, name: str) -> Operand:
        all_three = self.product(hidden, f"{name}.attention.self.all", rounds=False).plain
        mixed = attend(all_three.view(len(all_three), 3, self.size.heads, -1)).reshape(hidden.plain.shape)
        joined = self.finish(mixed, plain=False)
        output = f"{name}.attention.output"
        attended = self.product(joined, f"{output}.dense", add=hidden.plain, norm=f"{output}.LayerNorm")
        inner = self.product(attended, f"{name}.intermediate.dense", gelu=True, plain=False)
        return self.product(inner, f"{name}.output.dense", add=attended.plain, norm=f"{name}.output.LayerNorm")

    def product(self, source: Operand, name: str, **then: Any) -> Operand:  # Any: the arguments of finish
        """A product with its bias, and what ``finish`` does to it."""
        bias = self.w[f"{name}.bias"]
        if self.kind not in EIGHT:
            weight = self.w[f"{name}.weight"]
            if self.kernel and then.get("gelu"):
                # In the product's epilogue, where a GPU has the tanh form of gelu only.
                return Operand(torch._addmm_activation(bias, source.plain, weight.t(), use_gelu=True))
            return self.finish(functional.linear(source.plain, weight, bias), **then)
        weight, scale = self.rounded[name]
        assert source.rounded is not None and source.scale is not None
        if self.kind == "fp8":
            scales = (source.scale, scale.t())
            made = torch._scaled_mm(source.rounded, weight.t(), *scales, bias, out_dtype=bias.dtype, use_fast_accum=True)
            return self.finish(made, **then)
        return self.finish(torch._int_mm(source.rounded, weight.t()), scales=(source.scale, scale, bias), **then)

    def finish(
        self,
        made: torch.Tensor,
        scales: Scales = None,
        add: torch.Tensor | None = None,
        gelu: bool = False,
        norm: str = "",
        plain: bool = True,
        rounds: bool = True,
    ) -> Operand:
        """What comes behind a product: int32 made real, a sum, gelu or norm; then rounded for the next product, if it has eight bits.

        ``plain``: fp16 is needed beside the rounded form.
        """
        rounds = rounds and self.kind in EIGHT
        if scales is None and add is None and not (gelu or norm or rounds):
            return Operand(made)
        affine = [self.w[f"{norm}.{part}"] for part in ("weight", "bias")] if norm else []
        if not self.kernel:
            return self._finish_plainly(made, scales, add, gelu, affine, rounds)
        rows, width = made.shape
        number, largest = EIGHT.get(self.kind, (torch.float16, 1.0))
        plain = plain or not rounds
        flags = {"INT32": scales is not None, "ADD": add is not None, "GELU": gelu, "NORM": bool(affine), "PLAIN": plain, "ROUND": rounds}
        kernel = compiled(f"{largest}f", INT8=int(number == torch.int8), WIDTH=width, **{name: int(flag) for name, flag in flags.items()})
        # What a variant of the kernel does not use is neither read nor written.
        halves = made.new_empty((rows, width) if plain else (1, 2), dtype=torch.float16)
        rounded = made.new_empty((rows, width) if rounds else (1, 2), dtype=number)
        scale = made.new_empty((rows, 1), dtype=torch.float32)
        given = [made.contiguous(), *(scales or [made] * 3), made if add is None else add, *(affine or [made] * 2)]
        kernel(grid=(rows, 1, 1), block=(THREADS, 1, 1), args=[*given, halves, rounded, scale])
        return Operand(halves, rounded, scale) if rounds else Operand(halves)

    def _finish_plainly(
        self, made: torch.Tensor, scales: Scales, add: torch.Tensor | None, gelu: bool, affine: list[torch.Tensor], rounds: bool
    ) -> Operand:
        if scales is not None:
            row, column, bias = scales
            made = made.float() * row * column.t() + bias
        if add is not None:
            made = made + add
        made = functional.gelu(made) if gelu else made
        if affine:
            gain, shift = (each.to(made.dtype) for each in affine)
            made = functional.layer_norm(made, made.shape[1:], gain, shift, EPSILON)
        made = made.to(self.w["classifier.bias"].dtype)
        return Operand(made, *round_rows(made, self.kind)) if rounds else Operand(made)

    def _head(self, first: torch.Tensor) -> torch.Tensor:
        return self._linear(torch.tanh(self._linear(first, "bert.pooler.dense")), "classifier")

    def _linear(self, source: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(source, self.w[f"{name}.weight"], self.w[f"{name}.bias"])


def round_rows(real: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix with eight bits, and the fp32 scale [rows, 1] that each row is to be multiplied with."""
    number, largest = EIGHT[kind]
    scale = real.float().abs().amax(-1, keepdim=True).clamp(min=EPSILON) / largest
    scaled = real.float() / scale
    return (scaled.round() if kind == "int8" else scaled).to(number), scale


@functools.cache
def compiled(largest: str, **chosen: int) -> Callable[..., None]:
    """The kernel, compiled with these choices.

    Raises:
        RuntimeError, AttributeError: this PyTorch cannot compile it.
    """
    # It includes no header, but PyTorch does not compile without a folder for them.
    os.environ.setdefault("CUDA_HOME", "/usr/local/cuda")
    choices: dict[str, int | str] = {**chosen, "LARGEST": largest, "THREADS": THREADS, "PAIRS": -(-chosen["WIDTH"] // (2 * THREADS))}
    defined = "".join(f"#define {name} {value}\n" for name, value in choices.items())
    made: Callable[..., None] = torch.cuda._compile_kernel(defined + KERNEL, "finish")
    return made


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
    return functional.pad(torch.cat(rows), (0, 0, 0, 0, 0, len(all_three) - int(begins[-1])))
