"""The command line: exit codes, one-line errors, and no torch before it is needed."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from sentiment_models.cli import main
from sentiment_models.commands.arguments import label_names
from sentiment_models.commands.train import RECIPE_HELP
from sentiment_models.export.export import Exported
from sentiment_models.export.labels import as_argument
from sentiment_models.training.recipe import Recipe
from tests.models.tiny_bert import save_tiny_bert, sentences, write_tsv


@pytest.mark.smoke
def test_train_export_evaluate_card_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, data = save_tiny_bert(tmp_path / "base", labels=("bad", "good")), write_tsv(tmp_path / "data.tsv", sentences(120, seed=4))
    run, bundle, figures = tmp_path / "run", tmp_path / "bundles" / "tiny" / "2", tmp_path / "figures.json"
    # Enough training that logits differ by more than int8's error, which the golden set needs.
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


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["export", "EMPTY", "--out", "EMPTY/1"], 1, "no checkpoint or bundle in this folder: it has no config.json"),
        (["export", "EMPTY", "--out", "EMPTY/english"], 1, "a bundle's folder is NAME/VERSION, or no server finds it; end --output in "),
        (["export", "EMPTY", "--out", "EMPTY/mine/1", "--name", "ours"], 1, "; end --output in ours/1"),
        (["import-onnx", "EMPTY", "--out", "EMPTY/mine/1", "--version", "2"], 1, "; end --output in mine/2"),
        (["evaluate", "EMPTY", "DATA"], 3, "manifest.json"),
        (["card", "EMPTY"], 3, "manifest.json"),
        (["diff", "EMPTY", "EMPTY"], 3, "manifest.json"),
        (["verify", "EMPTY", "--key", "key.pub"], 1, "--key needs --signature"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_failure_is_one_line_and_its_exit_code(
    argv: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_tsv(tmp_path / "data.tsv", sentences(3))
    (tmp_path / "empty").mkdir()
    given = [one.replace("EMPTY", str(tmp_path / "empty")).replace("DATA", str(data)) for one in argv]

    assert main(given) == code

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nonsense"],
        ["export"],
        ["evaluate", "x"],
        ["train", "--epochs", "many"],
        ["export", "c", "--out", "o", "--version", "0"],
        ["scratch", "--data", "d.tsv", "--test", "t.tsv", "--out", "o", "--grid", "8by6"],
        ["scratch", "--data", "d.tsv", "--test", "t.tsv", "--out", "o", "--base", "MiniLM"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(argv: list[str]) -> None:
    assert main(argv) == 2


@pytest.mark.parametrize(
    ("argv", "usage", "meant"),
    [
        (["improt", "DIR"], "usage: sentiment-models [-h]", "import?"),
        (["evaluate", "BUNDLE", "FILE", "--explanatoins"], "usage: sentiment-models evaluate", "--explanations?"),
    ],
)
def test_a_mistyped_command_or_option_is_answered_with_the_one_that_was_meant(
    argv: list[str], usage: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2

    said = capsys.readouterr().err
    assert said.startswith(usage)
    assert said.rstrip().endswith(f"; did you mean {meant}")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["train", "--base", "DIR", "--data", "FILE", "--out", "OUT"], "interrupted; repeat the command to continue\n"),
        (["evaluate", "BUNDLE", "FILE"], "interrupted\n"),
    ],
)
def test_an_interruption_is_exit_code_130_and_says_what_continues(
    argv: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"sentiment_models.commands.{argv[0]}.run", interrupted)

    assert main(argv) == 130
    assert capsys.readouterr().err == told


def test_every_field_of_a_recipe_is_a_flag() -> None:
    others = {"base", "sources", "tails", "ends", "erased", "undecided", "dev", "test", "reading"}

    assert {field.name for field in fields(Recipe)} == others | RECIPE_HELP.keys()


def test_the_module_is_a_program_as_torchrun_starts_it() -> None:
    command = [sys.executable, "-m", "sentiment_models.cli", "nonsense"]

    assert subprocess.run(command, check=False, capture_output=True).returncode == 2


def test_help_and_evaluating_import_no_torch(exported: tuple[Path, Exported], tmp_path: Path) -> None:
    data = write_tsv(tmp_path / "data.tsv", sentences(3))
    script = (
        "import sys; from sentiment_models.cli import main;"
        f"code = main(['--help']) or main(['evaluate', {str(exported[0])!r}, {str(data)!r}]);"
        "sys.exit(code or 9 * ('torch' in sys.modules))"
    )

    assert subprocess.run([sys.executable, "-c", script], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("negative, positive", ("negative", "positive")),
        ('"good, really",bad', ("good, really", "bad")),
        ('bad, "good, really"', ("bad", "good, really")),
        ('"say ""no""",yes', ('say "no"', "yes")),
    ],
)
def test_names_of_labels_are_separated_by_commas_and_may_have_one_in_quotes(value: str, names: tuple[str, ...]) -> None:
    assert label_names(value) == names
    assert label_names(as_argument(names)) == names


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("positive", "must be at least two names separated by commas, got positive"),
        ("", "must be at least two names"),
        ("good,,bad", "must have a name each, got good,,bad; delete the comma that is too many"),
        ("good,bad,good", "must differ, got good twice in good,bad,good"),
        ('"good,bad', "got '\"good,bad'"),
    ],
)
def test_names_that_cannot_be_labels_are_wrong_usage(value: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--base", "base", "--data", "a.tsv", "--out", "out", "--labels", value]) == 2

    assert told in capsys.readouterr().err
