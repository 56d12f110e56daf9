"""deploy/RELIABILITY.md shows the recorded results of every fault test."""

from tests.core.faults import report

WORDS_MAX = 12


def test_the_page_is_made_of_the_records_that_are_kept() -> None:
    assert report.PAGE.read_text(encoding="utf-8") == report.page(report.kept(), report.declared())


def test_each_fault_has_its_record_and_lost_nothing() -> None:
    records = report.kept()

    assert {report.test_of(record) for record in records} == set(report.declared())
    assert {(record["calls"]["wrong"], record["calls"]["hung"]) for record in records if record["calls"]} == {(0, 0)}


def test_each_promise_is_one_short_sentence_in_the_table() -> None:
    for name, promise in report.declared().items():
        assert 0 < len(promise.split()) <= WORDS_MAX, name
        assert promise.endswith(".") and "|" not in promise, name


def test_the_calls_of_all_parameters_of_a_test_stand_in_one_row() -> None:
    about = {"day": "2026-11-28", "machine": "2 cores", "measured": {}}
    records = [
        {"name": "a_disk_is_full[one]", "calls": {"answered": 1000, "wrong": 0, "hung": 0, "UNAVAILABLE": 2}, **about},
        {"name": "a_disk_is_full[two]", "calls": {"answered": 200, "wrong": 1, "hung": 0}, **about},
        {"name": "a_command_stops", "calls": {}, **about},
    ]

    page = report.page(records, {"a_disk_is_full": "Calls are answered.", "a_command_stops": "It says why."})

    assert "2 faults, 1,203 calls: 1,200 answered, 1 wrong, 0 hung, 2 UNAVAILABLE. Measured on 2026-11-28, 2 cores." in page.replace(
        "\n", " "
    )
    assert page.endswith("\n|A disk is full|Calls are answered.|1,203|1|0|\n|A command stops|It says why.|-|-|-|\n")
