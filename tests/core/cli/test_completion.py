"""Completion as a user has it: the script that the command prints, in the shell that it is for, on a terminal."""

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sentiment.cli.main import main

# A ceiling for a busy machine.
WAIT_S_MAX = 120.0
# Shells and what makes them complete: read the script as the guide says, and let the command show what it is called with.
BASH = "source {script}"
ZSH = "fpath=({folder} $fpath); autoload -U compinit; compinit -u -D"
SHOW = 'sentiment() { echo "<$*>"; }'
# What is typed before Tab, and what the command is then called with.
TYPED = {
    "cla": "classify",
    "classify --trunc": "classify --truncation",
    "classify --truncation head_": "classify --truncation head_tail",
    "classify --input revi": "classify --input reviews.csv",
    "classify -i revi": "classify -i reviews.csv",
    "classify --bundles bun": "classify --bundles bundles",
    "serve --tls-cert-file revi": "serve --tls-cert-file reviews.csv",
    "models unl": "models unload",
    "serve --precision int": "serve --precision int8",
}


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Path]:
    """Write the script of a shell under the name that the shell looks for."""

    def write(shell: str) -> Path:
        with pytest.raises(SystemExit):
            main(["--print-completion", shell])
        path = tmp_path / {"bash": "sentiment", "zsh": "_sentiment", "fish": "sentiment.fish"}[shell]
        path.write_text(capsys.readouterr().out)
        return path

    return write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file and a folder to complete."""
    folder = tmp_path / "here"
    (folder / "bundles").mkdir(parents=True)
    (folder / "reviews.csv").touch()
    return folder


@pytest.mark.parametrize(
    ("command", "prepare"),
    [
        pytest.param(["bash", "--norc", "--noprofile", "-i"], BASH, marks=pytest.mark.needs_tool("bash"), id="bash"),
        pytest.param(["zsh", "-f", "-i"], ZSH, marks=pytest.mark.needs_tool("zsh"), id="zsh"),
    ],
)
def test_tab_completes_commands_options_choices_and_files(
    command: list[str], prepare: str, script: Callable[[str], Path], folder: Path
) -> None:
    path = script(command[0])
    # END is written so that the echo of what is typed does not have it.
    lines = [prepare.format(script=path, folder=path.parent), SHOW, *(f"sentiment {typed}\t" for typed in TYPED), 'echo "E""ND"']

    shown = typed_into(command, lines, folder)

    # zsh takes the slash of a folder away at Enter.
    assert [called.rstrip("/") for called in re.findall(r"^<(.*)>$", shown, re.M)] == list(TYPED.values())


def typed_into(command: list[str], lines: list[str], folder: Path) -> str:
    """What a shell on a terminal shows when these lines are typed."""
    main_end, terminal = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": str(folder), "PS1": "$ "}
    shell = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=folder, env=environment, start_new_session=True)
    os.close(terminal)
    shown, ends_at = b"", time.monotonic() + WAIT_S_MAX
    try:
        # Shells read one key after the other, so nothing has to wait for a completion.
        os.write(main_end, "".join(f"{line}\n" for line in lines).encode())
        while b"END" not in shown and select.select([main_end], [], [], ends_at - time.monotonic())[0]:
            shown += os.read(main_end, 65536)
    finally:
        shell.kill()
        shell.wait()
        os.close(main_end)
    return shown.decode(errors="replace").replace("\r", "")


@pytest.mark.needs_tool("fish")
def test_fish_completes_commands_options_choices_and_files(script: Callable[[str], Path], folder: Path) -> None:
    path = script("fish")

    found = {}
    for typed, wanted in TYPED.items():
        command = ["fish", "--no-config", "--command", f"source {path}; complete --do-complete 'sentiment {typed}'"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=WAIT_S_MAX, check=True)
        found[typed] = [line.partition("\t")[0].rstrip("/") for line in done.stdout.splitlines()]
        assert wanted.split()[-1] in found[typed], (typed, found[typed])

    assert found["classify --input revi"] == ["reviews.csv"]
