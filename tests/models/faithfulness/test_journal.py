"""What a killed study leaves behind is gone on with, and never mixed with another's."""

from pathlib import Path

import pytest

from sentiment_models.errors import ModelsError, OtherRun
from sentiment_models.explanations.journal import Journal


def test_what_was_added_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first = Journal(path, {"seed": 1})
    first.add("a", {"value": 0.1})
    first.add("b", {"value": None})

    again = Journal(path, {"seed": 1})

    assert again.get("a") == {"value": 0.1}
    assert again.get("b") == {"value": None}
    assert again.get("c") is None


def test_a_line_that_was_cut_off_is_dropped_and_the_next_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first = Journal(path, {"seed": 1})
    first.add("a", {"value": 1})
    first.add("b", {"value": 2})
    path.write_bytes(path.read_bytes()[:-5])

    again = Journal(path, {"seed": 1})
    again.add("c", {"value": 3})

    assert again.get("b") is None
    last = Journal(path, {"seed": 1})
    assert [last.get(key) for key in "abc"] == [{"value": 1}, None, {"value": 3}]


def test_a_first_line_that_was_cut_off_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b'{"settings": {"se')

    Journal(path, {"seed": 1}).add("a", {})

    assert Journal(path, {"seed": 1}).get("a") == {}


def test_a_journal_of_other_settings_is_refused_by_the_name_of_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Journal(path, {"seed": 1, "texts": 5}).add("a", {})

    with pytest.raises(OtherRun, match=r"other settings \(texts\);"):
        Journal(path, {"seed": 1, "texts": 6})


def test_two_processes_never_write_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first, second = Journal(path, {"seed": 1}), Journal(path, {"seed": 2})
    first.add("a", {"value": 1})

    with pytest.raises(ModelsError, match="another process writes to this file"):
        second.add("a", {"value": 2})
    first.add("b", {"value": 3})

    again = Journal(path, {"seed": 1})
    assert (again.get("a"), again.get("b")) == ({"value": 1}, {"value": 3})


def test_a_record_that_another_process_wrote_just_before_the_lock_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    first, second = Journal(path, {"seed": 1}), Journal(path, {"seed": 1})

    def claimed(_: object) -> bool:
        monkeypatch.undo()
        second.add("b", {"value": 2})
        return True

    monkeypatch.setattr("sentiment_models.explanations.journal.claim", claimed)
    with pytest.raises(ModelsError, match="another process writes to this file"):
        first.add("a", {"value": 1})

    assert Journal(path, {"seed": 1}).get("b") == {"value": 2}


@pytest.mark.parametrize("content", ["label\ttext\n", "[]\n", '{"settings": 3}\n', "a note without an end", '{"settings": 3'])
def test_another_file_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "data.tsv"
    path.write_text(content)

    with pytest.raises(ModelsError, match="not a journal of a study"):
        Journal(path, {"seed": 1})

    assert path.read_text() == content


def test_a_damaged_line_is_told_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Journal(path, {}).add("a", {})
    path.write_bytes(path.read_bytes() + b"nonsense\n")

    with pytest.raises(ModelsError, match=":3: damaged"):
        Journal(path, {})


def test_nothing_is_written_before_there_is_a_record(tmp_path: Path) -> None:
    path = tmp_path / "journal"

    journal = Journal(path, {"seed": 1})

    assert not path.exists()
    journal.add("a", {"value": 1})
    journal.add("b", {"value": 2})
    assert Journal(path, {"seed": 1}).get("b") == {"value": 2}


def test_without_a_file_it_is_kept_in_memory(tmp_path: Path) -> None:
    journal = Journal(None, {})
    journal.add("a", {"value": 1})

    assert journal.get("a") == {"value": 1}
    assert list(tmp_path.iterdir()) == []
