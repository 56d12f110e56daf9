"""Without the extras: every command has its help, and says in one line which extra its work needs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sentiment.extras import COMMANDS as OF_COMMANDS
from sentiment.extras import HOW, to_install
from sentiment_models.cli import COMMANDS, EXTRAS
from sentiment_models.export.export import Exported

# Refuses packages as if they were not installed, then runs one command for each list of arguments.
WITHOUT = """
import contextlib, io, json, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

refused, calls = json.loads(sys.argv[1])
sys.meta_path.insert(0, Refuse())
from sentiment_models.cli import main
found = []
for argv in calls:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    found.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(found))
"""
# What the environment of make serve lacks: tokenizers brings tqdm.
NOT_SERVED = [name for name in HOW if name not in {*OF_COMMANDS, "onnxruntime", "tqdm"}]
WORK = {
    "pretrain": ["--data", "x.txt", "--out", "OUT"],
    "import-tf": ["x", "--output", "OUT"],
    "train": ["--base", "x", "--data", "x.tsv", "--out", "OUT"],
    "scratch": ["--data", "x.tsv", "--test", "x.tsv", "--out", "OUT"],
    "label": ["x", "x.tsv", "--out", "OUT"],
    "edit": ["x", "x.tsv", "--out", "OUT"],
    "resize": ["x", "--out", "OUT"],
    "average": ["x", "y", "--out", "OUT"],
    "import": ["x", "--out", "OUT"],
    "attention-tests": ["--data", "x.tsv", "--out", "OUT"],
    "evaluate": ["BUNDLE", "x.tsv", "--explanations"],
}
SMALL = {
    "import-onnx": ["x.onnx", "--labels", "a,b", "--out", "OUT"],
    "diff": ["BUNDLE", "BUNDLE"],
    "pack": ["BUNDLE", "--out", "OUT"],
    "sign": ["BUNDLE", "--key", "key.pem"],
    "verify": ["BUNDLE"],
}


def without(refused: list[str], *calls: list[str]) -> list[tuple[int, str, str]]:
    given = [sys.executable, "-c", WITHOUT, json.dumps([refused, calls])]
    return [tuple(one) for one in json.loads(subprocess.run(given, check=True, capture_output=True).stdout)]


def test_every_command_has_help_without_any_extra_but_that_of_commands() -> None:
    found = without([*NOT_SERVED, "onnxruntime", "tqdm"], ["--help"], *([name, "--help"] for name in COMMANDS))

    assert [(name, code) for name, (code, _, _) in zip(["", *COMMANDS], found, strict=True) if code] == []
    assert all(f"sentiment-models {name}" in out for name, (_, out, _) in zip(COMMANDS, found[1:], strict=True))


def test_a_command_names_the_extra_that_its_work_needs(tmp_path: Path) -> None:
    places = {"OUT": str(tmp_path / "1"), "BUNDLE": str(tmp_path)}
    commands = {**WORK, **SMALL}

    found = without(NOT_SERVED, *([name, *(places.get(one, one) for one in argv)] for name, argv in commands.items()))

    for name, (code, out, said) in zip(commands, found, strict=True):
        extra = EXTRAS.get(name, "models")
        assert (name, code, out) == (name, 2, "")
        assert re.fullmatch(rf"error: module \w+ is missing: run pip install 'sentiment-service\[{extra}\]'\n", said), (name, said)


def test_the_client_alone_lists_the_commands_and_each_names_an_extra() -> None:
    whole, *found = without([*HOW], ["--help"], ["verify", "x"], ["pack", "x"], ["train", "--base", "x"])

    assert whole[0] == 0
    for (code, _, said), extra in zip(found, ("cpu,bundles", "bundles", "models"), strict=True):
        assert code == 2
        assert re.fullmatch(rf"error: module \w+ is missing: run pip install 'sentiment-service\[{extra}\]'\n", said), said


def test_no_command_names_the_cpu_runtime_beside_that_of_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "onnxruntime_gpu-1.0.dist-info").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    ((_, _, said),) = without(["onnx", "safetensors"], ["verify", "x"])

    assert said.endswith("pip install 'sentiment-service[bundles]'\n")


def test_bundles_are_checked_compared_and_packed_without_torch(exported: tuple[Path, Exported], tmp_path: Path) -> None:
    bundle, no_torch = str(exported[0]), ["matplotlib", "optimum", "tensorboard", "torch", "transformers", "vaderSentiment"]

    verified, same, packed = without(no_torch, ["verify", bundle], ["diff", bundle, bundle], ["pack", bundle, "--out", str(tmp_path)])

    assert "skip  weights: not compared with torch, nor are the graphs: module torch is missing: run pip install" in verified[1]
    assert "int8.onnx golden set" in verified[1]
    assert [same[0], packed[0]] == [0, 0]
    assert len([*tmp_path.glob("*.whl")]) == 1


def test_bundles_are_measured_and_copied_without_any_extra_but_the_runtime(exported: tuple[Path, Exported], tmp_path: Path) -> None:
    bundle, data = str(exported[0]), tmp_path / "data.tsv"
    data.write_text("1\ta good film\n0\ta bad film\n" * 20)
    found = without(
        NOT_SERVED,
        ["evaluate", bundle, str(data)],
        ["compare", bundle, bundle, str(data)],
        ["reference", bundle, str(data)],
        ["copy", bundle, "--version", "2", "--out", str(tmp_path / "2")],
        ["card", str(tmp_path / "2")],
        ["evaluate", bundle, str(data), "--html", str(tmp_path / "page.html")],
    )

    assert [code for code, _, _ in found] == [0, 0, 0, 0, 0, 2], found
    assert found[-1][2].endswith("error: module matplotlib is missing: run pip install 'sentiment-service[plots]'\n")


@pytest.mark.parametrize("name", ["torch._C", "nonsense"])
def test_a_missing_module_that_no_extra_has_is_a_fault_of_ours(name: str) -> None:
    assert bool(to_install(ModuleNotFoundError(name=name))) is (name != "nonsense")
