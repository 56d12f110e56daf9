"""The HTML report: it is self-contained, shows the result, and gives reasons to doubt it."""

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sentiment_tools.loadtest.plots import by_percentile, one_a_load, outcomes
from sentiment_tools.loadtest.report import compose
from sentiment_tools.loadtest.results import Group, Point, Second
from sentiment_tools.reports import svg_plots
from sentiment_tools.reports.svg_plots import Axis, Mark
from tests.approved import assert_approved
from tests.tools.loadtest.test_search import SLO, held, of, searched

APPROVED = Path(__file__).parent / "approved/report.txt"
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


@pytest.fixture(scope="module")
def document() -> str:
    """The report of a search. It takes a second to draw."""
    return compose(searched(lambda rate: whole(held(rate))), FACTS, SLO, ["the machine was busy"])


class Page(HTMLParser):
    """Fails on tags that do not match; keeps the text outside of pictures and styles, and every attribute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
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
        self.text += " | " if tag in ("td", "th") else "\n"

    def handle_data(self, data: str) -> None:
        if not {"svg", "style"} & set(self.open):
            self.text += data.strip()

    def __str__(self) -> str:
        return re.sub(r"( \| )?\s*\n\s*", "\n", self.text).strip()


def test_pages_say_what_was_approved(document: str) -> None:
    closed = replace(whole(held(50)), offered_per_s=0.0, callers=8)
    limited = replace(whole(held(60, limited="a client process used 97 % of a core")), interrupted=True)
    refused, said = {"UNAVAILABLE": 1000}, {"UNAVAILABLE": "it drains"}
    gone = replace(held(60), outcomes=refused, messages=said, in_time=0, latency=of([]), answered_per_s=0.0)
    pages = {
        "a search, while the machine was busy": document,
        "a closed loop": compose([closed], FACTS, SLO),
        "a client that was limited, and an interruption": compose([limited], FACTS, SLO),
        "too few calls, and a server that is gone": compose([held(50, calls=80), gone], FACTS, SLO),
        "no answer at all": compose([gone], FACTS, SLO),
    }

    assert_approved(APPROVED, {title: str(Page(page)) for title, page in pages.items()})


def test_the_page_has_its_plots_loads_nothing_and_runs_nothing(document: str) -> None:
    page = Page(document)

    # By load, by percentile, by stage, by outcome, and two loads over time.
    assert page.tags["svg"] == page.tags["figure"] == page.tags["figcaption"] == 8
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


def test_of_several_measurements_of_a_load_the_median_is_drawn() -> None:
    points = [held(20), held(10, refused=0.4), held(10), held(10, refused=0.2)]

    assert one_a_load(points) == [points[3], points[0]]


def test_a_line_skips_infinite_values() -> None:
    axes, mark = (Axis("x"), Axis("y", log=True), "alt"), [Mark("here", 3, upright=False)]

    drawn = svg_plots.lines({"a": [(1, 2), (2, float("inf")), (3, 4)], "b": []}, *axes, mark)

    assert drawn == svg_plots.lines({"a": [(1, 2), (3, 4)], "b": []}, *axes, mark)
    assert drawn.startswith("<svg") and "here" in drawn and "nan" not in drawn
