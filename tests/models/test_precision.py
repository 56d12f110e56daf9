"""bfloat16 is used where the device multiplies it."""

import pytest
import torch

from sentiment_models.training.precision import mixed_precision, multiplies_bfloat16


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx2": True, "avx512_bf16": False, "amx_bf16": False, "l2_cache_size": 524288}, False),
        ({"avx2": True, "avx512_bf16": True, "amx_bf16": False}, True),
        ({"avx512_bf16": False, "amx_bf16": True}, True),
        ({"neon": True, "bf16": True}, True),
        ({}, False),
    ],
)
def test_a_cpu_multiplies_bfloat16_if_a_capability_says_so(capabilities: dict[str, object], expected: bool) -> None:
    assert multiplies_bfloat16(capabilities) is expected


def test_products_on_this_cpu_have_the_precision_that_its_capabilities_allow() -> None:
    one = torch.ones(2, 2)
    with mixed_precision(torch.device("cpu"), "bert"):
        found = (one @ one).dtype

    assert found == (torch.bfloat16 if multiplies_bfloat16(torch.cpu.get_capabilities()) else torch.float32)


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_attention_on_a_gpu_builds_no_plan_for_each_shape_of_a_batch() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        mixed_precision(torch.device("cuda"), "bert")
        assert not torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]  # so too
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
