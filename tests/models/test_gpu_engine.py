"""What ``tests.bench.gpu --engines`` measures computes the network that it stands for, and its rule is applied.

On a CPU, with PyTorch's own products of eight bits; the kernel between products and captured runs are seen on a GPU alone.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
import torch

from sentiment.model.bundle import CHECKOUT_BUNDLES, find_bundle
from sentiment.model.session import Stop
from tests.bench.gpu.bert import SIZES, make_graph, make_weights
from tests.bench.gpu.engines import verdicts
from tests.bench.gpu.inside import Inside
from tests.bench.gpu.report import COPIES, EACH_CAPTURED
from tests.bench.gpu.rows import draw_rows
from tests.bench.gpu.torch_bert import KINDS, Bert, round_rows

SIZE = SIZES["tiny-base"]
LENGTHS = (5, 12, 23)
# Of logits whose largest is 2.6: about twice what was seen.
ERROR_MAX = {"fp32": 1e-5, "fp16": 0.0025, "fp8": 0.3, "int8": 0.065}


@pytest.fixture(scope="module")
def weights() -> Mapping[str, npt.NDArray[Any]]:  # Any: of numbers
    return make_weights(SIZE)


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Inside:
    bundles = tmp_path_factory.mktemp("gpu") / "bundles"
    bundles.mkdir()
    inside = Inside(bundles, find_bundle("english", [CHECKOUT_BUNDLES]), "cpu")
    inside.make("tiny-base")
    return inside


def _rows() -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(1)
    return [torch.randint(1000, SIZE.vocabulary, (length,), generator=drawn) for length in LENGTHS]


def _packed(bert: Bert, filled: int = 0) -> npt.NDArray[np.float32]:
    """The logits of the rows, with ``filled`` tokens behind them."""
    ids = torch.cat([*_rows(), torch.zeros(filled, dtype=torch.int64)])
    positions = torch.cat([torch.arange(length) for length in (*LENGTHS, filled)])
    begins = torch.tensor(np.cumsum([0, *LENGTHS]), dtype=torch.int32)
    with torch.inference_mode():
        return bert.packed(ids, positions, begins, max(LENGTHS)).float().numpy()


@pytest.mark.parametrize("kind", ["fp32", *KINDS])
def test_each_kind_answers_as_the_exported_graph_does(weights: Mapping[str, npt.NDArray[Any]], kind: str) -> None:
    session = onnxruntime.InferenceSession(make_graph(SIZE, weights).SerializeToString())
    alone = [row[None].numpy() for row in _rows()]
    fed = [{"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)} for ids in alone]
    wanted = np.concatenate([session.run(["logits"], feeds)[0] for feeds in fed])

    error = np.abs(_packed(Bert(weights, SIZE, "cpu", kind)) - wanted).max()

    assert error <= ERROR_MAX[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_behind_the_last_row_change_no_answer(weights: Mapping[str, npt.NDArray[Any]], kind: str) -> None:
    bert = Bert(weights, SIZE, "cpu", kind)

    assert np.abs(_packed(bert, filled=24) - _packed(bert)).max() <= 1e-3


@pytest.mark.parametrize(("kind", "step"), [("fp8", 1 / 16), ("int8", 0.5 / 127)])
def test_a_rounded_row_is_off_by_half_a_step_at_most(kind: str, step: float) -> None:
    real = torch.randn(7, 64, generator=torch.Generator().manual_seed(2)) * torch.logspace(-3, 3, 7)[:, None]

    rounded, scale = round_rows(real, kind)

    largest = real.abs().amax(1, keepdim=True)
    allowed = real.abs() * step + largest * 2**-18 if kind == "fp8" else largest * step * 1.001
    assert ((rounded.float() * scale - real).abs() <= allowed).all()


@pytest.mark.parametrize(
    ("gain", "error", "changed", "said"),
    [
        (1.35, 0.1, 0.003, "adopt it"),
        (1.2, 0.01, 0.0, "adopt it, though the aim is 1.3"),
        (1.19, 0.01, 0.0, "not adopted, since its gain is below 1.2"),
        (1.35, 0.11, 0.004, "not adopted, since golden logits may be off by 0.1 and 0.3% of labels may change"),
    ],
)
def test_an_engine_is_adopted_if_it_is_faster_and_as_right(gain: float, error: float, changed: float, said: str) -> None:
    found = {"base_128_torch_fp8_gain": gain, "english_torch_fp8_golden_error": error, "english_torch_fp8_changed": changed}

    (line,) = verdicts(found)

    assert line.endswith(f": {said}")


def test_each_shape_of_a_batch_is_captured_once_and_not_padded(inside: Inside) -> None:
    launched, captured = inside.session("tiny-base", "packed"), inside.session("tiny-base", EACH_CAPTURED)
    graphs = []
    for length, tokens in (("128", 2048), ("32", 256), ("128", 2048)):
        rows, stop = draw_rows(length, tokens, SIZE), Stop()
        feeds = captured.feeds(rows, 0, left=False)

        logits = captured.run(feeds, stop)

        wanted = launched.feeds(rows, 0, left=False)
        assert {name: array.shape for name, array in feeds.items()} == {name: array.shape for name, array in wanted.items()}
        assert np.array_equal(logits, launched.run(wanted))
        graphs.append(stop.options.get_run_config_entry("gpu_graph_id"))
    assert graphs[0] == graphs[2] != graphs[1]
    assert "-1" not in graphs


@pytest.mark.parametrize("copies", [1, 2])
def test_copies_of_the_model_share_batches(inside: Inside, copies: int) -> None:
    inside.session.cache_clear()

    found = inside.share("tiny-base", copies, rows=4, seconds=0.05)

    sessions = {inside.session("tiny-base", copy) for copy in COPIES}
    # Of a session that never ran it is 0.
    assert sum(session.copied_s > 0 for session in sessions) == copies
    assert found["texts_per_s"] > 0
