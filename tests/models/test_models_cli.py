"""The command line: exit codes, one-line errors, and no torch before it is needed."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from sentiment_models.cli import main
from sentiment_models.commands.train import RECIPE_HELP
from sentiment_models.export.export import Exported
from sentiment_models.training.recipe import Recipe
from tests.models.tiny_bert import save_tiny_bert, sentences, write_tsv


def test_train_export_evaluate_card_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, data = save_tiny_bert(tmp_path / "base"), write_tsv(tmp_path / "data.tsv", sentences(120, seed=4))
    run, bundle, figures = tmp_path / "run", tmp_path / "bundles" / "tiny" / "2", tmp_path / "figures.json"
    # Enough for logits apart from one another by more than int8 changes them, which the golden texts have to be.
    hyper = ["--epochs", "4", "--learning-rate", "1e-3", "--max-tokens", "32", "--batch-rows", "16", "--dev-fraction", "0.2", "--seed", "3"]
    hyper += ["--labels", "bad,good"]

    assert main(["train", "--base", str(base), "--data", f"{data}:2", "--out", str(run), *hyper]) == 0
    assert main(["export", str(run / "best"), "--out", str(bundle), "--dev", str(run / "dev.jsonl"), "--base", "tiny-bert"]) == 0
    assert main(["evaluate", str(bundle), f"all={data}", "--json", str(figures), "--record"]) == 0
    assert main(["card", str(bundle), "--evaluation", str(figures)]) == 0

    manifest = json.loads((bundle / "manifest.json").read_bytes())
    assert (manifest["name"], manifest["version"], manifest["labels"]) == ("tiny", 2, ["bad", "good"])
    assert manifest["provenance"]["base"] == "tiny-bert"
    assert manifest["provenance"]["training"]["recipe"]["seed"] == 3
    assert manifest["accuracy"].keys() == {"dev", "all"}
    assert "fine-tuned from `tiny-bert`" in (bundle / "MODEL_CARD.md").read_text()
    shown = capsys.readouterr().out
    assert "macro F1" in shown
    assert str(tmp_path) not in (bundle / "manifest.json").read_text() + (bundle / "MODEL_CARD.md").read_text()

    assert main(["train", "--base", str(base), "--data", f"{data}:3", "--out", str(run), *hyper]) == 2
    assert f"error: {run}/checkpoint.pt: was begun with sources = ['{data}:2']; now it is" in capsys.readouterr().err


def test_a_failure_is_one_line_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "1"), "--name", "x"]) == 1

    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {tmp_path}: holds no config.json")


def test_a_bad_bundle_is_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_tsv(tmp_path / "data.tsv", sentences(3))

    assert main(["evaluate", str(tmp_path), str(data)]) == 3
    assert main(["card", str(tmp_path)]) == 3

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("error: ") and "manifest.json" in line for line in lines)


@pytest.mark.parametrize(
    "argv",
    [[], ["nonsense"], ["export"], ["evaluate", "x"], ["train", "--epochs", "many"], ["export", "c", "--out", "o", "--version", "0"]],
)
def test_wrong_usage_is_exit_code_2(argv: list[str]) -> None:
    assert main(argv) == 2


def test_an_out_without_a_version_asks_for_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "english")]) == 1

    assert "its last part is no version; give --version" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "export", "evaluate", "card"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0

    assert command in capsys.readouterr().out


def test_every_field_of_a_recipe_is_a_flag() -> None:
    assert {field.name for field in fields(Recipe)} == {"base", "sources", "tails", "undecided"} | RECIPE_HELP.keys()


def test_asking_for_help_imports_no_torch() -> None:
    script = "import sys; from sentiment_models.cli import main; code = main(['--help']); sys.exit(code or 9 * ('torch' in sys.modules))"

    assert subprocess.run([sys.executable, "-c", script], check=False, capture_output=True).returncode == 0


def test_evaluating_imports_no_torch(exported: tuple[Path, Exported], tmp_path: Path) -> None:
    data = write_tsv(tmp_path / "data.tsv", sentences(3))
    script = (
        "import sys; from sentiment_models.cli import main;"
        f"code = main(['evaluate', {str(exported[0])!r}, {str(data)!r}]); sys.exit(code or 9 * ('torch' in sys.modules))"
    )

    assert subprocess.run([sys.executable, "-c", script], check=False, capture_output=True).returncode == 0
