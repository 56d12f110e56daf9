"""``sentiment classify`` with sentences and targets: what is printed, and what stands in files."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from sentiment.cli.answer_text import answer_lines
from sentiment.cli.answers import Asked, table_row
from sentiment.cli.main import main
from sentiment.cli.terminal import label_hues
from sentiment.client.results import classification_of
from sentiment.files.visible import columns
from tests.core.cli.test_cli import interrupt_at
from tests.core.client.parts import answered, serving
from tests.tiny import make_bundle

Captured = pytest.CaptureFixture[str]
TEXT = "A great film. Awful and bad."
TOPICS = ["film; awful ;", "", '["film", "a;b"]', "none", "[1]", "["]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The flags that run a bundle with three labels, mixed and targets in this process."""
    root = tmp_path_factory.mktemp("three")
    make_bundle(root, three=True)
    return ["--local", "--bundles", str(root), "--model", "tiny"]


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    source = tmp_path / "in.csv"
    with source.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("topics", "text", "mixed"), *((topic, TEXT, "kept") for topic in TOPICS)])
    return source


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def targets_of(line: dict[str, Any]) -> list[tuple[str, bool]] | str:
    """Names of the targets, and whether the text has them; or the error."""
    return line["error"]["message"] if "error" in line else [(one["target"], one["named"]) for one in line.get("targets", ())]


def test_sentences_and_targets_stand_below_the_answer_of_the_whole(capsys: Captured, three: list[str]) -> None:
    assert run("classify", *three, "--sentences", "--targets", "film, battery", TEXT, "good") == 0

    whole, first, second, film, battery, *other = capsys.readouterr().out.splitlines()
    assert whole.endswith(f"  {TEXT}  (undecided, mixed)")
    assert first.startswith("  sentence positive ")
    assert first.endswith("  A great film.")
    assert second.startswith("  sentence negative ")
    assert second.endswith("  Awful and bad.")
    assert film.startswith("  target ")
    assert film.split()[3] == "film"
    assert battery == "  target   neutral    1.0000  battery  (not named)"
    assert [line.split()[0] for line in other] == ["positive", "sentence", "target", "target"]


def test_answers_towards_targets_below_the_callers_threshold_are_undecided(capsys: Captured, three: list[str]) -> None:
    assert run("classify", *three, "--targets", "film", "--threshold", "1", "--undecided", "--json", TEXT) == 0

    (target,) = json.loads(capsys.readouterr().out)["targets"]
    assert (target["named"], target["label"], target["abstain"]) == (True, "undecided", True)


def test_json_has_the_parts_that_were_asked_for_and_offsets_of_code_points(capsys: Captured, three: list[str]) -> None:
    text = f"\U0001f600 {TEXT}"
    assert run("classify", *three, "--sentences", "--targets", "film", "--json", text) == 0

    found = json.loads(capsys.readouterr().out)
    assert list(found)[-3:] == ["sentences", "sentences_total", "targets"]
    assert found["sentences_total"] == len(found["sentences"]) == 2
    for sentence in found["sentences"]:
        assert text[sentence["start"] : sentence["end"]] == sentence["text"]
        assert list(sentence) == ["text", "start", "end", "label", "score", "scores", "abstain", "mixed", "tokens", "truncated"]
    (film,) = found["targets"]
    assert text[film["start"] : film["end"]] == "film"
    assert list(film) == ["target", "named", "start", "end", "label", "score", "scores", "abstain", "mixed", "tokens"]


def test_explain_says_what_the_answer_is_towards(capsys: Captured, three: list[str]) -> None:
    assert run("explain", *three, "--about", "film", "--json", "A good film .") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["target"], [word["text"] for word in found["words"]]) == ("film", ["A", "good", "."])

    assert run("explain", *three, "--about", "food", TEXT) == 1
    assert "target: is not named in the text" in capsys.readouterr().err


def test_each_row_has_the_targets_of_its_column(three: list[str], topics: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"

    assert run("classify", *three, "--input", topics, "--targets-column", "topics", "--output", output) == 1

    lines = lines_of(output)
    wrong = "'topics' must be names between ';', or a list of strings"
    assert [targets_of(line) for line in lines] == [
        [("film", True), ("awful", True)],
        [],
        [("film", True), ("a;b", False)],
        [("none", False)],
        f"line 6: {wrong}",
        f"line 7: {wrong}",
    ]
    assert [line["topics"] for line in lines] == TOPICS
    assert {line["input_mixed"] for line in lines} == {"kept"}


def test_values_of_json_may_be_lists_of_targets(three: list[str], tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"text": TEXT, "targets": ["film"]}, {"text": TEXT, "targets": None}, {"text": TEXT}, {"text": TEXT, "targets": 7}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))

    assert run("classify", *three, "--input", source, "--targets-column", "targets", "--output", output) == 1

    lines = lines_of(output)
    assert [targets_of(line) for line in lines[:3]] == [[("film", True)], [], []]
    assert lines[0]["input_targets"] == ["film"]
    assert lines[3]["error"]["code"] == "UNREADABLE"


@pytest.mark.parametrize("ending", ["csv", "parquet", "xlsx"])
def test_a_table_has_a_row_for_each_row_with_its_parts_as_json(ending: str, three: list[str], topics: Path, tmp_path: Path) -> None:
    lines, output = tmp_path / "out.jsonl", tmp_path / f"out.{ending}"
    arguments = [*three, "--input", topics, "--sentences", "--targets-column", "topics", "--output"]
    assert [run("classify", *arguments, path) for path in (lines, output)] == [1, 1]

    if ending == "parquet":
        rows = parquet.read_table(output).to_pylist()
    else:
        again = tmp_path / "again.jsonl"
        run("classify", *three, "--input", output, "--output", again)
        rows = [{name.removeprefix("input_"): value or None for name, value in row.items()} for row in lines_of(again)]

    assert len(rows) == len(TOPICS)
    for row, line in zip(rows, map(table_row, lines_of(lines)), strict=True):
        for name in ("sentences", "targets"):
            assert (json.loads(row[name]) if row[name] else None) == line.get(name)


def test_an_interrupted_output_is_continued_with_the_same_targets_only(
    capsys: Captured, three: list[str], topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, output = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    arguments = ["classify", *three, "--input", topics, "--drop", "--sentences", "--output"]
    by_column = ["--targets-column", "topics"]
    assert run(*arguments, whole, *by_column) == 1
    with monkeypatch.context() as patched:
        interrupt_at(patched, 3)
        assert run(*arguments, output, *by_column) == 130
    capsys.readouterr()
    before = topics.read_text()

    assert run(*arguments, output, "--targets", "film") == 2
    assert "was begun with targets = 'topics'" in capsys.readouterr().err
    topics.write_text(before.replace("film; awful", "film; start"))
    assert run(*arguments, output, *by_column) == 2
    assert "does not match text 1" in capsys.readouterr().err
    topics.write_text(before)
    assert run(*arguments, output, *by_column) == 1
    assert output.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["good", "--targets", "a", "--targets-column", "b"], "not allowed with argument --targets"),
        (["good", "--targets", "a,,b"], "is 'a,,b'; must be names with commas between them, such as battery,service"),
        (["good", "--targets-column", "b"], "--targets-column needs --input"),
        (["--input", "IN", "--targets-column", "text"], "--targets-column text: is the column of the texts"),
        (
            ["--input", "IN", "--targets-column", "nosuch"],
            "no column 'nosuch'; the header has topics, text, mixed (choose with --targets-column",
        ),
    ],
    ids=str,
)
def test_wrong_usage_is_reported(arguments: list[str], says: str, capsys: Captured, three: list[str], topics: Path) -> None:
    with_file = [str(topics) if argument == "IN" else argument for argument in arguments]
    try:
        code = run("classify", *three, *with_file)
    except SystemExit as ended:
        code = int(str(ended.code))

    assert code == (1 if "nosuch" in says else 2)
    assert says in capsys.readouterr().err


def test_a_model_without_targets_is_reported_before_the_first_text(capsys: Captured, bundles: Path) -> None:
    assert run("classify", "--local", "--bundles", bundles, "--model", "tiny", "--targets", "film", "good") == 2

    assert capsys.readouterr().err == "error: model tiny/1 answers no targets; choose another with --model\n"


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--sentences"], "the server answers no sentences: it is of a version before 0.2"),
        (["--targets", "film"], "model english/2 answers no targets; choose another with --model"),
    ],
    ids=lambda option: option[0] if isinstance(option, list) else "",
)
def test_a_server_before_0_2_is_recognized_by_missing_fields(option: list[str], says: str, capsys: Captured) -> None:
    with serving(able=False) as target:
        assert run("classify", "--target", target, "--wait", "0", *option, "good") == 2

    assert capsys.readouterr().err == f"error: {says}\n"


@pytest.mark.parametrize("width", [60, 100])
def test_lines_of_a_terminal_are_broken_between_words_and_stand_below_their_text(width: int) -> None:
    text = "Good food, but a bad and very slow service in the evening, when all the tables were taken. Caf\u00e9 \u5f71\u753b. " * 2
    answer = classification_of(answered(text, True, ["service", "battery life"]), text)

    lines = list(answer_lines(Asked(text, None, {}), answer, width, {}))

    assert max(map(columns, lines)) <= width
    assert max(map(columns, lines)) > width - 12
    assert [line[:10].strip() for line in lines if line[:10].strip()] == ["positive", *["sentence"] * 4, "target", "target"]
    assert "  ".join("".join(lines).split()).count("Caf\u00e9") == 4
    assert {len(line) - len(line.lstrip()) for line in lines if not line[:12].strip()} <= {19, 20, 30, 31}


def test_an_undecided_answer_has_no_colour() -> None:
    answer = classification_of(answered("good", False, []), "good")
    hues = label_hues(["negative", "positive"])

    (decided,), (undecided,) = (
        answer_lines(Asked("good", None, {}), replace(answer, abstain=abstain), None, hues) for abstain in (False, True)
    )

    assert "\x1b" in decided
    assert "\x1b" not in undecided


def test_sentences_without_an_answer_are_counted() -> None:
    text = "Good. " * 6
    answer = classification_of(answered(text, True, []), text)

    assert list(answer_lines(Asked(text, None, {}), answer, None, {}))[-1] == "  and 2 more sentences without an answer"
    fewer = replace(answer, sentences_total=5)
    assert list(answer_lines(Asked(text, None, {}), fewer, None, {}))[-1] == "  and 1 more sentence without an answer"
    many = replace(answer, sentences_total=1024)
    assert list(answer_lines(Asked(text, None, {}), many, None, {}))[-1] == "  and at least 1,020 more sentences without an answer"
