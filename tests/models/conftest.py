"""Fixtures of the offline package: made once a session, read by all tests, changed by none."""

import fcntl
import functools
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import onnx
import pytest

# Before numpy and torch are imported: tiny models are slower on two threads than on one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from sentiment.model.tokenizer import Row, Tokenizer
from sentiment_models.cli import main
from sentiment_models.data.labelled import Example
from sentiment_models.evaluation.evaluate import Dataset, evaluate
from sentiment_models.evaluation.findings import Evaluation
from sentiment_models.export.checkpoint import Checkpoint
from sentiment_models.export.export import Exported, export
from tests.models.tiny_bert import save_tiny_bert, sentences, write_tsv
from tests.models.tiny_families import Made, export_tiny

T = TypeVar("T")


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], T]) -> T:
    """Make something in a folder, once for all processes of a test run: those that ask later wait, and read what the first one made."""
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "models"
    shared.mkdir(exist_ok=True)
    folder, made = shared / name, shared / f"{name}.pickle"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            made.write_bytes(pickle.dumps(make(folder)))
    found: T = pickle.loads(made.read_bytes())
    return found


@pytest.fixture(autouse=True)
def denormals() -> Iterator[None]:
    """Undo training's flush of denormal numbers in this thread, because tests of other packages need them."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random classifier's checkpoint directory."""
    return once(tmp_path_factory, "checkpoint", save_tiny_bert)


@pytest.fixture(scope="session")
def dev() -> list[Example]:
    """A development set."""
    return [Example(text, label) for label, text in sentences(60, seed=5)]


@pytest.fixture(scope="session")
def exported(checkpoint: Path, dev: list[Example], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Exported]:
    """The checkpoint's bundle and the measurements of its export."""

    def make(folder: Path) -> tuple[Path, Exported]:
        bundle = folder / "tiny" / "1"
        return bundle, export(checkpoint, bundle, name="tiny", version=1, dev=dev)

    return once(tmp_path_factory, "exported", make)


@pytest.fixture
def bundle(exported: tuple[Path, Exported], tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(exported[0], tmp_path / "tiny" / "1"))


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """100 labelled sentences, one of them longer than the model reads."""
    rows = [*sentences(99, seed=8), (1, "very " * 100 + "good")]
    return Dataset("made/up", write_tsv(tmp_path_factory.mktemp("made") / "up.tsv", rows))


@pytest.fixture(scope="session")
def evaluation(exported: tuple[Path, Exported], dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    """The served graph's figures on them, and on texts without an answer."""

    def make(folder: Path) -> Evaluation:
        undecided = folder / "u.tsv"
        undecided.write_text("fr\tle film\nfr\til fait froid\nen\tthe film\n", encoding="utf-8")
        return evaluate(exported[0], [dataset], threads=2, undecided=undecided)

    return once(tmp_path_factory, "evaluation", make)


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint of three labels and mixed."""
    return once(tmp_path_factory, "four", lambda folder: save_tiny_bert(folder, labels=("negative", "positive", "neutral", "mixed")))


@pytest.fixture(scope="session")
def beside(four: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Exported]:
    """Its bundle, with an output for mixed texts and targets in 32 tokens, and the measurements of its export."""
    dev = [Example(text, place % 4, domain="films") for place, (_, text) in enumerate(sentences(120, seed=5))]
    dev += [Example(text, label, text_pair=text.split()[-1]) for label, text in sentences(30, seed=6)]

    def make(folder: Path) -> tuple[Path, Exported]:
        bundle = folder / "three" / "1"
        return bundle, export(four, bundle, name="three", version=1, dev=dev, mixed=True, targets=32)

    return once(tmp_path_factory, "beside", make)


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
    return functools.cache(lambda name: once(tmp_path_factory, f"family {name}", lambda folder: export_tiny(folder, name)))


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must fail with exit code 1 and leave nothing; returns the last line that it says."""
    places = {
        "DATA": write_tsv(tmp_path / "data.tsv", sentences(200)),
        "TEXTS": tmp_path / "texts.txt",
        "WHOLE": save_tiny_bert(tmp_path / "whole"),
        "OUT": tmp_path / "out",
        "OUT/1": tmp_path / "out" / "1",
    }
    places["TEXTS"].write_text("".join(f"{text}\n" for _, text in sentences(200)), encoding="utf-8")

    def run(*argv: str | Path) -> str:
        given = [str(places.get(str(one), one)) for one in argv]
        before = sorted(tmp_path.rglob("*"))
        assert main(given) == 1
        assert sorted(tmp_path.rglob("*")) == before
        return capsys.readouterr().err.splitlines()[-1].replace(str(tmp_path), "")

    return run
