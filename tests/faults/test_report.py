"""deploy/RELIABILITY.md tells what was seen, of every test of a fault."""

from tests.faults import report


def test_the_page_is_made_of_the_records_that_are_kept() -> None:
    assert report.PAGE.read_text(encoding="utf-8") == report.page(report.kept())


def test_each_fault_has_its_record() -> None:
    seen = {record["name"].partition("[")[0] for record in report.kept()}

    assert seen == set(report.declared())


def test_nothing_was_lost() -> None:
    assert {record["name"]: (record["calls"]["wrong"], record["calls"]["never told"]) for record in report.kept() if record["calls"]} == {
        record["name"]: (0, 0) for record in report.kept() if record["calls"]
    }
