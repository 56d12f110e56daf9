"""What a killed study leaves behind is gone on with, and never mixed with another's."""

from pathlib import Path

import pytest

from sentiment_models.errors import ModelsError, OtherRun
from sentiment_models.explanations.journal import Journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def test_the_file_is_made_with_the_first_record_and_has_what_was_added(path: Path) -> None:
    first = Journal(path, {"seed": 1})
    assert not path.exists()
    first.add("a", {"value": 0.1})
    first.add("b", {"value": None})

    again = Journal(path, {"seed": 1})

    assert [again.get(key) for key in "abc"] == [{"value": 0.1}, {"value": None}, None]


def test_a_line_that_was_cut_off_is_dropped_and_the_next_one_whole(path: Path) -> None:
    first = Journal(path, {"seed": 1})
    first.add("a", {"value": 1})
    first.add("b", {"value": 2})
    path.write_bytes(path.read_bytes()[:-5])

    again = Journal(path, {"seed": 1})
    again.add("c", {"value": 3})

    assert again.get("b") is None
    last = Journal(path, {"seed": 1})
    assert [last.get(key) for key in "abc"] == [{"value": 1}, None, {"value": 3}]


def test_a_cut_off_first_line_is_written_again(path: Path) -> None:
    path.write_bytes(b'{"settings": {"se')

    Journal(path, {"seed": 1}).add("a", {})

    assert Journal(path, {"seed": 1}).get("a") == {}


def test_a_journal_of_other_settings_is_refused_by_the_name_of_what_differs(path: Path) -> None:
    Journal(path, {"seed": 1, "texts": 5}).add("a", {})

    with pytest.raises(OtherRun, match=r"other settings \(texts\);"):
        Journal(path, {"seed": 1, "texts": 6})


def test_two_processes_never_write_one_journal(path: Path) -> None:
    first, second = Journal(path, {"seed": 1}), Journal(path, {"seed": 2})
    first.add("a", {"value": 1})

    with pytest.raises(ModelsError, match="another process writes to this file"):
        second.add("a", {"value": 2})
    first.add("b", {"value": 3})

    again = Journal(path, {"seed": 1})
    assert (again.get("a"), again.get("b")) == ({"value": 1}, {"value": 3})


def test_a_record_that_another_process_wrote_just_before_the_lock_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_another_file_is_refused_and_left_alone(path: Path, content: str) -> None:
    path.write_text(content)

    with pytest.raises(ModelsError, match="not a journal of a study"):
        Journal(path, {"seed": 1})

    assert path.read_text() == content


def test_a_damaged_line_is_named_by_its_number(path: Path) -> None:
    Journal(path, {}).add("a", {})
    path.write_bytes(path.read_bytes() + b"nonsense\n")

    with pytest.raises(ModelsError, match=":3: damaged"):
        Journal(path, {})


def test_without_a_file_it_is_kept_in_memory(tmp_path: Path) -> None:
    journal = Journal(None, {})
    journal.add("a", {"value": 1})

    assert journal.get("a") == {"value": 1}
    assert list(tmp_path.iterdir()) == []
