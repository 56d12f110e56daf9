"""The index of a journal: it finds what a scan of all files finds, whatever happens to them, and reads only what is new."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sentiment.observability import journal_index
from sentiment.observability.journal import ANSWER, Answered, Labelled, entry_line, line_of, rfc_3339
from sentiment.observability.journal_files import by_last_write, files_of
from sentiment.observability.journal_index import Asked, JournalIndex

BEGUN = 1_700_000_000.0
# Some are escaped in a line, and look there like its end.
IDS = ("a", "b", 'a","item":0,"priority"', "a\\", '"', '\\",\\"', "x" * 128)
# The names of tokens: an answer to another one has another name.
CALLERS = ("", "shop", "web-2.a")
NAMES = [Asked(request_id, item, caller) for caller in CALLERS for request_id in IDS for item in (0, 1, 11)]
NEVER = Asked("never written", 0)
WHOLE = 2**40


def answer(name: Asked, at: float, text: str | None = None) -> bytes:
    fields = {"model": "tiny/1", "digest": "d", "priority": "bulk", "tokens": 5, "truncated": False, "label": "good", "abstain": False}
    found = Answered(**{"at": at, **name._asdict(), **fields, "scores": {'"': 1.0}, "text": text, "text_pair": None})  # type: ignore[arg-type]
    return entry_line(found, with_text=True)


def label(name: Asked, at: float) -> bytes:
    labelled = Labelled(at, "tiny/1", "d", name.request_id, name.item, name.caller, "bad", "good", False, None, None)
    return entry_line(labelled, with_text=False)


@dataclass
class Written:
    """A journal as processes leave it, at made-up times. Each has a file at a time, and no name comes twice."""

    folder: Path
    now: float = BEGUN
    begun: int = 0
    # By process: its file, and what of its lines is not yet on the disk.
    growing: dict[int, tuple[Path, bytes]] = field(default_factory=dict)

    def write(self, process: int, lines: list[bytes], cut: int = 0) -> None:
        """Append lines, without the last ``cut`` bytes of the last one: these follow with the next ones."""
        if process not in self.growing:
            self.growing[process] = self.folder / f"20260101T{self.begun:06}.000000Z-server-1.jsonl", b""
            self.begun += 1
        path, late = self.growing[process]
        content = late + b"".join(lines)
        done = len(content) - min(cut, len(lines[-1]) - 1)
        with path.open("ab") as stream:
            stream.write(content[:done])
        os.utime(path, (self.now, self.now))
        self.growing[process] = path, content[done:]

    def end(self, process: int) -> None:
        """A process begins another file with its next line; this one may end torn."""
        self.growing.pop(process, None)

    def remove(self, place: int) -> None:
        """Remove a file, the oldest is 0, of any process."""
        for path in files_of(self.folder)[place : place + 1]:
            path.unlink()
            self.growing = {process: (file, late) for process, (file, late) in self.growing.items() if file != path}

    def scanned(self) -> dict[Asked, dict[str, Any]]:
        """The newest answers: those of the last lines of each file, of those the latest."""
        newest: dict[Asked, dict[str, Any]] = {}
        for _, path in by_last_write(self.folder):
            rows = [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
            last = {Asked(row["request_id"], row["item"], row.get("caller", "")): row for row in rows if row["journal"] == ANSWER}
            for name, row in last.items():
                if name not in newest or row["time"] > newest[name]["time"]:
                    newest[name] = row
        return newest


def found(index: JournalIndex, bytes_max: int = WHOLE) -> dict[Asked, dict[str, Any]]:
    """What it finds once all is read. What it is certain of before must not change."""
    early: dict[Asked, dict[str, Any]] = {}
    while True:
        rows, whole = index.find([*NAMES, NEVER], bytes_max)
        assert {name: rows.get(name) for name in early} == early
        if whole:
            return rows
        early = rows


@pytest.mark.parametrize("edited", [{"label": None}, {"time": 5}, {"scores": []}])
def test_an_edited_line_is_not_an_answer_and_others_are_found(tmp_path: Path, edited: dict[str, object]) -> None:
    spoilt, whole = Asked("a", 0), Asked("a", 1)
    Written(tmp_path).write(0, [line_of(json.loads(answer(spoilt, BEGUN)) | edited), answer(whole, BEGUN)])

    rows, _ = JournalIndex(tmp_path).find([spoilt, whole], WHOLE)

    assert [*rows] == [whole]


LINES = st.tuples(st.sampled_from(NAMES), st.booleans(), st.sampled_from((None, "", "good " * 20, '"request_id":"a","item":0,"priority"')))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3), st.lists(LINES, min_size=1, max_size=8), st.sampled_from((0, 1, 40, 10**6))),
        st.tuples(st.just("end"), st.integers(0, 3)),
        st.tuples(st.just("remove"), st.integers(0, 5)),
        st.tuples(st.just("look"), st.sampled_from((1, 500, WHOLE))),
    ),
    max_size=30,
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], print_blob=True)
@given(steps=STEPS, block_bytes=st.sampled_from((2, 300, 2**18)))
def test_the_index_finds_what_a_scan_of_all_files_finds(
    monkeypatch: pytest.MonkeyPatch, steps: list[tuple[Any, ...]], block_bytes: int
) -> None:
    monkeypatch.setattr(journal_index, "BLOCK_BYTES", block_bytes)
    with TemporaryDirectory() as folder:
        journal, index = Written(Path(folder)), JournalIndex(Path(folder))
        for step, *arguments in steps:
            journal.now += 0.5
            if step == "write":
                file, lines, cut = arguments
                at = journal.now
                journal.write(file, [label(name, at) if is_label else answer(name, at, text) for name, is_label, text in lines], cut)
            elif step == "look":
                index.find(NAMES, *arguments)
            else:
                getattr(journal, step)(*arguments)

        assert found(JournalIndex(Path(folder)), 100) == found(index) == journal.scanned()


def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the bytes that the index reads of files to know what is in them."""
    read: list[int] = []
    read_on = journal_index._File.read_on

    def counted(*arguments: Any) -> int:
        read.append(read_on(*arguments))
        return read[-1]

    monkeypatch.setattr(journal_index._File, "read_on", counted)
    return read


@pytest.fixture
def journal(tmp_path: Path) -> Written:
    """Three files of a hundred answers, the first the oldest."""
    written = Written(tmp_path)
    for file in range(3):
        written.now += 10
        written.write(file, [answer(Asked(f"{file}-{number}", 0), written.now) for number in range(100)])
    return written


def test_only_new_bytes_are_read_whatever_is_asked_for(journal: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    index, read = JournalIndex(journal.folder), read_bytes(monkeypatch)
    size = sum(path.stat().st_size for path in journal.folder.iterdir())
    new = answer(NAMES[0], journal.now)

    for _ in range(3):
        assert index.find([NEVER], WHOLE) == ({}, True)
    assert sum(read) == size
    journal.write(2, [new])
    assert index.find([NAMES[0], NEVER], WHOLE) == ({NAMES[0]: json.loads(new)}, True)

    assert sum(read) == size + len(new)


def test_what_is_known_of_a_file_goes_with_it(journal: Written) -> None:
    index = JournalIndex(journal.folder)
    index.find([NEVER], WHOLE)
    assert sum(file.entries for file in index._files.values()) == 300
    for _ in range(2):
        journal.remove(0)

    assert index.find([Asked("0-1", 0), Asked("2-1", 0)], WHOLE)[0].keys() == {Asked("2-1", 0)}
    assert sum(file.entries for file in index._files.values()) == 100


def test_answers_beyond_the_limit_are_not_known_the_oldest_first(journal: Written) -> None:
    index = JournalIndex(journal.folder, answers_max=150)

    assert index.find([Asked(f"{file}-1", 0) for file in range(3)], WHOLE)[0].keys() == {Asked("2-1", 0), Asked("1-1", 0)}
    # Room for the newest comes first, also when they come later.
    journal.now += 10
    journal.write(3, [answer(Asked(f"3-{number}", 0), journal.now) for number in range(100)])
    assert index.find([Asked(f"{file}-1", 0) for file in range(4)], WHOLE)[0].keys() == {Asked("3-1", 0), Asked("2-1", 0)}
    assert sum(file.entries for file in index._files.values()) == 200


def test_a_recent_answer_is_certain_before_old_files_are_read(journal: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    index, read = JournalIndex(journal.folder), read_bytes(monkeypatch)
    size = files_of(journal.folder)[2].stat().st_size

    found, whole = index.find([Asked("2-99", 0), Asked("0-0", 0)], size + 1)

    assert (found.keys(), whole) == ({Asked("2-99", 0)}, False)
    assert sum(read) < 3 * size


def test_an_id_in_every_line_takes_the_memory_of_one_answer_a_block(tmp_path: Path) -> None:
    journal = Written(tmp_path)
    journal.write(0, [answer(NAMES[0], BEGUN + number) for number in range(1000)])
    index = JournalIndex(tmp_path)

    assert index.find([NAMES[0]], WHOLE)[0][NAMES[0]]["time"] == rfc_3339(BEGUN + 999)
    assert sum(file.entries for file in index._files.values()) < 5


def test_a_file_that_cannot_be_read_hides_no_other_one(journal: Written) -> None:
    index = JournalIndex(journal.folder)
    # Something else has the name of a file.
    path = files_of(journal.folder)[1]
    path.unlink()
    path.mkdir()

    assert index.find([Asked(f"{file}-1", 0) for file in range(3)], WHOLE)[0].keys() == {Asked("0-1", 0), Asked("2-1", 0)}


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        JournalIndex(tmp_path / "gone").find([NEVER], WHOLE)


def test_an_answer_is_not_certain_while_a_file_may_have_a_newer_one(journal: Written) -> None:
    index = JournalIndex(journal.folder)
    older, newer = answer(NAMES[0], journal.now + 1), answer(NAMES[0], journal.now + 3)
    for process, line in ((0, older), (1, newer), (0, answer(NEVER, journal.now))):
        journal.now += 3
        journal.write(process, [line])
    last = files_of(journal.folder)[0].stat().st_size

    assert index.find([NAMES[0]], last + 1) == ({}, False)
    assert index.find([NAMES[0]], WHOLE)[0] == {NAMES[0]: json.loads(newer)}


def test_a_file_that_grows_line_by_line_is_looked_up_as_fast_as_one_that_was_read_at_once(tmp_path: Path) -> None:
    journal, index = Written(tmp_path), JournalIndex(tmp_path)
    for number in range(300):
        journal.write(0, [answer(Asked(str(number), 0), BEGUN)])
        index.find([NEVER], WHOLE)

    (file,) = index._files.values()
    assert len(file._runs) <= 9
    assert len(file._begins) == 1


def test_a_file_replaced_by_an_edited_copy_is_read_again(journal: Written) -> None:
    index, path = JournalIndex(journal.folder), files_of(journal.folder)[0]
    index.find([NEVER], WHOLE)
    copy = path.with_suffix(".part")
    copy.write_bytes(b"".join(path.open("rb").readlines()[50:]))
    copy.replace(path)

    assert index.find([Asked("0-1", 0), Asked("0-99", 0)], WHOLE)[0].keys() == {Asked("0-99", 0)}
