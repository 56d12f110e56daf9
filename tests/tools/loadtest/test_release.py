"""What `make release-check` says of the figures it measured."""

import pytest

from tests.bench.release import Limit, judged, read_limits


def test_every_limit_has_an_edge_and_a_reason() -> None:
    limits = read_limits()

    assert len(limits) > 5
    assert [name for name, limit in limits.items() if limit.least is None and limit.most is None] == []
    assert [name for name, limit in limits.items() if not limit.why] == []


def test_a_figure_on_the_edge_holds_and_one_beyond_it_or_not_measured_does_not() -> None:
    limits = {name: Limit("why", least=0.5, most=1.0) for name in "abcdef"}

    rows = judged({"a": 0.5, "b": 1.0, "c": 0.4999, "d": 1.0001, "e": float("nan")}, limits)

    assert [row[-1] for row in rows] == ["holds", "holds", "MISSED", "MISSED", "MISSED", "MISSED"]
    assert rows[0] == ("a", "0.5", ">= 0.5 and <= 1", "holds")


def test_a_figure_without_a_limit_is_not_passed_over() -> None:
    with pytest.raises(ValueError, match=r"without a limit in release\.toml: new"):
        judged({"new": 1.0}, {})
