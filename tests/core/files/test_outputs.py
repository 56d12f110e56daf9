"""Files that a user names for a result: links, devices, pipes, standard output, permissions."""

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sentiment.cli.main import main
from sentiment.errors import BadSettings
from sentiment.files.errors import BadFile
from sentiment.files.output import new_file, new_stream, refuse_same_file, replaced
from sentiment_tools.planning.machine import Machine
from tests.conftest import leave_out

Captured = pytest.CaptureFixture[str]
# Of Linux: the numbers of its null device and of the one that is always full.
NULL, FULL = os.makedev(1, 3), os.makedev(1, 7)


def device(path: Path, number: int) -> Path:
    """A device of a test's own, so that a failing test replaces none of the machine's."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, number)
        path.write_bytes(b"")
    except OSError as error:
        leave_out("a device", f"cannot be made: {error.strerror}")
    return path


def write(path: Path, text: str = "new") -> None:
    with new_file(path) as written:
        written(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_is_complete_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    with new_file(path) as written:
        written("whole \u2028")
        assert not path.exists()
    assert path.read_text(encoding="utf-8") == "whole \u2028"

    with pytest.raises(KeyError), new_file(path) as written:
        written("half")
        raise KeyError

    assert path.read_text(encoding="utf-8") == "whole \u2028"
    assert names(tmp_path) == ["page.html"]


def test_a_file_without_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"b\.html\.part: cannot be written: No such file or directory"):
        write(tmp_path / "nowhere" / "b.html")


@pytest.mark.parametrize("there", [True, False], ids=["file", "nothing yet"])
def test_a_link_stays_and_what_it_leads_to_is_replaced(there: bool, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "page.html", tmp_path / "link.html"
    if there:
        target.write_text("old")
    (tmp_path / "other.html").symlink_to("real/page.html")
    link.symlink_to("other.html")

    write(link)

    assert (link.is_symlink(), target.is_symlink(), target.read_text()) == (True, False, "new")
    assert names(tmp_path / "real") == ["page.html"]


def test_a_replaced_file_leaves_its_permissions_and_owner(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    if not os.geteuid():
        os.chown(path, 12345, 54321)
    path.chmod(0o2604)
    before = path.stat()

    write(path)

    after = path.stat()
    assert path.read_text() == "new"
    assert after.st_ino != before.st_ino
    assert (after.st_uid, after.st_gid, oct(after.st_mode)) == (before.st_uid, before.st_gid, oct(before.st_mode))


@pytest.mark.parametrize("link", [False, True], ids=["itself", "by a link"])
def test_a_pipe_is_written_through_and_stays(link: bool, tmp_path: Path) -> None:
    pipe = path = tmp_path / "pipe"
    os.mkfifo(pipe)
    if link:
        path = tmp_path / "link"
        path.symlink_to(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()

    write(path)

    reader.join(60)
    assert read == ["new"]
    assert pipe.is_fifo()
    assert path.is_symlink() is link


def test_a_pipe_whose_reader_leaves_is_an_error(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    with pytest.raises(BadFile, match="pipe: cannot be written: Broken pipe"), new_file(pipe) as written:
        os.close(reader)
        written("new")


def test_a_device_is_written_through_and_stays(tmp_path: Path) -> None:
    null = device(tmp_path / "null", NULL)

    write(null)

    assert null.is_char_device()
    assert names(tmp_path) == ["null"]


def test_a_full_device_is_an_error(tmp_path: Path) -> None:
    full = device(tmp_path / "full", FULL)

    with pytest.raises(BadFile, match=r"full: cannot be written: No space left on device; make room and repeat the command"):
        write(full)
    with pytest.raises(BadFile, match=r"full: cannot be written: No space left"), new_stream(full) as stream:
        stream.write(b"new")


@pytest.mark.parametrize("link", [False, True], ids=["itself", "by a link"])
def test_a_folder_is_refused(link: bool, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)

    with pytest.raises(BadFile, match="expected a file, got a folder"):
        write(tmp_path / "link" if link else tmp_path)


def test_a_socket_and_a_link_to_itself_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")

        for name, why in (("socket", "No such device or address"), ("loop", "Too many levels of symbolic links")):
            with pytest.raises(BadFile, match=f"{name}: cannot be written: {why}"):
                write(Path(name))
    assert Path("socket").is_socket()


def test_what_is_replaced_is_the_end_of_all_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("out.csv")
    os.mkfifo(tmp_path / "pipe")

    found = [replaced(path) for path in (tmp_path / "link", tmp_path / "pipe", Path("-"))]

    assert found == [tmp_path / "out.csv", None, None]


# Standard output by its names. Between two lines that are printed, so that none may be lost or come in another order.
PRINTS = """
import sys
from pathlib import Path
from sentiment.files.output import beside, new_file
path = Path(sys.argv[1])
print("before")
with new_file(path) as write:
    write("result\\n")
print("after", file=beside(path))
print("end")
"""


@pytest.mark.parametrize(
    ("path", "where"),
    # A pipe has no name of its own.
    [(path, where) for path in ("-", "/dev/stdout", "/dev/fd/1", "link") for where in ("a pipe", "a file", "a file to append to")]
    + [("out", "a file"), ("out", "a file to append to")],
)
def test_standard_output_by_any_name_gets_the_result_in_its_place_and_alone(path: str, where: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/stdout")
    out = tmp_path / "out"
    out.write_text("old\n")
    command = [sys.executable, "-c", PRINTS, path]

    with out.open("ab" if "append" in where else "wb") as stream:
        given = subprocess.PIPE if where == "a pipe" else stream
        ended = subprocess.run(command, cwd=tmp_path, stdout=given, stderr=subprocess.PIPE, text=True, timeout=60, check=True)

    kept = "old\n" if "append" in where else ""
    assert (ended.stdout or out.read_text()).removeprefix(kept) == "before\nresult\nend\n"
    assert ended.stderr == "after\n"
    assert names(tmp_path) == ["link", "out"]


def test_the_file_that_is_standard_error_is_written_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as stream:
        subprocess.run([sys.executable, "-c", PRINTS, "/dev/stderr"], stdout=stream, stderr=stream, timeout=60, check=True)
        code = "import sys; sys.stderr.write('first\\n');" + PRINTS
        subprocess.run([sys.executable, "-c", code, str(log)], stdout=subprocess.DEVNULL, stderr=stream, timeout=60, check=True)

    assert log.read_text() == "before\nresult\nafter\nend\nfirst\nresult\n"


def test_an_open_file_without_a_name_is_written_through(tmp_path: Path) -> None:
    with (tmp_path / "gone").open("wb+") as stream:
        (tmp_path / "gone").unlink()

        write(Path(f"/dev/fd/{stream.fileno()}"))

        assert stream.read() == b"new"
    assert names(tmp_path) == []


def test_two_options_for_one_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("page")

    for first, second in ((tmp_path / "link", tmp_path / "page"), (Path("-"), Path("-"))):
        with pytest.raises(BadSettings, match="--json and --html are the same file"):
            refuse_same_file(json=first, html=second, save=None)
    refuse_same_file(json=Path("/dev/null"), html=Path("/dev/null"), save=None, costs=tmp_path / "other")


# The commands


@pytest.fixture
def commands(bundles: Path, tmp_path: Path) -> dict[str, list[str]]:
    """Commands without the path that they write to, by that option."""
    texts, costs = tmp_path / "in.txt", tmp_path / "costs.json"
    texts.write_text("a good film\nawful\n" * 60)
    costs.write_text(Machine({(1, 8): 1e-3, (1, 512): 64e-3}, runners=1, noise=0.1, crowding=1.05).to_json())
    return {
        "explain --html": ["explain", "a good film", "--local", "--bundles", str(bundles), "--html"],
        "watch --json": ["watch", "--input", str(texts), "--bundles", str(bundles), "--json"],
        "watch --html": ["watch", "--input", str(texts), "--bundles", str(bundles), "--html"],
        "plan --json": ["plan", "--law", "poisson:20", "--requests", "200", "--replicas", "1", "--costs", str(costs), "--json"],
    }


@pytest.mark.parametrize("name", ["explain --html", "watch --json", "watch --html", "plan --json"])
def test_a_command_prints_its_result_alone_and_the_rest_on_standard_error(
    name: str, commands: dict[str, list[str]], capsys: Captured, tmp_path: Path
) -> None:
    assert main([*commands[name], str(tmp_path / "there")]) == 0
    beside = capsys.readouterr().out

    assert main([*commands[name], "-"]) == 0

    found = capsys.readouterr()
    kind = name.split("--")[1]
    assert found.out.endswith("}\n") and json.loads(found.out) if kind == "json" else found.out.lower().startswith("<!doctype html>")
    # The page has the time that it took, so its number of bytes varies.
    assert beside.splitlines()[-1].split()[-1] == found.err.splitlines()[-1].split()[-1]
    assert not Path("-").exists()


@pytest.mark.parametrize("name", ["explain --html", "watch --json", "plan --json"])
def test_no_command_replaces_a_device(name: str, commands: dict[str, list[str]], tmp_path: Path) -> None:
    null = device(tmp_path / "null", NULL)

    assert main([*commands[name], str(null)]) == 0

    assert null.is_char_device()
