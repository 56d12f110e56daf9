"""The HTML report: it is self-contained, shows the result, and gives reasons to doubt it."""

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from sentiment.errors import BadSettings
from sentiment_tools.loadtest.durations import of
from sentiment_tools.loadtest.plots import by_percentile, one_a_load, outcomes
from sentiment_tools.loadtest.report import compose
from sentiment_tools.loadtest.results import Group, Point, Second
from sentiment_tools.loadtest.search import Search, steps
from sentiment_tools.reports import svg_plots
from sentiment_tools.reports.svg_plots import Axis, Mark
from tests.tools.loadtest.test_search import SLO, held

FACTS = {"command": "sentiment loadtest --rate 10", "texts": '<script>alert(1)</script> & "quoted"'}


def whole(point: Point) -> Point:
    """A point with everything that our server reports."""
    answered = point.ok
    group = Group(point.sent, Counter(point.outcomes), point.in_time, answered, 20 * answered, point.latency)
    return replace(
        point,
        by_class={"interactive": group, "bulk": Group()},
        stages={name: of([0.001 * number]) for number, name in enumerate(("tokenize", "queue", "run", "rest"), 1)},
        series=tuple(Second(second, 100, 90, 80, 10, 0.01, 0.1) for second in range(5)),
        lag=of([0.001]),
    )


def found() -> Search:
    search = steps(100.0, SLO)
    rate = next(search)
    while True:
        try:
            rate = search.send(whole(held(rate)))
        except StopIteration as end:
            result: Search = end.value
            return result


@pytest.fixture(scope="module")
def document() -> str:
    """The report of a search. It takes a second to draw."""
    return compose(found(), FACTS, SLO, ["the machine was busy"])


class Page(HTMLParser):
    """Fails on tags that do not match; keeps the text outside of pictures, and every attribute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in {"meta", "img"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def __contains__(self, words: str) -> bool:
        return words in " ".join(self.text)


def test_the_page_of_a_search_shows_its_result_in_plots_and_tables(document: str) -> None:
    search, page = found(), Page(document)

    assert "the machine was busy" in page
    assert f"{search.slo_rate:.4g} calls/s" in page
    assert f"{search.knee.rate:.4g} calls/s" in page
    assert all(why in page for why in search.why)
    # By load, by percentile, by stage, by outcome, and two loads over time.
    assert page.tags["svg"] == page.tags["figure"] == page.tags["figcaption"] == 8
    assert [title in page for title in ("Over time", "Every load", "By class", "What was run")] == [True] * 4
    assert FACTS["texts"] in page


def test_the_page_loads_nothing_and_runs_nothing(document: str) -> None:
    page = Page(document)

    assert page.tags["script"] == page.tags["link"] == page.tags["img"] == 0
    assert "default-src 'none'" in document
    targets = [value for name, value in page.attributes if name in ("href", "src", "xlink:href")]
    assert [target for target in targets if not target.startswith("#")] == []
    assert re.findall(r"url\((?!#)", document) == []
    assert [name for name, _ in page.attributes if name.startswith("on")] == []


def test_ids_are_unique_and_every_reference_has_its_target(document: str) -> None:
    page = Page(document)

    ids = [value for name, value in page.attributes if name == "id"]
    references = {value[1:] for name, value in page.attributes if name in ("href", "xlink:href")}
    references |= {match for _, value in page.attributes for match in re.findall(r"url\(#([^)]*)\)", value)}

    assert [each for each, times in Counter(ids).items() if times > 1] == []
    assert references - set(ids) == set()


def test_equal_input_gives_equal_bytes() -> None:
    points = [whole(held(50))]

    assert compose(points, FACTS, SLO) == compose(points, FACTS, SLO)


def test_reasons_to_doubt_the_figures_are_shown() -> None:
    closed = replace(whole(held(50)), offered_per_s=0.0, callers=8)
    limited = replace(whole(held(60, limited="a client process used 97 % of a core")), interrupted=True)

    assert "coordinated omission" in Page(compose([closed], FACTS, SLO))
    page = Page(compose([limited], FACTS, SLO))
    assert "client limited at 60/s: a client process used 97 % of a core" in page
    assert "interrupted" in page
    assert "client limited" in page
    assert "coordinated omission" not in page


def test_a_load_without_an_answer_has_a_page() -> None:
    refused, said = {"UNAVAILABLE": 1000}, {"UNAVAILABLE": "it drains"}
    nothing = replace(held(10), outcomes=refused, messages=said, in_time=0, latency=of([]), answered_per_s=0.0)

    page = Page(compose([nothing], FACTS, SLO))

    assert "UNAVAILABLE" in page
    assert "it drains" in page
    assert "0.00%" in page


def test_every_call_has_one_outcome_on_the_plot() -> None:
    point = whole(held(120, refused=0.3))
    strange = replace(point, outcomes={**point.outcomes, "UNKNOWN": 7, "INTERNAL": 2}, sent=point.sent + 9)

    counted = outcomes(strange)

    assert sum(counted.values()) == strange.sent
    assert counted["in time"] + counted["late"] == strange.ok
    assert counted["other failed"] == 9


def test_an_explanation_longer_than_the_objective_is_not_late() -> None:
    judged, explained = held(50), Group(7, Counter(OK=7), 2, 7, 0, of([3.0] * 7))
    point = whole(replace(judged, sent=judged.sent + 7, outcomes=Counter(judged.outcomes) + explained.outcomes))
    judged_group = Group(judged.sent, Counter(judged.outcomes), judged.in_time, judged.ok, 0, judged.latency)

    counted = outcomes(replace(point, by_class={"interactive": judged_group, "explain": explained}))

    assert counted["in time"] == judged.in_time
    assert counted["late"] == judged.ok - judged.in_time
    assert counted["other answered"] == 7
    assert sum(counted.values()) == point.sent


def test_the_percentiles_end_at_the_longest_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, list[tuple[float, float]]] = {}
    monkeypatch.setattr(svg_plots, "lines", lambda series, *_axes: drawn.update(series) or "")

    by_percentile([replace(held(10), latency=of([0.01] * 99 + [5.0]))], SLO)

    (line,) = drawn.values()
    assert line[-1] == pytest.approx((100, 5000), rel=0.01)
    assert line[-2][1] == pytest.approx(10, rel=0.01)


def test_too_few_calls_and_a_server_that_is_gone_are_reported() -> None:
    gone = replace(held(60), outcomes={"UNAVAILABLE": 1000}, in_time=0, latency=of([]))

    page = Page(compose([held(50, calls=80), gone], FACTS, SLO))

    assert "too few judged calls to show whether p99 within 500 ms is met, which needs 100: 50/s" in page
    assert "the server was gone at 60/s" in page
    assert "too few calls" in page


def test_of_several_measurements_of_a_load_the_median_is_drawn() -> None:
    points = [held(20), held(10, refused=0.4), held(10), held(10, refused=0.2)]

    assert one_a_load(points) == [points[3], points[0]]


def test_a_line_skips_infinite_values() -> None:
    axes, mark = (Axis("x"), Axis("y", log=True), "alt"), [Mark("here", 3, upright=False)]

    drawn = svg_plots.lines({"a": [(1, 2), (2, float("inf")), (3, 4)], "b": []}, *axes, mark)

    assert drawn == svg_plots.lines({"a": [(1, 2), (3, 4)], "b": []}, *axes, mark)
    assert drawn.startswith("<svg") and "here" in drawn and "nan" not in drawn


def test_without_matplotlib_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svg_plots.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(BadSettings, match=re.escape("pip install 'sentiment-service[plots]'")):
        svg_plots.need_plots()
