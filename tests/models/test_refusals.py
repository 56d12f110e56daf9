"""Every command that reads a checkpoint refuses a damaged one by its file, leaves nothing, and checks where it shall write first."""

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from sentiment_models.cli import main
from sentiment_models.export.export import Exported
from tests.models.test_export import DAMAGED_WEIGHTS
from tests.models.tiny_bert import save_tiny_bert

# What stands before a checkpoint, and behind it.
READERS = {
    "train": (["train", "--base"], ["--data", "DATA", "--out", "OUT"]),
    "pretrain": (["pretrain", "--no-nsp", "--base"], ["--data", "TEXTS", "--out", "OUT"]),
    "label": (["label"], ["DATA", "--out", "OUT"]),
    "average": (["average"], ["WHOLE", "--out", "OUT"]),
    "resize": (["resize"], ["--layers", "3", "--out", "OUT"]),
    "import": (["import"], ["--out", "OUT/1"]),
}


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(("damage", "message"), DAMAGED_WEIGHTS)
def test_a_truncated_checkpoint_is_named_with_what_to_do(
    command: str, damage: Callable[[Path], None], message: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    damage(save_tiny_bert(tmp_path / "cut"))
    before, behind = READERS[command]

    assert message in refused(*before, tmp_path / "cut", *behind)


@pytest.mark.parametrize("command", ["label", "average", "resize", "import"])
def test_a_checkpoint_of_another_family_or_without_its_head_answers_nothing(
    command: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    before, behind = READERS[command]
    foreign, headless = (save_tiny_bert(tmp_path / name) for name in ("foreign", "headless"))
    config = (foreign / "config.json").read_text()
    (foreign / "config.json").write_text(config.replace('"model_type": "bert"', '"model_type": "fnet"'))

    weights = load_file(headless / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, headless / "model.safetensors", metadata={"format": "pt"})

    assert "model_type must be one of bert, " in refused(*before, foreign, *behind)
    assert "/headless: not a fine-tuned classifier: the weights lack classifier.weight" in refused(*before, headless, *behind)


def test_checkpoints_that_call_their_labels_otherwise_have_no_mean(refused: Callable[..., str], tmp_path: Path) -> None:
    other = save_tiny_bert(tmp_path / "other", labels=("bad", "positive"))

    said = refused("average", "WHOLE", other, "--out", "OUT")

    assert said == "error: /other: labels are bad, positive, but those of /whole are negative, positive"


def test_an_average_overwrites_nothing_unless_asked(refused: Callable[..., str], tmp_path: Path) -> None:
    other = save_tiny_bert(tmp_path / "other", seed=2)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "letter.txt").write_text("mine")

    assert refused("average", "WHOLE", other, "--out", tmp_path / "precious") == "error: /precious: exists; use --overwrite to replace it"
    assert main(["average", str(tmp_path / "whole"), str(other), "--out", str(tmp_path / "precious"), "--force"]) == 0
    assert not (tmp_path / "precious" / "letter.txt").exists()


@pytest.mark.parametrize(("device", "why"), [("cuda:7", "device cuda:7 cannot be used: "), ("foo", "device foo cannot be used: ")])
@pytest.mark.parametrize("command", ["train", "pretrain", "label"])
def test_a_missing_device_is_reported_before_the_work(command: str, device: str, why: str, refused: Callable[..., str]) -> None:
    before, behind = READERS[command]

    said = refused(*before, "WHOLE", *behind, "--device", device)

    assert said.startswith(f"error: {why}")
    assert "; this machine has cpu and " in said


@pytest.mark.parametrize(
    "argv",
    [["evaluate", "BUNDLE", "DATA"], ["compare", "BUNDLE", "BUNDLE", "DATA"], ["long-texts", "BUNDLE", "DATA"]],
    ids=lambda argv: argv[0],
)
def test_an_unusable_path_for_the_report_is_refused_before_the_work(
    argv: list[str], exported: tuple[Path, Exported], refused: Callable[..., str], tmp_path: Path
) -> None:
    given = [str(exported[0]) if one == "BUNDLE" else one for one in argv]
    (tmp_path / "folder").mkdir()

    nowhere = refused(*given, "--json", tmp_path / "none" / "found.json")
    folder = refused(*given, "--json", tmp_path / "folder")

    assert nowhere == "error: /none/found.json: the folder does not exist; create it first"
    assert folder == "error: /folder: expected a file, got a folder"


@pytest.mark.parametrize(
    "argv",
    [
        ["evaluate", "BUNDLE", "PAIRS"],
        ["compare", "BUNDLE", "BUNDLE", "PAIRS"],
        ["long-texts", "BUNDLE", "PAIRS"],
        ["export", "WHOLE", "--dev", "PAIRS", "--out", "OUT/1"],
        ["scratch", "--data", "PAIRS", "--test", "PAIRS", "--out", "OUT"],
    ],
    ids=lambda argv: argv[0],
)
def test_pairs_are_refused_where_one_text_is_read(
    argv: list[str], exported: tuple[Path, Exported], refused: Callable[..., str], tmp_path: Path
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"label": "positive", "text": "good"}\n{"label": "negative", "text": "good", "text_pair": "it is not"}\n')
    given = [{"BUNDLE": str(exported[0]), "PAIRS": str(pairs)}.get(one, one) for one in argv]

    said = refused(*given)

    assert said == "error: /pairs.jsonl: line 2: text_pair is not supported here (export --pairs makes a bundle that reads pairs)"
