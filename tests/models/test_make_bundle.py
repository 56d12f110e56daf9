"""The scripts that make the default and the multilingual bundle: their commands, and continuing after an interruption."""

import csv
import gzip
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = "tweets forum support sst5 aspects_whole sst2_long sst2_short mr targets products goods dvd reviews imdb headlines"

# A stub of sentiment-models: logs its arguments, makes the command's outputs, and fails at the command that FAIL names.
NOTES = f"""#!/bin/bash
echo "$*" >> "$NOTED"
[ "$1" != "${{FAIL:-}}" ] || exit 1
out=; previous=
for one in "$@"; do [ "$previous" != --output ] || out=$one; previous=$one; done
case $1 in
  prepare) mkdir -p "$out/kept"; for name in {SOURCES}; do touch "$out/$name.jsonl" "$out/kept/$name.jsonl"; done
    touch "$out/kept/sst2.jsonl" ;;
  train) mkdir -p "$out/best"; [ -e "$out/dev.jsonl" ] || touch "$out/dev.jsonl" ;;
  average) mkdir -p "$out" ;;
  label) [ -e "${{3%%:*}}" ] && touch "$out" ;;
  cases) mkdir -p "$out"; echo '{{"text": "generated"}}' > "$out/train.jsonl" ;;
  export) [ -e "$2" ] || exit 1; mkdir -p "$out"; echo new > "$out/manifest.json" ;;
esac
"""

Make = Callable[..., tuple[int, list[list[str]]]]


def value(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Runs a script in its own folder; returns its exit code and the commands that it ran."""
    stub = tmp_path / "bin" / "sentiment-models"
    stub.parent.mkdir()
    stub.write_text(NOTES)
    stub.chmod(0o755)
    (stub.parent / "python").symlink_to(sys.executable)
    for name in ("tweets/train", "amazon/books", "support/dev"):
        source = tmp_path / "data" / f"{name}.tsv.gz"
        source.parent.mkdir(parents=True)
        with gzip.open(source, "wt") as stream:
            stream.write("positive\tgood\n")
    for name in ("from", "teacher"):
        (tmp_path / name).mkdir()

    def run(script: str = "make_bundle.sh", **environment: str) -> tuple[int, list[list[str]]]:
        noted = tmp_path / "noted"
        noted.write_text("")
        given = {"SENTIMENT_MODELS": str(stub), "FROM": str(tmp_path / "from"), "TEACHER": str(tmp_path / "teacher")}
        places = {"BUNDLE": str(tmp_path / "bundle"), "NOTED": str(noted)}
        ran = subprocess.run(
            [ROOT / "models" / script, tmp_path / "data", tmp_path / "run"],
            cwd=ROOT,
            env={**os.environ, **given, **places, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        print(ran.stderr)
        return ran.returncode, [line.split() for line in noted.read_text().splitlines()]

    return run


def test_a_teacher_labels_what_the_student_learns_and_a_mean_of_stages_is_exported(make: Make, tmp_path: Path) -> None:
    code, commands = make(EVAL="a.tsv b.tsv", STUDY="dev.tsv")

    assert code == 0
    run = tmp_path / "run"
    names = [command[0] for command in commands]
    assert names[-13:] == ["export", "long-texts", *["reference"] * 6, "evaluate", "cases", "evaluate", "evaluate", "card"]
    trained = {value(command, "--output"): command for command in commands if command[0] == "train"}
    assert list(trained) == [str(run / name) for name in ("first", "teacher", "student", "tuned", "last", "films")]
    bases = [tmp_path / "from", tmp_path / "teacher", run / "first/best", run / "blend", run / "mean", run / "broad"]
    assert [value(command, "--base") for command in trained.values()] == list(map(str, bases))
    labelled = [command for command in commands if command[0] == "label"]
    assert {command[1] for command in labelled} == {str(run / "teacher" / "best")}
    averaged = {
        Path(value(command, "--output")).name: [one.removeprefix(f"{run}/").removesuffix("/best") for one in command[1:-2]]
        for command in commands
        if command[0] == "average"
    }
    assert averaged["blend"] == ["student", *[str(tmp_path / "from")] * 3, *["student"] * 6]
    assert averaged["mean"] == ["student", "tuned"]
    assert averaged["broad"] == ["student", "tuned", "last", "last"]
    assert averaged["result"] == ["broad", "films"]
    soft = {
        Path(out).name: {one.partition(":")[0] for one in command if one.startswith(str(run / "soft"))} for out, command in trained.items()
    }
    made = {value(command, "--output") for command in labelled}
    assert soft["student"] == made
    assert set().union(*soft.values()) == made
    (export,) = (command for command in commands if command[0] == "export")
    assert export[1] == str(run / "result")
    assert {"--evaluation", "--explanations"} <= set(commands[-1])


def test_what_is_kept_back_is_only_measured(make: Make) -> None:
    _, commands = make()

    used = {command[0] for command in commands if any("/kept/" in one for one in command)}
    assert used == {"reference", "evaluate"}
    references = [value(command, "--name") for command in commands if command[0] == "reference"]
    assert references == ["sentences", "films", "products", "tweets", "forum", "tickets"]


def test_facts_are_neutral_and_only_other_languages_are_undecided(make: Make, tmp_path: Path) -> None:
    make()

    facts, foreign = ((tmp_path / "run" / "data" / name).read_text(encoding="utf-8").splitlines() for name in ("facts.tsv", "foreign.tsv"))
    assert {line.split("\t")[0] for line in facts} == {"neutral"}
    assert len(facts) > 1000
    assert "en" not in {line.split("\t")[0] for line in foreign}


@pytest.mark.parametrize("fails", ["prepare", "cases", "train", "label", "average", "export", "long-texts", "reference", "card"])
def test_a_repeated_call_continues_after_what_is_done(fails: str, make: Make, tmp_path: Path) -> None:
    assert make(FAIL=fails)[0] != 0

    code, commands = make()

    assert code == 0
    # A finished training is asked again and does nothing.
    again = {"prepare", "label"} & {command[0] for command in commands}
    assert again == {"prepare": {"prepare", "label"}}.get(fails, {"label"} if fails in ("cases", "train", "label") else set())
    assert (tmp_path / "bundle" / "manifest.json").read_text() == "new\n"


def test_labels_are_made_again_if_their_texts_have_changed(make: Make, tmp_path: Path) -> None:
    make()
    later = time.time() + 10
    os.utime(tmp_path / "run/data/imdb.jsonl", (later, later))

    assert [Path(value(command, "--output")).name for command in make()[1] if command[0] == "label"] == ["imdb.jsonl"]


def test_a_missing_folder_or_file_is_refused_before_anything_is_made(make: Make, tmp_path: Path) -> None:
    for name in ("FROM", "TEACHER"):
        assert make(**{name: str(tmp_path / "none")}) == (2, [])
    (tmp_path / "data/amazon/books.tsv.gz").unlink()
    assert make() == (2, [])
    assert not (tmp_path / "run").exists()


def test_hard_texts_are_not_used_for_calibration(make: Make, tmp_path: Path) -> None:
    files = [
        ROOT / "models" / "sentiment_models" / name for name in ("idioms.tsv", "texts/cases.tsv", "texts/domains.tsv", "texts/hard.tsv")
    ]
    hard = [file.read_text(encoding="utf-8").splitlines()[0].split("\t")[1] for file in files]
    rows = [json.dumps({"label": "positive", "text": text}, ensure_ascii=False) + "\n" for text in ("kind of good", *hard, "generated")]
    (tmp_path / "run" / "films").mkdir(parents=True)
    (tmp_path / "run" / "films" / "dev.jsonl").write_text("".join(rows), encoding="utf-8")

    code, commands = make()

    assert code == 0
    export = next(command for command in commands if command[0] == "export")
    assert Path(value(export, "--dev")).read_text(encoding="utf-8") == rows[0]
    assert value(export, "--spellings").endswith("/imdb/unlabelled.txt.gz")


def test_the_multilingual_bundle_learns_from_english_alone_and_is_measured_in_eight_languages(make: Make, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "encoder").mkdir(parents=True)

    code, commands = make("make_multilingual.sh")

    assert code == 0
    assert [command[0] for command in commands] == ["train", "export", "evaluate", "card", "pack"]
    assert value(commands[0], "--base") == str(run / "encoder")
    with Path(commands[2][3]).open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t"))
    by_language = Counter((row["domain"], row["label"]) for row in rows)
    assert set(by_language.values()) == {8} and len(by_language) == 8 * 3
