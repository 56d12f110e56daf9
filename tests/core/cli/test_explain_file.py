"""``sentiment explain --input``: a whole file explained and summed up, with a real server and in this process."""

import csv
import gzip
import itertools
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pandas
import pytest
from pyarrow import parquet

from sentiment.cli import main
from sentiment.client import CallFailed, Client, Explanation
from sentiment.v1 import sentiment_pb2 as pb
from tests.conftest import RunningServer

Captured = pytest.CaptureFixture[str]
# Texts that the tiny model answers by their words: awful -2, bad -1, good 1, great 2, film 0.
TEXTS = ["awful film", "bad film", "Awful , a film", "good film", "great film and film", "AWFUL bad film", "a good great film"]
SHOPS = ["north", "south", "north", "south", "north", "south", "north"]
LABELS = ["negative", "negative", "negative", "positive", "positive", "negative", "positive"]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SENTIMENT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def target(server: RunningServer) -> list[str]:
    return ["--target", server.target]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("shop", "text", "label"), *zip(SHOPS, TEXTS, range(len(TEXTS)), strict=True)])
    return path


def run(*arguments: str | Path) -> int:
    return main.main(["explain", *map(str, arguments)])


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def refusing(monkeypatch: pytest.MonkeyPatch, refuse: Callable[[str], CallFailed | None]) -> list[str]:
    """Let the server's explanations of some texts fail. Returns the texts that are asked for, as they come."""
    asked: list[str] = []
    real = Client._explanation

    def explanation(self: Client, request: pb.ExplainRequest, timeout_s: float) -> Explanation:
        asked.append(request.text)
        if failed := refuse(request.text):
            raise failed
        return real(self, request, timeout_s)

    monkeypatch.setattr(Client, "_explanation", explanation)
    monkeypatch.setattr("sentiment.client.calls.pause_s", lambda *_: 0.0)
    return asked


def test_each_row_is_explained_in_order_beside_its_other_columns(capsys: Captured, target: list[str], source: Path) -> None:
    output = source.with_name("out.csv")

    assert run(*target, "--input", source, "--output", output) == 0

    with output.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["shop"], row["text"], row["input_label"], row["label"]) for row in rows] == [
        (shop, text, str(number), label) for number, (shop, text, label) in enumerate(zip(SHOPS, TEXTS, LABELS, strict=True))
    ]
    first = rows[0]
    assert (first["explained"], first["method"], first["model"]) == ("negative", "occlusion", "tiny/1")
    assert first["verdict"] == "INCONCLUSIVE"
    assert first["reason"].startswith("Negative, mostly because of “awful”")
    words = json.loads(first["words"])
    assert (words["text"], words["sentence"]) == (["awful", "film"], [0, 0])
    assert words["value"] == [pytest.approx(2.0, abs=1e-3), pytest.approx(0.0, abs=1e-3)]
    assert sorted(path.name for path in source.parent.iterdir()) == ["in.csv", "out.csv"]
    assert capsys.readouterr().out.startswith("7 rows\n  negative       4   57.1 %")


def write_as(kind: str, folder: Path) -> Path:
    path = folder / f"in{kind}"
    rows = [{"text": text, "shop": shop} for text, shop in zip(TEXTS, SHOPS, strict=True)]
    if kind == ".txt":
        path.write_text("\n".join(TEXTS), encoding="utf-8")
    elif kind == ".jsonl.gz":
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    elif kind == ".parquet":
        import pyarrow

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif kind == ".tsv":
        with path.open("w", newline="", encoding="utf-8") as file:
            rated = zip(TEXTS, SHOPS, "1234567", strict=True)
            csv.writer(file, delimiter="\t").writerows([("text", "shop", "score_critic"), *rated])
    else:
        import openpyxl

        book = openpyxl.Workbook()
        for row in (("text", "shop"), *zip(TEXTS, SHOPS, strict=True)):
            book.active.append(row)
        book.save(path)
    return path


@pytest.mark.parametrize(
    ("kind", "output"),
    [(".txt", "out.jsonl"), (".jsonl.gz", "out.json"), (".tsv", "out.csv"), (".parquet", "out.parquet"), (".xlsx", "out.xlsx")],
)
def test_every_kind_of_table_is_read_and_written_and_summed_up_again(
    kind: str, output: str, capsys: Captured, target: list[str], tmp_path: Path
) -> None:
    given, made = write_as(kind, tmp_path), tmp_path / output
    by = [] if kind == ".txt" else ["--by", "shop"]

    assert run(*target, "--input", given, "--output", made, "--json", *by) == 0
    first = json.loads(capsys.readouterr().out)
    assert run("--summary", "--input", made, "--json", *by) == 0

    assert json.loads(capsys.readouterr().out) == first
    assert [share["rows"] for share in first["whole"]["shares"]] == [4, 3]


@pytest.mark.parametrize("written", ["TRUE", "True", "true", "1"])
def test_a_summary_counts_undecided_answers_however_a_program_writes_them(
    written: str, capsys: Captured, target: list[str], source: Path
) -> None:
    output = source.with_name("out.csv")
    assert run(*target, "--input", source, "--output", output) == 0
    output.write_text(output.read_text(encoding="utf-8").replace(",false,", f",{written},"), encoding="utf-8")
    capsys.readouterr()

    assert run("--summary", "--input", output) == 0

    assert "  undecided      7  100.0 %\n" in capsys.readouterr().out


def test_a_column_without_a_name_is_kept_and_may_be_the_groups(capsys: Captured, target: list[str], tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    pandas.DataFrame({"text": TEXTS}, index=SHOPS).to_csv(source)

    assert run(*target, "--input", source, "--output", output, "--by", "1") == 0
    first = capsys.readouterr().out
    assert run("--summary", "--input", output, "--by", "1") == 0

    with output.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row[""] for row in rows] == SHOPS
    assert ": north\n" in first
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    "changed",
    [
        {"text": 5},
        {"words": {"text": ["a"], "value": [], "standard_error": [], "sentence": []}},
        {"words": {"text": ["a"], "value": ["b"], "standard_error": [0], "sentence": [0]}},
        {"words": {"text": ["a"], "value": [math.inf], "standard_error": [0], "sentence": [0]}},
        {"words": {"text": ["a"], "value": [math.nan], "standard_error": [0], "sentence": [0]}},
        {"words": "[" * 100_000},
        {"verdict": "GOOD"},
        {"label": "bogus"},
        {"abstain": "maybe"},
    ],
)
def test_a_summary_of_other_rows_is_refused(changed: dict[str, Any], capsys: Captured, target: list[str], source: Path) -> None:
    output = source.with_name("out.jsonl")
    assert run(*target, "--input", source, "--output", output) == 0
    first, *others = lines_of(output)
    output.write_text("\n".join(json.dumps(row) for row in ({**first, **changed}, *others)), encoding="utf-8")

    assert run("--summary", "--input", output) == 2

    assert "is not a row that sentiment explain --input has written" in capsys.readouterr().err


def test_the_summary_says_what_makes_answers_negative_in_the_file_and_its_groups(capsys: Captured, target: list[str], source: Path) -> None:
    assert run(*target, "--input", source, "--by", "shop", "--json") == 0

    found = json.loads(capsys.readouterr().out)
    negative = found["whole"]["reasons"][0]
    assert (negative["label"], negative["rows"]) == ("negative", 7)
    (word,) = negative["words"]
    assert (word["text"], word["rows"], word["total"], word["examples"]) == ("awful", 3, pytest.approx(6.0, abs=1e-3), [1, 3, 6])
    assert found["examples"]["6"] == "AWFUL bad film"
    assert [(part["name"], part["answered"]) for part in found["groups"]] == [("north", 4), ("south", 3)]
    assert found["by"] == "shop"


def test_the_text_of_the_summary_fits_and_cannot_control_the_terminal(capsys: Captured, target: list[str], tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    texts = [f"awful film \x1b]0;owned\x07 number {number}" for number in range(4)] + ["", "good"]
    source.write_text("\n".join(json.dumps({"text": text, "\x9bby": "\x1b[2J"}) for text in texts))

    assert run(*target, "--input", source, "--by", "\x9bby", "--color", "always") == 1

    out, errors = capsys.readouterr()
    plain = re.sub("\x1b\\[[0-9;]*m", "", out)
    assert not set(plain + errors) & set("\x1b\x07\x9b")
    assert max(map(len, plain.splitlines())) <= 80
    assert "What makes answers negative (5 rows)" in plain
    assert re.search(r"\n  awful +4 +\+8\.0 +\+2\.00 +\.+\n    rows 1, 2, 3: awful film", plain)
    assert "6 rows, 1 of them without an explanation" in plain
    assert errors == (
        "row 5 has no explanation: INVALID_ARGUMENT: text: has 0 characters and none but white space; at least one other is needed\n"
        "1 of 6 texts have no explanation\n"
    )


def test_a_row_that_fails_has_its_own_error_and_the_exit_code_says_so(target: list[str], tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "good"}\n{"text": 5}\n{broken\n{"text": "bad"}\n')

    assert run(*target, "--input", source, "--output", output) == 1

    found = lines_of(output)
    assert [line.get("label") for line in found] == ["positive", None, None, "negative"]
    assert found[1]["error"] == {"code": "UNREADABLE", "message": "line 2: 'text' must be a string, got a number"}
    assert found[2]["error"]["message"].startswith("line 3: is no JSON")


def test_an_interrupted_run_goes_on_after_its_last_whole_line(
    capsys: Captured, target: list[str], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, output = source.with_name("whole.csv"), source.with_name("out.csv")
    assert run(*target, "--input", source, "--output", whole) == 0
    summary = capsys.readouterr().out
    gone = CallFailed(grpc.StatusCode.UNAVAILABLE, "the server is gone", (), None)
    with monkeypatch.context() as patch:
        refusing(patch, lambda text: gone if text == TEXTS[3] else None)
        assert run(*target, "--input", source, "--output", output) == 1
    assert "the server is gone" in capsys.readouterr().err
    part = output.with_name("out.csv.part")
    assert [line["text"] for line in lines_of(part)] == TEXTS[:3]
    with part.open("a") as file:
        file.write('{"text": "half')

    asked = refusing(monkeypatch, lambda text: None)
    assert run(*target, "--input", source, "--output", output) == 0

    assert asked == TEXTS[3:]
    assert output.read_bytes() == whole.read_bytes()
    assert capsys.readouterr().out == summary


def test_an_output_is_not_continued_with_other_options(
    capsys: Captured, target: list[str], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = source.with_name("out.csv")
    gone = CallFailed(grpc.StatusCode.UNAVAILABLE, "the server is gone", (), None)
    refusing(monkeypatch, lambda text: gone if text == TEXTS[3] else None)
    assert run(*target, "--input", source, "--output", output) == 1
    capsys.readouterr()

    assert run(*target, "--input", source, "--output", output, "--label", "positive") == 2

    assert "was begun with label = not given; now it is 'positive'" in capsys.readouterr().err


def test_a_busy_server_is_waited_for_and_a_text_that_it_never_takes_fails_alone(
    target: list[str], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = source.with_name("out.jsonl")
    refusals = itertools.count()

    def refuse(text: str) -> CallFailed | None:
        if text == TEXTS[1] and next(refusals) < 30:
            return CallFailed(grpc.StatusCode.RESOURCE_EXHAUSTED, "explanations wait", (), 0.5)
        if text == TEXTS[2]:
            return CallFailed(grpc.StatusCode.RESOURCE_EXHAUSTED, "it is too large", (), math.inf)
        return None

    asked = refusing(monkeypatch, refuse)

    assert run(*target, "--input", source, "--output", output) == 1

    found = lines_of(output)
    assert [line.get("label") for line in found] == [*LABELS[:2], None, *LABELS[3:]]
    assert found[2]["error"] == {"code": "RESOURCE_EXHAUSTED", "message": "it is too large"}
    assert (asked.count(TEXTS[1]), asked.count(TEXTS[2])) == (31, 1)


def test_what_is_explained_is_kept_before_the_next_row_is_asked_for(
    target: list[str], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One explanation is under way at a time: others have their turn, and a machine that stops loses one."""
    output, kept = source.with_name("out.jsonl"), []
    refusing(monkeypatch, lambda text: kept.append(len(lines_of(output.with_name("out.jsonl.part")))))

    assert run(*target, "--input", source, "--output", output) == 0

    assert kept == list(range(len(TEXTS)))


def test_server_and_local_process_write_the_same(target: list[str], source: Path, bundles: Path) -> None:
    served, local = source.with_name("served.jsonl"), source.with_name("local.jsonl")

    assert run(*target, "--input", source, "--output", served) == 0
    assert run("--local", "--bundles", bundles, "--model", "tiny", "--input", source, "--output", local) == 0

    assert lines_of(local) == lines_of(served)


def test_pairs_come_from_two_columns(tmp_path: Path, bundles: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.jsonl"
    source.write_text("text,reply\ngood film,bad\n")

    asked = ["--local", "--bundles", bundles, "--model", "paired", "--input", source, "--pair", "reply", "--output", output]
    assert run(*asked) == 0

    (line,) = lines_of(output)
    assert (line["text_pair"], line["words"]["text"]) == ("bad", ["good", "film", "bad"])


def test_rows_go_to_standard_output_and_their_summary_beside_it(capsys: Captured, target: list[str], source: Path) -> None:
    assert run(*target, "--input", source, "--output", "-") == 0

    out, errors = capsys.readouterr()
    assert [json.loads(line)["label"] for line in out.splitlines()] == LABELS
    assert "What makes answers negative" in errors


def test_the_time_left_is_shown(capsys: Captured, target: list[str], source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentiment.files.progress.AFTER_S", 0.0)

    assert run(*target, "--input", source, "--output", source.with_name("out.csv")) == 0

    shown = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"1 of 7 texts, \d+ s left", shown[0])
    assert shown[-1] == "7 of 7 texts"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["a text", "--input", "IN"], "TEXT explains one text; leave it out with --input"),
        (["--input", "IN", "--html", "x.html"], "--html explains one text; leave it out with --input"),
        (["--input", "IN", "--heads"], "--heads explains one text; leave it out with --input"),
        (["--input", "IN", "--method", "occlusion", "--method", "shapley"], "--method: give one with --input"),
        (["--input", "IN", "--against", "negative"], "--against needs --label with --input"),
        (["--input", "IN", "--restart"], "--restart needs --output"),
        (["--input", "IN", "--by", "text"], "--by text: is the column of the texts; choose another one"),
        (["--input", "IN", "--drop", "--by", "shop", "--output", "out.csv"], "--drop would leave the column of --by out"),
        (["--input", "IN", "--label", "meh"], "INVALID_ARGUMENT: label: is 'meh'"),
        (["--input", "IN", "--summary"], "--input IN: is not a row that sentiment explain --input has written"),
        (["--input", "IN", "--summary", "--output", "out.csv"], "--summary needs --input FILE, and no --output"),
        (["good", "--by", "shop"], "--by needs --input FILE"),
        (["good", "--column", "shop"], "--column needs --input FILE"),
        (["good", "--output", "out.csv"], "--output needs --input FILE"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    flags: list[str], message: str, capsys: Captured, target: list[str], source: Path
) -> None:
    assert run(*target, *[str(source) if flag == "IN" else flag for flag in flags]) == 2

    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.startswith(f"error: {message.replace('IN:', f'{source}:')}")


def test_explanations_that_are_off_are_reported_once(capsys: Captured, start: Callable[..., RunningServer], source: Path) -> None:
    server = start(explain=False)

    capsys.readouterr()

    assert run("--target", server.target, "--input", source) == 1

    out, errors = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"error: FAILED_PRECONDITION: [^\n]+\n", errors)
