"""fp16 emulated: the margin of golden logits to the service's tolerance, and that the emulation computes what it says.

What a GPU computes is seen there alone; this shows beforehand that fp16 as such is accurate enough. All 16 golden texts of the default
bundle run. The families' models are tiny and random, and half as many texts are enough: their errors differ little between texts.
"""

from pathlib import Path

import numpy as np
import pytest

from sentiment.model.classifier import Classifier, load_classifier
from sentiment.model.gpu.graphs import make_graphs, make_unfused
from sentiment.model.gpu.on_device import FP16_TOLERANCE
from sentiment.model.session import Session
from sentiment.model.tensors import pad
from sentiment.model.tokenizer import Row
from tests.english import ENGLISH
from tests.fp16 import FP32, KERNELS, Emulated, Kernels, fp16_graphs, golden_errors
from tests.models.tiny_families import MAX_TOKENS, TEXTS, TINY, graph_tiny


@pytest.fixture(scope="module")
def english() -> Classifier:
    return load_classifier(ENGLISH, "fp32")


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return fp16_graphs(ENGLISH, tmp_path_factory.mktemp("graphs"))


@pytest.mark.parametrize(("graph", "kernels"), [("fp16-padded", "flash"), ("fp16-padded", "worst"), ("fp16-unfused", "flash")])
def test_the_default_bundles_golden_logits_are_within_tolerance(
    english: Classifier, graphs: dict[str, Path], graph: str, kernels: str
) -> None:
    error = max(golden_errors(english, graphs[graph], KERNELS[kernels]))

    assert error <= FP16_TOLERANCE, f"error {error:.4f}, margin {FP16_TOLERANCE - error:.4f}"


def to_six_bits(values: np.ndarray) -> np.ndarray:
    """Round to 6 significant bits; fp16 has 11."""
    return ((values.view(np.uint32) + 2**17) & np.uint32(2**32 - 2**18)).view(np.float32)


def test_with_five_bits_less_they_are_not(english: Classifier, graphs: dict[str, Path]) -> None:
    coarse = Kernels(stored=to_six_bits, sums=to_six_bits, inside=to_six_bits)

    error = max(golden_errors(english, graphs["fp16-padded"], coarse))

    assert error > FP16_TOLERANCE, f"error {error:.4f}"


def test_in_fp32_the_emulation_computes_the_golden_logits(english: Classifier, tmp_path: Path) -> None:
    padded = make_graphs(ENGLISH, tmp_path, "fp32").padded

    assert max(golden_errors(english, padded, FP32)) < 1e-4


@pytest.mark.parametrize("graph", ["fp16-padded", "fp16-unfused"])
def test_everything_between_two_operators_is_fp16(graphs: dict[str, Path], graph: str) -> None:
    emulated = Emulated(graphs[graph], KERNELS["flash"])

    found = emulated.evaluator.run(None, emulated.feeds([Row([101, 2204, 102], None, False)], 0, left=False), intermediate=True)

    assert {name for name, value in found.items() if isinstance(value, np.ndarray) and value.dtype == np.float32} == {"logits"}


def test_products_in_parts_differ_by_what_is_stored(graphs: dict[str, Path]) -> None:
    # The logits of a single text may round alike.
    rows = [Row([101, *range(first, first + 30), 102], None, False) for first in range(2000, 2240, 30)]
    whole, parts = (Emulated(graphs["fp16-padded"], Kernels(parts=number)) for number in (1, 4))

    differences = np.abs(whole.run(whole.feeds(rows, 0, left=False)) - parts.run(parts.feeds(rows, 0, left=False)))

    assert 0 < differences.max() < FP16_TOLERANCE


@pytest.mark.parametrize("name", ["distilbert", "albert", "mpnet", "xlnet", "modernbert", "roformer"])
def test_families_that_cannot_be_fused_are_within_tolerance(tmp_path: Path, name: str) -> None:
    tokenizer = TINY[name].tokens()
    encodings = [tokenizer.encode(text) for text in TEXTS[::2]]
    rows = [Row(each.ids[:MAX_TOKENS], each.type_ids[:MAX_TOKENS], False) for each in encodings]
    (tmp_path / name).mkdir()
    bundle = graph_tiny(tmp_path / name, name)
    plain, emulated = Session(bundle / "fp32.onnx"), Emulated(make_unfused(bundle, tmp_path), KERNELS["flash"])

    wanted = np.concatenate([plain.run(pad([row], plain.inputs, 0, left=False)) for row in rows])
    found = np.concatenate([emulated.run(emulated.feeds([row], 0, left=False)) for row in rows])

    error = float(np.abs(found - wanted).max())
    assert error <= FP16_TOLERANCE, f"error {error:.4f}, margin {FP16_TOLERANCE - error:.4f}"
