"""Mixed precision, where the device is faster for it."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

# transformers' DeBERTa hides padding by the lowest number of float32, which is below those of bfloat16.
FLOAT32_ALONE = ("deberta",)


def mixed_precision(device: torch.device, family: str) -> torch.autocast:
    """Return a context in which products are computed in bfloat16; on a CPU only if it multiplies bfloat16 itself.

    A CPU that does not is 10 times slower with it (``label`` with MiniLM-L6 on AVX2 alone). On a GPU it also turns off cuDNN's attention,
    which builds a plan for every new shape of a batch (modelscope/FunASR issue 3704): one call took 9 ms on an H100. With it off, a whole
    training step of MiniLM-L6 (18,000 tokens) took 38 ms, with another training on the same GPU.

    ``family``: the model's model_type; those of FLOAT32_ALONE compute in float32.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
    faster = device.type != "cpu" or multiplies_bfloat16(_capabilities())
    return torch.autocast(device.type, torch.bfloat16, enabled=faster and family not in FLOAT32_ALONE)


def multiplies_bfloat16(capabilities: Mapping[str, Any]) -> bool:
    """Whether a CPU with these capabilities, as ``torch.cpu.get_capabilities`` gives them, multiplies bfloat16."""
    # avx512_bf16 and amx_bf16 of x86, bf16 of ARM.
    return any(value is True for name, value in capabilities.items() if name.endswith("bf16"))


@cache
def _capabilities() -> Mapping[str, Any]:
    found: Mapping[str, Any] = torch.cpu.get_capabilities()
    return found
