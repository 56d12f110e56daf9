"""Commands whose standard input, output or error is closed, as launchers and cron may leave them, or cannot be written."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from sentiment_tools.planning.machine import Machine
from tests.core.servers import until
from tests.programs import free_port

CLOSED = "error: standard output: is closed; redirect it, for example to a file\n"
NEEDS_ROOM = "error: standard output: cannot be written: No space left on device; make room and repeat the command\n"
# Nobody listens there: a command that worked first would say so.
NOBODY = "127.0.0.1:1"
LOAD = ["--law", "poisson:20", "--requests", "200", "--replicas", "1"]


def shell(module: str, arguments: list[str], streams: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command with streams that a shell closes or redirects. Buffered, as most are: what fails then fails last."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = ["bash", "-c", f'exec "$@" {streams}', "bash", sys.executable, "-m", module, *arguments]
    given = {"text": True, "capture_output": True, "stdin": subprocess.DEVNULL, "timeout": 120, "env": environment, **options}
    return subprocess.run(command, check=False, **given)  # type: ignore[call-overload,no-any-return]  # options of run


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("sentiment", ["--help"]),
        ("sentiment", ["--version"]),
        ("sentiment", ["--print-completion", "bash"]),
        ("sentiment", ["settings"]),
        ("sentiment", ["classify", "--target", NOBODY, "good"]),
        ("sentiment", ["explain", "--target", NOBODY, "good"]),
        ("sentiment", ["explain", "--target", NOBODY, "good", "--html", "-"]),
        ("sentiment", ["check", "nosuch"]),
        ("sentiment", ["watch", "--input", "nosuch"]),
        ("sentiment", ["plan", "--costs", "nosuch", *LOAD]),
        ("sentiment", ["loadtest", "--target", NOBODY, "--rate", "1"]),
        ("sentiment", ["top", NOBODY, "--once"]),
        ("sentiment", ["top", NOBODY]),
        ("sentiment", ["models", "list", "--target", NOBODY]),
        ("sentiment_tools.corpus", ["--help"]),
        ("sentiment_models.cli", ["--help"]),
        ("sentiment_models.cli", ["verify", "nosuch"]),
        ("sentiment_models.cli", ["diff", "nosuch", "nosuch"]),
        ("sentiment_models.cli", ["evaluate", "nosuch", "nosuch"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_result_that_standard_output_cannot_take_is_an_error_before_the_work(module: str, arguments: list[str], tmp_path: Path) -> None:
    ended = shell(module, arguments, ">&-", cwd=tmp_path)

    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", CLOSED)


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_results_in_files_need_no_standard_stream(streams: str, bundles: Path, tmp_path: Path) -> None:
    texts, costs = tmp_path / "in.txt", tmp_path / "costs.json"
    texts.write_text("a good film\nawful\n")
    costs.write_text(Machine({(1, 8): 1e-3, (1, 512): 64e-3}, runners=1, noise=0.1, crowding=1.05).to_json())
    local = ["--bundles", str(bundles)]
    commands = {
        "out.jsonl": ["classify", "--local", *local, "--input", str(texts), "--output"],
        "page.html": ["explain", "--local", *local, "good", "--html"],
        "found.json": ["watch", *local, "--input", str(texts), "--json"],
        "plan.json": ["plan", "--costs", str(costs), *LOAD, "--json"],
    }

    for name, command in commands.items():
        ended = shell("sentiment", [*command, str(tmp_path / name)], streams)
        assert ended.returncode == 0, ended.stderr
        assert "Traceback" not in ended.stderr

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*commands, "in.txt", "costs.json"])


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize(
    ("arguments", "code", "printed"),
    [
        (["settings", "--markdown"], 0, True),
        (["classify", "--input", "nosuch.txt"], 1, False),
        (["classify", "--local", "--model", "nosuch", "good"], 3, False),
        (["classify", "--restart", "good"], 2, False),
        (["nosuch"], 2, False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_without_standard_error_the_exit_code_and_the_output_are_the_same(
    streams: str, arguments: list[str], code: int, printed: bool, tmp_path: Path
) -> None:
    ended = shell("sentiment", arguments, streams, cwd=tmp_path)

    assert (ended.returncode, bool(ended.stdout), ended.stderr) == (code, printed, "")


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("sentiment", ["settings"]),
        ("sentiment", ["--help"]),
        ("sentiment_models.cli", ["--help"]),
        ("sentiment_tools.corpus", ["--help"]),
    ],
    ids=str,
)
def test_a_full_disk_behind_standard_output_is_an_error(module: str, arguments: list[str]) -> None:
    ended = shell(module, arguments, ">/dev/full")

    assert (ended.returncode, ended.stderr) == (1, NEEDS_ROOM)


def test_characters_that_the_output_has_not_are_escapes_and_json_keeps_its_value(bundles: Path) -> None:
    text, environment = "a good caf\u00e9 \U0001f600", {**os.environ, "PYTHONIOENCODING": "ascii"}
    of_model = ["--local", "--bundles", str(bundles), "--model", "tiny", text]

    plain, as_json = (shell("sentiment", ["classify", *more, *of_model], "", env=environment) for more in ([], ["--json"]))

    assert (plain.returncode, as_json.returncode) == (0, 0), plain.stderr
    assert "a good caf\\u00e9 \\ud83d\\ude00" in plain.stdout
    assert json.loads(as_json.stdout)["text"] == text


def test_texts_of_a_closed_standard_input_are_an_error(bundles: Path) -> None:
    ended = shell("sentiment", ["classify", "--local", "--bundles", str(bundles), "-"], "<&-")

    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "error: standard input: is closed\n")


OPENS = """
import json, os, socket, subprocess, sys
from sentiment.files.standard_streams import standard_streams
with standard_streams():
    with socket.socket() as opened:
        code = "import os; print([os.readlink(f'/proc/self/fd/{number}') for number in (0, 2)])"
        child = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True).stdout
        print("lost", file=sys.stderr)
        with open(sys.argv[1], "w") as found:
            json.dump([opened.fileno() > 2, child], found)
"""


def test_no_socket_gets_the_number_of_a_closed_stream_and_children_have_it_too(tmp_path: Path) -> None:
    found = tmp_path / "found"

    subprocess.run(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", sys.executable, "-c", OPENS, str(found)], timeout=120, check=True)

    assert json.loads(found.read_text()) == [True, "['/dev/null', '/dev/null']\n"]


@pytest.mark.parametrize("front_ends", ["0", "1"])
@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_server_needs_no_standard_stream(streams: str, front_ends: str, bundles: Path, tmp_path: Path) -> None:
    port = free_port()
    flags = ["--bundles", str(bundles), "--grpc-listen", "127.0.0.1:0", "--http-listen", f"127.0.0.1:{port}", "--drain-wait-s", "0"]
    command = ["bash", "-c", f'exec "$@" {streams}', "bash", sys.executable, "-m", "sentiment", "serve", "--front-ends", front_ends, *flags]

    def ready() -> bool:
        assert process.poll() is None
        with suppress(OSError):
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10).status == 200
        return False

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        try:
            until(ready, "the server is ready")
        finally:
            process.terminate()
            out, err = process.communicate(timeout=120)

    assert (process.returncode, out) == (0, "")
    assert ("drained" in err) == ("2>" not in streams)
    assert not re.search("Traceback|error", err)
