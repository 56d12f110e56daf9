"""deploy/RELIABILITY.md shows the recorded results of every fault test."""

from tests.faults import report


def test_the_page_is_made_of_the_records_that_are_kept() -> None:
    assert report.PAGE.read_text(encoding="utf-8") == report.page(report.kept())


def test_each_fault_has_its_record_and_lost_nothing() -> None:
    records = report.kept()

    assert {record["name"].partition("[")[0] for record in records} == set(report.declared())
    assert {(record["calls"]["wrong"], record["calls"]["hung"]) for record in records if record["calls"]} == {(0, 0)}
