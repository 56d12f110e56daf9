"""The script that makes the default bundle: the commands of each recipe, and continuing after an interruption."""

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "models" / "make_bundle.sh"

# A stub of sentiment-models: logs its arguments, makes the command's outputs, and fails at the command that FAIL names.
NOTES = """#!/bin/bash
echo "$*" >> "$NOTED"
[ "$1" != "${FAIL:-}" ] || exit 1
out=; previous=
for one in "$@"; do [ "$previous" != --out ] || out=$one; previous=$one; done
case $1 in
  train) mkdir -p "$out/best"; [ -n "${KEEP:-}" ] || touch "$out/best/model.safetensors"; touch "$out/dev.jsonl" ;;
  label) [ -e "$2" ] && touch "$out" ;;
  cases) mkdir -p "$out"; echo '{"text": "generated"}' > "$out/train.jsonl" ;;
  edit) [ -e "$2" ] && echo '{"text": "edited"}' > "$out" ;;
  average) [ -e "$2" ] && [ -e "$3" ] && mkdir -p "$out" ;;
  export) [ -e "$2" ] || exit 1; rm -rf "$out"; mkdir -p "$out"; echo new > "$out/manifest.json" ;;
esac
"""


Make = Callable[..., tuple[int, list[list[str]]]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Runs the script in its own folder; returns its exit code and the commands that it ran."""
    stub = tmp_path / "bin" / "sentiment-models"
    stub.parent.mkdir()
    stub.write_text(NOTES)
    stub.chmod(0o755)
    (stub.parent / "python").symlink_to(sys.executable)
    data = tmp_path / "data"
    for name in ("sst2/train.tsv.gz", "mr/train.tsv.gz", "imdb/train.tsv.gz", "amazon/dvd.tsv.gz", "imdb/unlabelled.txt.gz"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(data / name, "wt") as stream:
            stream.write("1\tgood\n0\ta long and dull film that goes on and on and on\n")
    for name in ("base", "teacher", "bundle"):
        (tmp_path / name).mkdir()
    (tmp_path / "bundle" / "manifest.json").write_text("old\n")

    def run(recipe: str, **environment: str) -> tuple[int, list[list[str]]]:
        noted = tmp_path / "noted"
        noted.write_text("")
        given = {"SENTIMENT_MODELS": str(stub), "BASE": str(tmp_path / "base"), "TEACHER": str(tmp_path / "teacher")}
        places = {"BUNDLE": str(tmp_path / "bundle"), "NOTED": str(noted)}
        ran = subprocess.run(
            [SCRIPT, data, tmp_path / "run", recipe],
            cwd=SCRIPT.parents[1],
            env={**os.environ, **given, **places, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        print(ran.stderr)
        return ran.returncode, [line.split() for line in noted.read_text().splitlines()]

    return run


@pytest.mark.parametrize(
    ("recipe", "trains"),
    [
        ("quick", ["teacher", "student"]),
        ("taught", ["teacher", "student", "tuned"]),
        ("head", ["student"]),
    ],
)
def test_a_recipe_trains_a_teacher_or_uses_the_bundle_then_labels_trains_and_exports_a_student(
    recipe: str, trains: list[str], make: Make, tmp_path: Path
) -> None:
    code, commands = make(recipe, EVAL="a.tsv b.tsv", STUDY="dev.tsv")

    assert code == 0
    names = [command[0] for command in commands]
    assert names[-7:] == ["export", "long-texts", "reference", "reference", "evaluate", "evaluate", "card"]
    references = [command for command in commands if command[0] == "reference"]
    assert [command[command.index("--name") + 1] for command in references] == ["sentences", "reviews"]
    assert all("--record" in command for command in references)
    trained = [command[command.index("--out") + 1] for command in commands if command[0] == "train"]
    assert trained == [str(tmp_path / "run" / name) for name in trains]
    # Every file that something learns from or labels was labelled or made before, and nothing else.
    labelled = {command[command.index("--out") + 1] for command in commands if command[0] in ("label", "edit")}
    labelled |= {command[command.index("--out") + 1] + "/train.jsonl" for command in commands if command[0] == "cases"}
    learns = [one for command in commands if command[0] == "train" for one in command]
    learns += [command[2] for command in commands if command[0] == "label"]
    learned = {one.partition(":")[0] for one in learns if one.startswith(str(tmp_path / "run")) and ".jsonl" in one}
    assert learned == labelled
    assert "--record" in commands[-2]
    assert {"--evaluation", "--explanations"} <= set(commands[-1])


def test_a_new_head_keeps_the_answers_of_the_bundle_that_was_there(make: Make, tmp_path: Path) -> None:
    _, commands = make("head")

    (student,) = (command for command in commands if command[0] == "train")
    start = str(tmp_path / "run" / "from")
    assert {command[1] for command in commands if command[0] == "label"} == {start}
    assert "--head-only" in student
    assert [student[student.index(flag) + 1] for flag in ("--base", "--teacher-weight")] == [start, "1"]


def test_the_teacher_labels_what_the_student_learns_and_the_mean_of_both_stages_is_exported(make: Make, tmp_path: Path) -> None:
    _, commands = make("taught")

    run = tmp_path / "run"
    assert {command[1] for command in commands if command[0] == "label"} == {str(run / "teacher" / "best")}
    (tuned,) = (command for command in commands if command[0] == "train" and str(run / "tuned") in command)
    assert tuned[tuned.index("--base") + 1] == str(run / "student" / "best")
    (average,) = (command for command in commands if command[0] == "average")
    assert average[1:3] == [str(run / name / "best") for name in ("student", "tuned")]
    (export,) = (command for command in commands if command[0] == "export")
    assert export[1] == average[average.index("--out") + 1]


def test_a_folder_that_holds_another_recipes_run_is_refused(make: Make) -> None:
    assert make("taught")[0] == 0

    assert make("head") == (2, [])


@pytest.mark.parametrize(
    ("recipe", "fails"),
    [
        *(("taught", command) for command in ("cases", "train", "label", "edit", "average", "export", "long-texts", "reference", "card")),
        ("head", "train"),
        ("head", "export"),
    ],
)
def test_a_repeated_call_continues_from_the_original_bundle(fails: str, recipe: str, make: Make, tmp_path: Path) -> None:
    assert make(recipe, FAIL=fails)[0] != 0

    code, commands = make(recipe)

    assert code == 0
    student = next(command for command in commands if str(tmp_path / "run" / "student") in command)
    assert student[student.index("--base") + 1] == str(tmp_path / "run" / "from")
    assert (tmp_path / "run" / "from" / "manifest.json").read_text() == "old\n"
    assert (tmp_path / "bundle" / "manifest.json").read_text() == "new\n"


@pytest.mark.parametrize("recipe", ["quick", "taught", "head"])
def test_labels_are_made_again_if_their_texts_have_changed(recipe: str, make: Make, tmp_path: Path) -> None:
    first = [command for command in make(recipe)[1] if command[0] == "label"]

    def labelled() -> set[str]:
        # KEEP: the stub does not rewrite the teacher, as a finished training does not.
        return {Path(command[command.index("--out") + 1]).name for command in make(recipe, KEEP="1")[1] if command[0] == "label"}

    assert labelled() == set()
    later = time.time() + 10
    os.utime(tmp_path / "data/imdb/unlabelled.txt.gz", (later, later))
    assert labelled() == {"reviews.jsonl", "sentences.jsonl"}
    assert len(first) >= 4


def test_missing_inputs_are_refused_before_training(make: Make, tmp_path: Path) -> None:
    for recipe in ("taught", "head"):
        assert make(recipe, BUNDLE=str(tmp_path / "none")) == (1, [])
    assert make("slowly") == (2, [])
    # Nothing is downloaded if a folder was named.
    for name in ("BASE", "TEACHER"):
        assert make("quick", **{name: str(tmp_path / "none")}) == (2, [])
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("recipe", "last", "made"), [("head", "student", ["generated"]), ("taught", "tuned", ["generated", "edited"])])
def test_hard_texts_are_not_used_for_calibration(recipe: str, last: str, made: list[str], make: Make, tmp_path: Path) -> None:
    files = [SCRIPT.parent / "sentiment_models" / name for name in ("idioms.tsv", "texts/cases.tsv", "texts/domains.tsv", "texts/hard.tsv")]
    hard = [file.read_text(encoding="utf-8").splitlines()[0].split("\t")[1] for file in files]
    rows = [json.dumps({"label": "positive", "text": text}, ensure_ascii=False) + "\n" for text in ("kind of good", *hard, *made)]
    (tmp_path / "run" / last).mkdir(parents=True)
    (tmp_path / "run" / last / "dev.jsonl").write_text("".join(rows), encoding="utf-8")

    code, commands = make(recipe)

    assert code == 0
    export = next(command for command in commands if command[0] == "export")
    assert Path(export[export.index("--dev") + 1]).read_text(encoding="utf-8") == rows[0]
    assert export[export.index("--spellings") + 1].endswith("/imdb/unlabelled.txt.gz")
