"""Fixtures of the offline package: made once a session, read by all tests, changed by none."""

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest

# Before numpy and torch are imported: tiny models are slower on two threads than on one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from sentiment.model.tokenizer import Row, Tokenizer
from sentiment_models.data.labelled import Example
from sentiment_models.export.checkpoint import Checkpoint
from sentiment_models.export.export import Exported, export
from tests.models.tiny_bert import save_tiny_bert, sentences
from tests.models.tiny_families import Made, export_tiny


@pytest.fixture(autouse=True)
def denormals() -> Iterator[None]:
    """Undo training's flush of denormal numbers in this thread, because tests of other packages need them."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random classifier's checkpoint directory."""
    return save_tiny_bert(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def dev() -> list[Example]:
    """A development set."""
    return [Example(text, label) for label, text in sentences(60, seed=5)]


@pytest.fixture(scope="session")
def exported(checkpoint: Path, dev: list[Example], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Exported]:
    """The checkpoint's bundle and the measurements of its export."""
    bundle = tmp_path_factory.mktemp("bundles") / "tiny" / "1"
    return bundle, export(checkpoint, bundle, name="tiny", version=1, dev=dev)


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint of three labels and mixed."""
    return save_tiny_bert(tmp_path_factory.mktemp("four"), labels=("negative", "positive", "neutral", "mixed"))


@pytest.fixture(scope="session")
def beside(four: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Exported]:
    """Its bundle, with an output for mixed texts and targets in 32 tokens, and the measurements of its export."""
    dev = [Example(text, place % 4, domain="films") for place, (_, text) in enumerate(sentences(120, seed=5))]
    dev += [Example(text, label, text_pair=text.split()[-1]) for label, text in sentences(30, seed=6)]
    bundle = tmp_path_factory.mktemp("bundles") / "three" / "1"
    return bundle, export(four, bundle, name="three", version=1, dev=dev, mixed=True, targets=32)


@pytest.fixture(scope="session")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoint's tokenizer and its graph as fp32.onnx with its weights inside. Tests may add other graphs."""
    folder = tmp_path_factory.mktemp("graphs")
    loaded = Checkpoint(checkpoint)
    loaded.save(folder)
    onnx.save(loaded.to_onnx(loaded.weights), folder / "fp32.onnx")
    return folder


@pytest.fixture(scope="session")
def whole(folder: Path) -> onnx.ModelProto:
    """The fp32 graph, as exported."""
    return onnx.load(folder / "fp32.onnx")


@pytest.fixture(scope="session")
def rows(folder: Path) -> list[Row]:
    """40 rows of 3 to about 25 tokens."""
    return Tokenizer(folder / "tokenizer.json", 64).encode_many([text for _, text in sentences(40, seed=3)])


@pytest.fixture(scope="session")
def make_family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """A family's checkpoint and bundle, made when first asked for."""
    return functools.cache(lambda name: export_tiny(tmp_path_factory.mktemp("family"), name))
