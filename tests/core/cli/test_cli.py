"""The command line as a user meets it: what each command prints, writes and returns."""

import contextlib
import csv
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper
from pyarrow import parquet

from sentiment.cli.answers import table_row
from sentiment.cli.arguments import seconds
from sentiment.cli.main import _parser, main
from sentiment.files import progress
from sentiment.files.errors import BadFile
from sentiment.files.line_output import LineOutput
from sentiment.files.reading import Reading, Table, read_texts
from sentiment.settings import markdown_table, settings_table
from tests.conftest import RunningServer
from tests.tiny import make_bundle, make_graph, read_manifest, write_manifest

# Prints the threads that NumPy uses after the command has tried to serve.
THREADS = """
from sentiment.cli.main import main
main(["serve", "--model", "nosuch"])
import numpy
from threadpoolctl import threadpool_info
print(*(one["num_threads"] for one in threadpool_info() if one["internal_api"] == "openblas"))
"""
KEYS = ["text", "label", "score", "scores", "abstain", "mixed", "model", "tokens", "truncated", "language_suspect", "early"]
TEXTS = [f"w{number % 33 - 32} film" if number % 2 else f"w{number % 32 + 1} film" for number in range(1500)]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SENTIMENT_")]:
        monkeypatch.delenv(name)


@pytest.fixture(params=["server", "local"])
def where(request: pytest.FixtureRequest, bundles: Path, server: RunningServer) -> list[str]:
    """The flags that send texts to the shared server, or run the bundle in this process."""
    if request.param == "local":
        return ["--local", "--bundles", str(bundles), "--model", "tiny"]
    return ["--target", server.target]


@pytest.fixture
def local(bundles: Path) -> list[str]:
    return ["--local", "--bundles", str(bundles), "--model", "tiny"]


Captured = pytest.CaptureFixture[str]


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


def why_not(capsys: Captured, *arguments: str | Path, code: int) -> str:
    """The one line on standard error of a command that ends with ``code`` and prints nothing."""
    # What commands before it have said.
    capsys.readouterr()
    assert run(*arguments) == code
    out, errors = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"error: [^\n]+\n", errors), errors
    return errors.removeprefix("error: ").removesuffix("\n")


def lines_of(path: Path) -> list[dict[str, object]]:
    # Not splitlines: a text may have U+2028.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n")]


# sentiment settings


def test_settings_lists_every_setting_with_default_and_help(capsys: Captured) -> None:
    assert run("settings") == 0

    out = capsys.readouterr().out
    for variable, flag, default, text in settings_table():
        assert f"{variable}  {flag}  (default: {default or 'empty'})\n    {text}\n" in out


# sentiment check


def test_a_good_bundle_checks_out(capsys: Captured, bundles: Path) -> None:
    assert run("check", bundles / "tiny/1") == 0

    out, errors = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["tiny/1", "ok", "ok", "ok", "serves", "explains"]
    assert errors == ""


def test_a_bundle_may_be_checked_by_name(capsys: Captured, bundles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTIMENT_BUNDLES", f"/nosuch:{bundles}")

    assert run("check", "tiny") == run("check", "tiny/1") == 0
    assert capsys.readouterr().out.count("serves fp32.onnx") == 2


def test_a_damaged_bundle_exits_3_and_says_what_is_damaged(capsys: Captured, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    with (bundle / "fp32.onnx").open("ab") as stream:
        stream.write(b"!")

    assert re.match(rf"{bundle}/fp32\.onnx: has \d+ bytes; the manifest says \d+", why_not(capsys, "check", bundle, code=3))


def test_a_bundle_of_which_no_graph_passes_exits_3(capsys: Captured, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    manifest = read_manifest(bundle)
    manifest["golden"] = [{"text": "good", "label": "negative", "logits": [1.0, -1.0]}]
    write_manifest(bundle, manifest)

    assert run("check", bundle) == 3
    out, errors = capsys.readouterr()
    assert "BAD   fp32.onnx: 0 of 1 golden labels" in out
    assert "no graph passes the golden set" in errors


@pytest.mark.parametrize("model", ["nosuch", "tiny/9", "/nosuch/folder", "../tiny"])
def test_a_missing_bundle_exits_3_and_says_what_is_there(
    capsys: Captured, bundles: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setenv("SENTIMENT_BUNDLES", str(bundles))

    message = why_not(capsys, "check", model, code=3)
    assert message.startswith(f"no bundle {model!r} in {bundles}, /models, ")
    assert "tiny/1" in message


# sentiment classify


def test_texts_are_answered_one_a_line_in_order(capsys: Captured, where: list[str]) -> None:
    assert run("classify", *where, "a good film", "awful  \n film", "a film") == 0

    out, errors = capsys.readouterr()
    assert out.splitlines() == [
        "positive   0.8808  a good film",
        "negative   0.9820  awful film",
        "negative   0.5000  a film  (undecided)",
    ]
    assert errors == ""


def test_a_text_that_begins_with_a_dash_and_has_a_space_is_not_an_option(capsys: Captured, local: list[str]) -> None:
    assert run("classify", *local, "-in films good", "-h good") == 0

    first, second = capsys.readouterr().out.splitlines()
    assert "  -in films good" in first
    assert "  -h good" in second


def test_the_options_that_are_typed_most_have_a_letter(server: RunningServer, tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("good\nbad\n")

    assert run("classify", "-t", server.target, "-i", source, "-o", output) == 0

    assert [line["label"] for line in lines_of(output)] == ["positive", "negative"]


def test_nothing_in_a_text_acts_on_the_terminal(capsys: Captured, local: list[str]) -> None:
    assert run("classify", *local, "good \x1b[31m\x9b2J \u202e film") == 0

    assert capsys.readouterr().out == "positive   0.8808  good \\x1b[31m\\x9b2J \\u202e film\n"


def test_json_has_exactly_the_documented_keys(capsys: Captured, where: list[str]) -> None:
    assert run("classify", *where, "--json", 'caf\u00e9 "good"\n\u2028', "good") == 0

    lines = capsys.readouterr().out.removesuffix("\n").split("\n")
    first, second = (json.loads(line) for line in lines)
    assert list(first) == list(second) == KEYS
    assert list(first["model"]) == ["name", "version", "digest"]
    assert (first["text"], second["text"]) == ('caf\u00e9 "good"\n\u2028', "good")
    assert (second["label"], second["abstain"], second["tokens"], second["truncated"]) == ("positive", False, 3, False)
    assert second["score"] == second["scores"]["positive"] == pytest.approx(0.880797, abs=1e-6)
    assert list(second["scores"]) == ["negative", "positive"]
    assert (second["model"]["name"], second["model"]["version"], len(second["model"]["digest"])) == ("tiny", 1, 64)


def test_a_text_without_an_answer_is_shown_with_its_reason_and_the_command_fails(capsys: Captured, where: list[str]) -> None:
    assert run("classify", *where, "good", " ", "bad") == 1

    out, errors = capsys.readouterr()
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["positive", "-", "negative"]
    assert "INVALID_ARGUMENT" in lines[1]
    assert "has 1 characters and none but white space" in lines[1]
    assert errors == "1 of 3 texts have no answer\n"


@pytest.mark.parametrize("command", ["classify", "explain"])
def test_a_lone_enter_at_a_terminal_has_its_error_and_the_command_goes_on_and_succeeds(command: str, server: RunningServer) -> None:
    main_end, terminal = pty.openpty()
    arguments = [sys.executable, "-m", "sentiment", command, "--target", server.target, "-"]
    with subprocess.Popen(arguments, stdin=terminal, stdout=terminal, stderr=subprocess.PIPE) as typing:
        os.close(terminal)
        # Enter, a text, and Ctrl-D.
        os.write(main_end, b"\ngood\n\x04")
        shown = b""
        # The end of the program closes its side, which is an error on Linux.
        with contextlib.suppress(OSError):
            while read := os.read(main_end, 4096):
                shown += read
    os.close(main_end)

    assert b"has 0 characters and none but white space" in shown
    assert b"positive" in shown.partition(b"has 0 characters")[2].lower()
    assert typing.returncode == 0


@pytest.mark.parametrize(
    ("options", "label", "abstain"),
    [
        ((), "positive", False),
        (("--threshold", "0.8"), "positive", False),
        (("--threshold", "90%"), "positive", True),
        (("--undecided",), "positive", False),
        (("--undecided", "--threshold", "0.9"), "undecided", True),
    ],
)
def test_an_answer_below_the_callers_threshold_abstains_and_may_be_labelled_undecided(
    capsys: Captured, local: list[str], options: tuple[str, ...], label: str, abstain: bool
) -> None:
    assert run("classify", *local, *options, "--sentences", "--json", "good film.") == 0

    answer = json.loads(capsys.readouterr().out)
    assert [(one["label"], one["abstain"]) for one in (answer, *answer["sentences"])] == [(label, abstain)] * 2
    assert answer["score"] == answer["scores"]["positive"] == pytest.approx(0.8808, abs=1e-4)


def test_what_the_model_abstains_from_may_be_labelled_undecided_once(capsys: Captured, local: list[str]) -> None:
    assert run("classify", *local, "--undecided", "a film") == 0

    assert capsys.readouterr().out == "undecided  0.5000  a film\n"


def test_an_output_is_of_the_threshold_that_it_was_begun_with(capsys: Captured, local: list[str], tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("good\nbad\n")
    with pytest.MonkeyPatch.context() as patched:
        interrupt_at(patched, 1)
        run("classify", *local, "--input", source, "--output", output, "--threshold", "0.9")
    capsys.readouterr()

    assert run("classify", *local, "--input", source, "--output", output) == 2
    assert "threshold = 0.9" in capsys.readouterr().err


def test_a_file_is_answered_in_order_into_a_file(capsys: Captured, where: list[str], tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("\n".join(TEXTS))

    assert run("classify", *where, "--input", source, "--output", output) == 0

    lines = lines_of(output)
    assert [line["text"] for line in lines] == TEXTS
    assert [line["label"] for line in lines] == ["negative" if number % 2 else "positive" for number in range(1500)]
    assert [list(line) for line in lines] == [KEYS] * 1500
    assert capsys.readouterr() == ("", "")
    assert not output.with_name("out.jsonl.part").exists()


def test_a_blank_line_of_the_input_becomes_an_error_in_its_place_and_the_command_fails(
    capsys: Captured, where: list[str], tmp_path: Path
) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("good\n\nbad\n")

    assert run("classify", *where, "--input", source, "--output", output) == 1

    first, second, third = lines_of(output)
    assert (first["label"], third["label"]) == ("positive", "negative")
    assert (list(second), second["text"]) == (["text", "error"], "")
    message = "has 0 characters and none but white space; at least one other is needed"
    assert second["error"] in [{"code": "INVALID_ARGUMENT", "message": f"{field}: {message}"} for field in ("text", "items[1].text")]
    assert capsys.readouterr().err == "1 of 3 texts have no answer\n"


def test_an_interrupted_run_that_is_repeated_gives_the_file_of_an_uninterrupted_one(
    where: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, whole, output = tmp_path / "in.txt", tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join([*TEXTS[:600], "caf\u00e9 good"]))
    assert run("classify", *where, "--input", source, "--output", whole) == 0

    with monkeypatch.context() as patched:
        interrupt_at(patched, 250)
        first = run("classify", *where, "--input", source, "--output", output)
    with monkeypatch.context() as patched:
        interrupt_at(patched, 300)
        second = run("classify", *where, "--input", source, "--output", output)
    part = output.with_name("out.jsonl.part")
    done = part.read_bytes()
    # What a machine that loses its power leaves of the last line.
    part.write_bytes(done[:-40])
    last = run("classify", *where, "--input", source, "--output", output)

    assert (first, second, last) == (130, 130, 0)
    assert done.count(b"\n") == 550
    assert output.read_bytes() == whole.read_bytes()


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(
    capsys: Captured, local: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("\n".join(TEXTS[:60]))

    interrupted(monkeypatch, 25, *local, "--input", source, "--output", output)
    first = capsys.readouterr().err
    interrupted(monkeypatch, 20, *local, "--input", source, "--output", output)

    assert first.endswith("interrupted: 25 rows are kept; repeat the command to continue\n")
    assert "interrupted: 45 rows are kept" in capsys.readouterr().err


def test_a_pipe_that_has_a_name_is_read_once_and_whole(local: list[str], tmp_path: Path) -> None:
    pipe, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("\n".join(TEXTS),), daemon=True)
    writer.start()

    assert run("classify", *local, "--input", pipe, "--output", output) == 0

    writer.join(20)
    assert [line["text"] for line in lines_of(output)] == TEXTS


def test_progress_has_the_number_of_texts_and_the_time_left(
    capsys: Captured, local: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    (tmp_path / "in.txt").write_text("\n".join(TEXTS[:60]))

    assert run("classify", *local, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.jsonl") == 0

    first, *_, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"1 of 60 texts, \d+ s left", first)
    assert last == "60 of 60 texts"


def test_labels_have_their_colours(capsys: Captured, local: list[str]) -> None:
    assert run("classify", *local, "w30 film", "w-30 film", "--color", "always") == 0
    coloured = capsys.readouterr().out
    assert run("classify", *local, "w30 film", "w-30 film", "--color", "never") == 0
    plain = capsys.readouterr().out

    assert "\x1b[38;5;16;48;5;208;1mpositive\x1b[0m" in coloured
    assert "\x1b[38;5;16;48;5;33;4mnegative\x1b[0m" in coloured
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == plain


def interrupt_at(patched: pytest.MonkeyPatch, line: int) -> None:
    """Let the user press Ctrl-C before a run's n-th line is written."""
    written = 0
    write = LineOutput.write

    def counted(output: LineOutput, text: str) -> None:
        nonlocal written
        if written == line:
            raise KeyboardInterrupt
        written += 1
        write(output, text)

    patched.setattr(LineOutput, "write", counted)


def test_an_output_that_exists_is_never_overwritten(capsys: Captured, local: list[str], tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("good\n")
    output.write_text("mine")

    message = why_not(capsys, "classify", *local, "--input", source, "--output", output, code=1)

    assert message == f"{output}: exists already; replace it with --overwrite, or choose another output"
    assert output.read_text() == "mine"


def interrupted(monkeypatch: pytest.MonkeyPatch, line: int, *arguments: str | Path) -> None:
    with monkeypatch.context() as patched:
        interrupt_at(patched, line)
        assert run("classify", *arguments) == 130


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda lines: ["new", *lines], ":1: does not match text 1 of "),
        (lambda lines: [*lines[:200], "new", *lines[201:]], ":201: does not match text 201 of "),
        (lambda lines: lines[:100], " has 100 texts, fewer than this output"),
    ],
    ids=["put in front", "changed", "fewer"],
)
def test_an_interrupted_output_is_not_continued_with_other_texts_unless_it_is_begun_again(
    change: Callable[[list[str]], list[str]],
    expected: str,
    capsys: Captured,
    where: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, output, part = tmp_path / "in.txt", tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    arguments = [*where, "--input", source, "--output", output]
    source.write_text("\n".join(TEXTS[:300]))
    interrupted(monkeypatch, 250, *arguments)
    kept = part.read_bytes()
    texts = change(TEXTS[:300])
    source.write_text("\n".join(texts))

    message = why_not(capsys, "classify", *arguments, code=2)
    unchanged = part.read_bytes() == kept
    again = run("classify", *arguments, "--restart")

    assert message.startswith(f"{part}:")
    assert expected in message
    assert message.endswith("; use --restart to start over, or another --output to keep this one")
    assert (unchanged, again) == (True, 0)
    assert [line["text"] for line in lines_of(output)] == texts
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("out")) == ["out.jsonl"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--truncation", "head_tail"], "was begun with truncation = not given; now it is 'head_tail'"),
        (["--column", "same"], "was begun with column = 'text'; now it is 'same'"),
        (["--model", "tiny/2"], "was begun with model digest = '"),
    ],
    ids=["truncation", "column", "model"],
)
def test_an_interrupted_output_is_not_continued_with_other_settings(
    flags: list[str], expected: str, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundle(tmp_path)
    second = make_bundle(tmp_path, version=2)
    write_manifest(second, {**read_manifest(second), "accuracy": {}})
    source, output = tmp_path / "in.tsv", tmp_path / "out.jsonl"
    source.write_text("text\tsame\n" + "good\tgood\n" * 30)
    arguments = ["--local", "--bundles", tmp_path, "--model", "tiny/1", "--input", source, "--output", output]
    interrupted(monkeypatch, 20, *arguments)

    message = why_not(capsys, "classify", *arguments, *flags, code=2)

    assert message.startswith(f"{output}.part: {expected}")
    assert "--restart to start over" in message
    assert run("classify", *arguments) == 0
    assert len(lines_of(output)) == 30


@pytest.mark.parametrize("record", [None, b"", b"[1]", b'"text"'], ids=["missing", "empty", "array", "string"])
def test_a_part_of_which_nothing_is_known_is_not_continued(
    record: bytes | None, capsys: Captured, local: list[str], tmp_path: Path
) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("good\nbad\n")
    (tmp_path / "out.jsonl.part").write_text("{}\n{}\n")
    if record is not None:
        (tmp_path / "out.jsonl.part.json").write_bytes(record)

    message = why_not(capsys, "classify", *local, "--input", source, "--output", output, code=2)

    assert message.startswith(
        f"{output}.part: has 2 lines, but out.jsonl.part.json, which records their input and options, cannot be read; "
    )


@pytest.mark.parametrize("line", ["{}", "[]", "null", "good", '{"text": 1}'])
def test_a_line_that_is_not_an_answer_is_named_by_its_number(
    line: str, capsys: Captured, local: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, part = tmp_path / "in.txt", tmp_path / "out.jsonl.part"
    arguments = [*local, "--input", source, "--output", tmp_path / "out.jsonl"]
    source.write_text("good\nbad\nfilm\n")
    interrupted(monkeypatch, 2, *arguments)
    part.write_text(f"{part.read_text().splitlines()[0]}\n{line}\n")

    assert f"{part}:2: " in why_not(capsys, "classify", *arguments, code=2)


def test_texts_that_had_no_answer_before_an_interruption_still_fail_the_command(
    capsys: Captured, where: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    texts = ["good", " ", "\ud800", *TEXTS[:20]]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    arguments = [*where, "--input", source, "--output", output]
    interrupted(monkeypatch, 10, *arguments)
    capsys.readouterr()

    assert run("classify", *arguments) == 1
    assert capsys.readouterr().err == "2 of 23 texts have no answer\n"
    assert [line["text"] for line in lines_of(output)] == texts


def test_two_runs_never_write_one_output(capsys: Captured, local: list[str], tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("good\n")
    arguments = ["classify", *local, "--input", source, "--output", output, "--restart"]

    with LineOutput(output) as other:
        other.write("theirs")
        message = why_not(capsys, *arguments, code=1)
        other.complete()

    assert message == f"{output}.part: another process writes to it; wait until it ends or choose another output"
    assert output.read_text() == "theirs\n"


def test_an_output_that_another_run_completes_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    part.write_text("theirs")

    def completed(*_: object) -> bool:
        part.rename(output)
        return True

    # Between the first look and the lock.
    monkeypatch.setattr("sentiment.files.line_output.claim", completed)
    with pytest.raises(BadFile, match="exists already"):
        LineOutput(output)

    assert output.read_text() == "theirs"
    assert not part.exists()


def test_a_column_of_a_table_may_be_chosen(capsys: Captured, local: list[str], tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text('id,review\n1,"good, film"\n2,bad\n')

    assert run("classify", *local, "--input", source, "--column", "review", "--json") == 0
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == ["good, film", "bad"]

    assert f"{source}:1: no column 'text'" in why_not(capsys, "classify", *local, "--input", source, code=1)


def test_a_text_that_is_not_unicode_is_an_error_of_its_row(where: list[str], tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "good"}\n{"text": "a \\ud800 film"}\n{"text": "bad"}\n')

    assert run("classify", *where, "--input", source, "--output", output) == 1

    first, second, third = lines_of(output)
    assert (first["label"], third["label"]) == ("positive", "negative")
    assert second == {
        "text": "a \ud800 film",
        "error": {"code": "INVALID_ARGUMENT", "message": "text: has a lone surrogate at code point 2; Unicode text has none"},
    }


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["plain", "json"])
def test_command_line_bytes_that_are_not_utf8_are_an_error_of_their_text(capsys: Captured, where: list[str], flags: list[str]) -> None:
    assert run("classify", *where, *flags, "caf\udce9 good", "good") == 1

    first, second = capsys.readouterr().out.splitlines()
    assert "lone surrogate at code point 3" in first
    assert "caf\\udce9 good" in first
    assert "positive" in second


def test_what_is_logged_in_this_process_never_mixes_with_the_answers(capsys: Captured, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    graph = make_graph()
    table = graph.graph.initializer[0]
    # Without the last word's weight: ONNX Runtime refuses to run a text that has it.
    table.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(table)[:-1], "table"))
    onnx.save(graph, bundle / "fp32.onnx")
    write_manifest(bundle, read_manifest(bundle))

    assert run("classify", "--local", "--bundles", tmp_path, "--model", "tiny", "--json", "good", "w32 film", "bad") == 1

    out, errors = capsys.readouterr()
    first, second, third = (json.loads(line) for line in out.splitlines())
    assert (first["label"], third["label"]) == ("positive", "negative")
    assert second["error"]["code"] == "INTERNAL"
    assert "batch_failed" in errors
    assert "w32" not in errors


def test_over_long_texts_may_be_read_at_both_ends_or_in_windows(capsys: Captured, where: list[str]) -> None:
    text = "film " * 40 + "good"

    for truncation in ("head_tail", "windows"):
        assert run("classify", *where, "--json", "--truncation", truncation, text) == 0

    tail, windows = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (tail["label"], tail["tokens"], tail["truncated"]) == ("positive", 32, True)
    assert (windows["label"], windows["tokens"], windows["truncated"]) == ("positive", 43, False)


def test_an_unknown_model_is_reported(capsys: Captured, server: RunningServer) -> None:
    message = why_not(capsys, "classify", "--target", server.target, "--model", "nosuch", "good", code=1)

    assert message == "NOT_FOUND: model 'nosuch' is not loaded; loaded are tiny/1"


def test_a_model_that_is_not_on_disk_exits_3(capsys: Captured, bundles: Path) -> None:
    message = why_not(capsys, "classify", "--local", "--bundles", bundles, "--model", "nosuch", "good", code=3)

    assert message.startswith("no bundle 'nosuch'")


def test_folders_that_hold_no_bundles_are_refused_before_the_input_is_read(capsys: Captured, bundles: Path) -> None:
    for wrong, says in ((bundles / "nosuch", "there is no such folder"), (bundles / "tiny" / "1", "is a bundle itself; give the folder")):
        assert says in why_not(capsys, "classify", "--local", "--bundles", wrong, "--input", "nosuch.csv", code=2)


def test_a_bundle_in_a_folder_of_another_name_exits_3(capsys: Captured, tmp_path: Path) -> None:
    """Otherwise it would be loaded, but not found under the requested name."""
    shutil.copytree(make_bundle(tmp_path), tmp_path / "other" / "3")

    message = why_not(capsys, "classify", "--local", "--bundles", tmp_path, "--model", "other", "good", code=3)

    assert message == f"{tmp_path}/other/3: holds tiny/1; rename the folder to the name and version of its manifest"


# Usage


def test_a_time_may_have_a_unit_and_a_plain_number_is_of_seconds() -> None:
    options = _parser().parse_args(["classify", "--timeout", "500ms", "--wait", "0", "good"])
    assert (options.timeout, options.wait) == (0.5, 0.0)
    assert [seconds(value) for value in ("500ms", "2s", "1.5", "60", ".5", "1e-3")] == [0.5, 2.0, 1.5, 60.0, 0.5, 0.001]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "required"),
        (["nosuch"], "invalid choice: 'nosuch'"),
        (["clasify", "good"], "; did you mean classify?"),
        (["classify", "--nosuch"], "sentiment classify: error: unrecognized arguments: --nosuch\n"),
        (["classify", "--trunkation", "head", "good"], "unrecognized arguments: --trunkation; did you mean --truncation?"),
        (["classify", "--truncation", "tail", "good"], "invalid choice: 'tail' (choose from 'refuse', "),
        (["classify", "--truncation", "heads", "good"], "; did you mean head?"),
        (["classify", "--local", "--target", "localhost:1", "good"], "argument -t/--target: not allowed with argument --local"),
        (["classify", "--timeout", "soon", "good"], "is 'soon'; must be a time of at most a day, such as 500ms, 2s or 1.5"),
        (["check"], "required: BUNDLE"),
        (["serve", "--log-level", "loud"], "invalid choice: 'loud'"),
    ],
)
def test_wrong_usage_exits_2_and_says_what_is_wrong(capsys: Captured, arguments: list[str], says: str) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*arguments)

    assert caught.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["classify"], "no text: give one or more TEXT, or --input FILE, or pipe texts in, one a line"),
        (["explain"], "no text: give a TEXT, or --input FILE, or pipe texts in, one a line"),
        (["classify", "-", "good"], "give either texts or - for standard input"),
        (["classify", "-", "--input", "in.txt"], "give either texts or --input FILE"),
        (
            ["classify", "--input", "in.txt", "--output", "out.doc"],
            "--output out.doc: the ending must be one of .jsonl, .json, .csv, .tsv, .parquet, .xlsx",
        ),
        (["classify", "good", "--input", "in.txt"], "give either texts or --input FILE"),
        (["classify", "good", "--output", "out.jsonl"], "--output needs --input, or - for texts from standard input"),
        (["classify", "good", "--restart"], "--restart needs --output"),
        (["classify", "--local", "--model", "No Such", "good"], "model = 'No Such'"),
        (["serve", "--queue-rows-max", "0"], "queue_rows_max = '0'"),
        (["serve", "--config", "nosuch.toml"], "nosuch.toml: "),
    ],
)
def test_wrong_settings_exit_2_and_say_what_is_wrong(capsys: Captured, arguments: list[str], says: str) -> None:
    assert says in why_not(capsys, *arguments, code=2)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("in.txt", None, "cannot be read: No such file or directory"),
        ("in.parquet", None, "cannot be read: No such file or directory"),
        ("in", None, "cannot be read: No such file or directory"),
        (
            "in.doc",
            "good",
            ".txt, .csv, .tsv, .jsonl, .ndjson, .json, .parquet, .xlsx (text also with .gz or .zst), got '.doc'",
        ),
        ("in.csv", "id,review\n1,good\n", "no column 'text'; the header has id, review (choose with --column, or --no-header"),
        ("in.jsonl", '{"review": "good"}\n', "no key 'text'; the object has review (choose with --column)"),
        ("in.parquet", "good", "not a Parquet file"),
    ],
)
def test_an_unusable_input_is_reported_before_looking_for_a_server(
    capsys: Captured, tmp_path: Path, name: str, content: str | None, says: str
) -> None:
    source, output = tmp_path / name, tmp_path / "out.jsonl"
    if content is not None:
        source.write_text(content)

    # Nothing listens there.
    message = why_not(capsys, "classify", "--target", "127.0.0.1:1", "--input", source, "--output", output, code=1)

    assert message.startswith(f"{source}:")
    assert says in message
    assert [path.name for path in tmp_path.iterdir()] == ([] if content is None else [name])


# Tables

FOUND = [
    "text",
    "label",
    "score",
    "abstain",
    "mixed",
    "score_negative",
    "score_positive",
    "tokens",
    "truncated",
    "language_suspect",
    "early",
]
COLUMNS = [*FOUND, "model", "model_digest", "error"]
TRICKY = [
    'a "good", film',
    "good\r\nand\rbad\n",
    "caf\u00e9 \u5f71\u753b \U0001f600 \u2028 good",
    "'; =1+1\t\\ud800 \\",
    " good ",
    "\x00 good",
    "a \ud800 film",
    "",
]


@pytest.fixture
def tricky(tmp_path: Path) -> Path:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in TRICKY))
    return source


def shown(text: str) -> str:
    """As a table has it, which cannot hold a lone surrogate."""
    return text.encode(errors="backslashreplace").decode()


def test_a_csv_of_answers_has_the_values_of_the_json_lines_and_can_be_read_as_an_input(
    where: list[str], tricky: Path, tmp_path: Path
) -> None:
    lines, output = tmp_path / "out.jsonl", tmp_path / "out.csv"
    assert [run("classify", *where, "--input", tricky, "--output", path) for path in (lines, output)] == [1, 1]

    with output.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))

    assert [row["text"] for row in rows] == list(read_texts(output)) == [shown(text) for text in TRICKY]
    for row, line in zip(rows, map(table_row, lines_of(lines)), strict=True):
        found = [line.get(name) for name in row]
        assert list(row.values()) == [
            "" if value is None else shown(value) if isinstance(value, str) else json.dumps(value) for value in found
        ]
    assert list(rows[0]) == COLUMNS


def test_a_parquet_of_answers_has_the_values_of_the_json_lines(
    where: list[str], tricky: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several row groups.
    monkeypatch.setattr("sentiment.files.tables.GROUP_ROWS", 3)
    lines, output = tmp_path / "out.jsonl", tmp_path / "out.parquet"
    assert [run("classify", *where, "--input", tricky, "--output", path) for path in (lines, output)] == [1, 1]

    rows = parquet.read_table(output).to_pylist()

    assert [row["text"] for row in rows] == list(read_texts(output)) == [shown(text) for text in TRICKY]
    for row, line in zip(rows, map(table_row, lines_of(lines)), strict=True):
        assert list(row) == COLUMNS
        assert {name: value for name, value in row.items() if value is not None and name != "text"} == {
            name: value for name, value in line.items() if name != "text"
        }
    assert parquet.ParquetFile(output).num_row_groups > 1


@pytest.mark.parametrize("ending", ["csv", "tsv", "json", "parquet", "xlsx"])
@pytest.mark.parametrize("texts", [[], [" "]], ids=["no texts", "no answers"])
def test_a_table_without_an_answer_has_its_columns(ending: str, texts: list[str], local: list[str], tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / f"out.{ending}"
    source.write_text("".join(f"{text}\n" for text in texts))

    assert run("classify", *local, "--input", source, "--output", output) == len(texts)

    with Table(output, Reading()) as table:
        assert [row.text("text") for row in table] == texts
        assert ending == "json" or list(table.columns or ()) == COLUMNS


@pytest.mark.parametrize("ending", ["csv", "parquet", "json"])
def test_an_interrupted_table_is_continued_to_the_table_of_an_uninterrupted_run(
    ending: str, local: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, whole, output = tmp_path / "in.txt", tmp_path / f"whole.{ending}", tmp_path / f"out.{ending}"
    source.write_text("\n".join(TEXTS[:300]))
    arguments = [*local, "--input", source, "--output"]
    assert run("classify", *arguments, whole) == 0
    interrupted(monkeypatch, 250, *arguments, output)
    kept = lines_of(tmp_path / f"out.{ending}.part")
    with monkeypatch.context() as patched:
        # All texts are answered, and then the disk is full.
        patched.setattr("os.replace", lambda *_: os.open("/nosuch/file", os.O_RDONLY))
        full = run("classify", *arguments, output)
    left = {path.name for path in tmp_path.iterdir()}

    assert run("classify", *arguments, output) == 0

    assert [line["text"] for line in kept] == TEXTS[:250]
    assert full == 1
    assert left == {"in.txt", whole.name, f"out.{ending}.part", f"out.{ending}.part.json"}
    assert output.read_bytes() == whole.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", whole.name, output.name}


def answered(output: Path) -> list[dict[str, str]]:
    with output.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_the_columns_of_the_input_stand_before_the_answer_and_never_hide_it(capsys: Captured, where: list[str], tmp_path: Path) -> None:
    source, output, lines = tmp_path / "in.csv", tmp_path / "out.csv", tmp_path / "out.jsonl"
    source.write_text("id;text;label;score_positive;input_label\n7;good;x;y;z\n")

    assert [run("classify", *where, "--input", source, "--output", path) for path in (output, lines)] == [0, 0]

    (row,), (line,) = answered(output), lines_of(lines)
    kept = {"id": "7", "input_input_label": "x", "input_score_positive": "y", "input_label": "z"}
    assert list(row) == [*kept, *COLUMNS]
    assert kept.items() <= row.items()
    assert kept.items() <= line.items()
    assert (row["label"], line["label"], line["text"]) == ("positive", "positive", "good")


def test_values_of_json_are_kept_as_they_are_and_may_be_left_out(where: list[str], tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "good", "tags": ["a", {"b": 1.5}], "n": 3, "none": null}\n')

    assert run("classify", *where, "--input", source, "--output", tmp_path / "kept.jsonl") == 0
    assert run("classify", *where, "--input", source, "--output", tmp_path / "left.jsonl", "--drop") == 0

    (kept,), (left,) = lines_of(tmp_path / "kept.jsonl"), lines_of(tmp_path / "left.jsonl")
    assert list(left) == KEYS
    assert list(kept) == ["tags", "n", "none", *KEYS]
    assert (kept["tags"], kept["n"], kept["none"]) == (["a", {"b": 1.5}], 3, None)


def test_rows_before_a_quote_that_is_not_closed_are_answered_and_the_command_says_where_it_opened(
    capsys: Captured, where: list[str], tmp_path: Path
) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.jsonl"
    source.write_text('id,text\n1,good\n2,bad\n3,"open\n4,fine\n')

    message = why_not(capsys, "classify", *where, "--input", source, "--output", output, code=1)

    assert message.startswith(f"{source}:4: the quote that opens in line 4 is not closed")
    assert [line["text"] for line in lines_of(tmp_path / "out.jsonl.part")] == ["good", "bad"]
    source.write_text('id,text\n1,good\n2,bad\n3,"closed"\n4,fine\n')
    assert run("classify", *where, "--input", source, "--output", output) == 0
    assert [line["text"] for line in lines_of(output)] == ["good", "bad", "closed", "fine"]


def test_where_no_row_can_be_read_the_end_says_why(capsys: Captured, local: list[str], tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("text\nGood film, but far too long\nBad, too\n")

    assert run("classify", *local, "--input", source, "--output", output) == 1

    assert [(row["label"], row["error"].partition(":")[0]) for row in answered(output)] == [("", "UNREADABLE"), ("", "UNREADABLE")]
    errors = capsys.readouterr().err
    assert errors.startswith("2 of 2 texts have no answer; the first: UNREADABLE: line 2: has 2 fields, but the header has 1 field; ")
    assert "--delimiter, or read each line as a text with --format txt" in errors


@pytest.mark.parametrize(
    ("ending", "content"), [("csv", "text,text_pair\ngood,bad\n"), ("jsonl", '{"text": "good", "text_pair": "bad"}\n')]
)
def test_a_column_of_second_texts_is_read_if_it_is_chosen_and_named_if_it_is_not(
    ending: str, content: str, capsys: Captured, local: list[str], tmp_path: Path
) -> None:
    source = tmp_path / f"in.{ending}"
    source.write_text(content)

    alone = run("classify", *local, "--input", source, "--json")
    shown_alone, note = capsys.readouterr()
    paired = run("classify", *local, "--input", source, "--pair", "text_pair", "--json")
    refused = json.loads(capsys.readouterr().out)

    # The model takes no pairs.
    assert (alone, paired) == (0, 1)
    assert note == f"{source}: the column text_pair is not read; choose it with --pair text_pair\n"
    assert json.loads(shown_alone)["text_pair"] == "bad"
    assert (refused["text_pair"], refused["error"]["code"]) == ("bad", "FAILED_PRECONDITION")


def test_an_output_may_replace_a_file_and_follows_a_link(local: list[str], tmp_path: Path) -> None:
    source, output, link = tmp_path / "in.txt", tmp_path / "out.jsonl", tmp_path / "link.jsonl"
    source.write_text("good\n")
    output.write_text("old\n")
    link.symlink_to(output)

    assert run("classify", *local, "--input", source, "--output", link, "--overwrite") == 0

    assert link.is_symlink()
    assert [line["text"] for line in lines_of(output)] == ["good"]


def test_an_output_that_is_not_a_regular_file_is_refused(capsys: Captured, local: list[str], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("good\n")
    os.mkfifo(tmp_path / "out.jsonl")

    message = why_not(capsys, "classify", *local, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.jsonl", "--overwrite", code=1)

    assert message == f"{tmp_path / 'out.jsonl'}: is not a regular file; use - for standard output"


def test_the_output_may_be_standard_output(capsys: Captured, local: list[str], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("good\n")

    assert run("classify", *local, "--input", tmp_path / "in.txt", "--output", "-") == 0

    assert list(json.loads(capsys.readouterr().out)) == KEYS


def test_texts_that_a_spreadsheet_would_run_get_an_apostrophe_on_request(local: list[str], tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    texts = ["=1+1 good", "+good", "-good", "@good", "\tgood", " =good", "good = bad"]
    source.write_text("".join(json.dumps({"text": text, "n": -1}) + "\n" for text in texts))

    assert run("classify", *local, "--input", source, "--output", tmp_path / "plain.csv") == 0
    assert run("classify", *local, "--input", source, "--output", tmp_path / "safe.csv", "--escape-formulas") == 0

    assert [row["text"] for row in answered(tmp_path / "plain.csv")] == texts
    assert [row["text"] for row in answered(tmp_path / "safe.csv")] == [*(f"'{text}" for text in texts[:6]), "good = bad"]
    assert {row["n"] for row in answered(tmp_path / "safe.csv")} == {"-1"}


@pytest.mark.parametrize("text", ["=1+1 good", "good\r\nfilm\x01", "_x000D_ good", "  good "])
def test_a_spreadsheet_holds_every_text_as_it_is(text: str, local: list[str], tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.xlsx"
    source.write_text(json.dumps({"text": text}) + "\n")

    assert run("classify", *local, "--input", source, "--output", output) == 0

    assert list(read_texts(output)) == [text]


def test_a_text_that_no_cell_can_hold_leaves_the_answers_in_the_part(capsys: Captured, local: list[str], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("good " * 7000)

    message = why_not(capsys, "classify", *local, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.xlsx", code=1)

    assert "row 1 has a text of 35,000 characters; a cell of .xlsx holds 32,767: use .csv; the answers are in" in message
    assert len(lines_of(tmp_path / "out.xlsx.part")) == 1


@pytest.mark.parametrize("name", ["reviews.csv", "missing.jsonl", "data/reviews.CSV.gz"])
def test_the_name_of_a_file_is_not_taken_for_a_text(name: str, capsys: Captured, local: list[str]) -> None:
    assert why_not(capsys, "classify", *local, name, code=2).startswith(f"{name} looks like a file; use --input {name}")


def test_a_parquet_without_the_extra_is_refused_before_the_work(capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.txt").write_text("good\n")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    arguments = ["--target", "127.0.0.1:1", "--input", tmp_path / "in.txt", "--output", tmp_path / "out.parquet"]

    assert "pip install 'sentiment-service[files]'" in why_not(capsys, "classify", *arguments, code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


# Processes of their own


def python(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], timeout=30, check=False, **{"text": True, "capture_output": True, **options})  # type: ignore[call-overload,no-any-return]  # options of run


def test_python_m_sentiment_is_sentiment() -> None:
    ended = python("-m", "sentiment", "settings", "--markdown")

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, markdown_table(settings_table()) + "\n", "")


@pytest.mark.parametrize("command", ["settings", "check", "--print-completion"], ids=["long", "short", "completion"])
def test_a_reader_that_has_seen_enough_ends_the_command_quietly(command: str, bundles: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    arguments = {"settings": [], "check": [str(bundles / "tiny/1")], "--print-completion": ["bash"]}[command]
    try:
        buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        ended = python("-m", "sentiment", command, *arguments, capture_output=False, stdout=write, stderr=subprocess.PIPE, env=buffered)
    finally:
        os.close(write)

    assert (ended.returncode, ended.stderr) == (141, "")


# Standard input


def classify(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return python("-m", "sentiment", "classify", *arguments, **options)


@pytest.mark.parametrize("dash", [["-"], []], ids=["dash", "pipe"])
def test_texts_of_standard_input_are_answered_a_line_each(dash: list[str], server: RunningServer) -> None:
    texts = b"\xef\xbb\xbfa good film\r\nbad\n\ncaf\xe9 good\n" + b"good\n" * 700 + "awful caf\u00e9".encode()

    ended = classify("--target", server.target, "--json", *dash, input=texts, text=False)

    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [line["text"] for line in found] == ["a good film", "bad", "", None, *["good"] * 700, "awful caf\u00e9"]
    assert ["error" in line for line in found] == [False, False, True, True, *[False] * 701]
    assert (ended.returncode, ended.stderr) == (1, b"2 of 705 texts have no answer\n")


def test_a_text_of_standard_input_is_answered_before_the_next_one_comes(server: RunningServer) -> None:
    command = [sys.executable, "-m", "sentiment", "classify", "--target", server.target, "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        answers = []
        for text in ("a", "a bad film", "awful"):
            process.stdin.write(f"{text}\n")
            process.stdin.flush()
            answers.append(process.stdout.readline())
        process.stdin.close()

    assert [answer.split(maxsplit=2)[2].split("  (")[0].strip() for answer in answers] == ["a", "a bad film", "awful"]
    assert process.returncode == 0


@pytest.mark.parametrize(("kind", "rows"), [("csv", ["text,id\n", "good,1\n", '"a bad\n', 'film",2\n']), ("jsonl", ['{"text": "good"}\n'])])
def test_a_table_of_standard_input_is_answered_row_by_row(kind: str, rows: list[str], server: RunningServer) -> None:
    command = [sys.executable, "-m", "sentiment", "classify", "--target", server.target, "--format", kind, "--json"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(rows[:2]))
        process.stdin.flush()
        first = json.loads(process.stdout.readline())
        process.stdin.write("".join(rows[2:]))
        process.stdin.close()
        others = [json.loads(line)["text"] for line in process.stdout]

    assert first["text"] == "good"
    assert others == (["a bad\nfilm"] if kind == "csv" else [])
    assert process.returncode == 0


def test_standard_input_may_be_written_to_a_file_and_continued(local: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, output = "\n".join(TEXTS[:300]), tmp_path / "out.csv"
    source = tmp_path / "in"
    source.write_text(texts)
    with source.open() as stream, monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", stream)
        interrupted(patched, 250, *local, "-", "--output", output)

    ended = classify(*local, "-", "--output", str(output), input=texts)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert list(read_texts(output)) == TEXTS[:300]


@pytest.mark.parametrize("closed", [False, True], ids=["device", "closed"])
def test_without_texts_and_a_pipe_it_says_what_to_type(closed: bool) -> None:
    command = f"exec {sys.executable} -m sentiment classify {'<&-' if closed else '</dev/null'}"
    ended = subprocess.run(["sh", "-c", command], text=True, capture_output=True, timeout=30, check=False)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: no text: give one or more TEXT, or --input FILE, or pipe texts in, one a line\n"


def test_ctrl_c_while_it_reads_and_a_reader_that_ends_are_quiet(server: RunningServer) -> None:
    command = [sys.executable, "-m", "sentiment", "classify", "--target", server.target, "-"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as interrupted, subprocess.Popen(command, **pipes) as unread:  # type: ignore[call-overload]  # options of Popen
        for process in (interrupted, unread):
            process.stdin.write("good\n")
            process.stdin.flush()
            assert process.stdout.readline() == "positive   0.8808  good\n"
        interrupted.send_signal(signal.SIGINT)
        ends = [(interrupted.wait(30), interrupted.stderr.read())]
        unread.stdout.close()
        unread.stdin.write("good\n")
        unread.stdin.flush()
        ends.append((unread.wait(30), unread.stderr.read()))

    assert ends == [(130, ""), (141, "")]


WITHOUT_RUNTIME = """
import sys
for name in ("onnxruntime", "tokenizers", "aiohttp", "pyarrow"):
    sys.modules[name] = None  # importing it raises ImportError

import sentiment.client
from sentiment.cli.main import main

assert not {"sentiment.model", "sentiment.batching", "sentiment.pipeline.served", "sentiment.serving.app"} & set(sys.modules)
sys.exit(main(["classify", "--target", sys.argv[1], "a good film"]))
"""


def test_the_client_works_where_no_model_runtime_is_installed(server: RunningServer) -> None:
    ended = python("-c", WITHOUT_RUNTIME, server.target)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "positive   0.8808  a good film\n", "")


def test_a_server_gives_numpy_one_thread(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}

    ran = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60, check=True
    )

    assert ran.stdout.splitlines()[-1] == "1"
