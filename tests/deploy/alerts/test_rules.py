"""Rules, dashboard and runbooks: they parse, and agree with each other and with the server's metrics."""

import json
import re
import runpy
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sentiment.call.names import METHODS
from sentiment.explain.thread import TIMED
from sentiment.settings import Settings
from sentiment_front_ends.metric_totals import Totals
from tests.conftest import RunningServer
from tests.core.observability.test_metrics import scrape
from tests.deploy.alerts.expressions import BOARD, GRAFANA, ROOT, RULES, TARGET_LABELS, Query, everything, nodes, panels, rules
from tests.deploy.alerts.test_live import Meter

RUNBOOKS = ROOT / "docs/operate/runbooks.md"
UNIT_TESTS = sorted(Path(__file__).parent.glob("*.yaml"))
each_query = pytest.mark.parametrize("query", everything(), ids=lambda query: query.name)
# Metric names with the values that each label takes.
Known = dict[str, dict[str, set[str]]]


@pytest.fixture(scope="module")
def known(settings: Settings) -> Iterator[Known]:
    """All metrics with their labels: of servers with a GPU, of one process and several, ``up``, and the recorded series."""
    found: Known = defaultdict(lambda: defaultdict(set), {"up": defaultdict(set)})
    for rule in rules("record"):
        found[rule["record"]]["slo"].update(other["labels"]["slo"] for other in rules("record") if "labels" in other)
    server = RunningServer(settings)
    try:
        server.app._metrics.watch_devices({"cuda:0": Meter()})
        server.app._metrics.watch_certificate(lambda: 0.0)
        server.app._metrics.count_callers(())
        (model,) = server.app._metrics.models.values()
        for method in METHODS:
            _ = model.of[method]
        for part in TIMED:
            _ = model.explain_seconds[part]
        families = [*text_string_to_metric_families(scrape(server)[0]), *Totals(server.app._metrics.registry, dict).collect()]
    finally:
        server.stop()
    for family in families:
        for sample in family.samples:
            for label, value in sample.labels.items():
                found[sample.name][label].add(value)
            found[sample.name]["job"].add("sentiment")
    yield found


@each_query
def test_each_metric_and_label_value_is_one_that_a_server_shows(known: Known, query: Query) -> None:
    for selector in query.selectors():
        assert selector.name in known, selector.name
        labels = known[selector.name]
        for matcher in selector.matchers.matchers:
            assert matcher.name in labels.keys() | TARGET_LABELS, f"{selector.name} has no label {matcher.name}"
            if matcher.name not in TARGET_LABELS and matcher.value != ".*":
                assert set(matcher.value.split("|")) <= labels[matcher.name], f"{selector.name} has no such {matcher.name}: {matcher.value}"


@pytest.mark.parametrize("rule", [*rules("record"), *rules("alert")], ids=lambda rule: rule.get("record") or rule["alert"])
def test_each_selector_of_a_rule_is_of_any_job_for_which_the_chart_names_its_release(rule: dict[str, Any]) -> None:
    selectors = Query("", rule["expr"]).selectors()

    assert selectors
    assert rule["expr"].count('{job=~".+"') == len(selectors)


@each_query
def test_each_grouping_uses_existing_labels(known: Known, query: Query) -> None:
    for node in nodes(promql.parse(query.text)):
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            inside = [part for part in nodes(node.expr) if isinstance(part, promql.VectorSelector)]
            there = set.union(*(set(known[selector.name]) for selector in inside)) | TARGET_LABELS
            assert set(node.modifier.labels) <= there


@pytest.mark.smoke
def test_a_legend_names_only_labels_that_its_series_have(known: Known) -> None:
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "1m")
            groupings = [node for node in nodes(promql.parse(expression)) if isinstance(node, promql.AggregateExpr)]
            there = (
                set(groupings[0].modifier.labels if groupings[0].modifier else ())
                if groupings
                else TARGET_LABELS | _labels(known, expression)
            )
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= there, target


def _labels(known: Known, expression: str) -> set[str]:
    selectors = [node for node in nodes(promql.parse(expression)) if isinstance(node, promql.VectorSelector)]
    return set.union(*(set(known[selector.name]) for selector in selectors))


def test_the_board_is_the_one_that_its_script_makes() -> None:
    made = runpy.run_path(str(ROOT / "deploy/board.py"))["text"]()

    assert BOARD.read_text(encoding="utf-8") == made, "out of date: python deploy/board.py"


def test_the_board_needs_nothing_but_its_own_variables() -> None:
    text = BOARD.read_text(encoding="utf-8")
    ids = [panel["id"] for panel in panels()]

    assert set(re.findall(r"\$\{?\w+\}?", text)) - {"$__all"} == {*GRAFANA, "${datasource}"}
    assert len(ids) == len(set(ids))


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_each_alert_has_its_chapter_in_the_runbooks_and_each_chapter_its_alert() -> None:
    chapters = re.findall(r"^## (Sentiment\w+)$", RUNBOOKS.read_text(encoding="utf-8"), re.MULTILINE)

    assert chapters == [rule["alert"] for rule in rules("alert")]
    for rule in rules("alert"):
        assert rule["annotations"]["runbook_url"] == f"docs/operate/runbooks.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_each_metric_of_a_runbook_is_one_that_a_server_shows(known: Known) -> None:
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known}

    named = set(re.findall(r"`(sentiment[_:][\w:]+)", RUNBOOKS.read_text(encoding="utf-8")))

    assert named
    assert named - bases - known.keys() == set()


def test_each_panel_and_setting_of_a_runbook_exists() -> None:
    text = RUNBOOKS.read_text(encoding="utf-8")
    board = json.loads(BOARD.read_text(encoding="utf-8"))

    # Quotes within code are the shell's.
    quoted = set(re.findall(r'"([^"{}]+)"', re.sub("`[^`]*`", "", text)))
    settings = set(re.findall(r"SENTIMENT_([A-Z_]{2,})", text + RULES.read_text(encoding="utf-8")))

    assert quoted - {board["title"]} - {panel["title"] for panel in board["panels"]} == set()
    assert settings - {name.upper() for name in Settings.model_fields} == set()
    assert quoted
    assert settings


def test_each_alert_is_tested_in_both_directions() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in UNIT_TESTS)

    for rule in rules("alert"):
        assert re.search(rf"eval_time: \w+\n +alertname: {rule['alert']}\n +exp_alerts:", text), f"{rule['alert']} never fires"
        assert re.search(rf"\{{eval_time: \w+, alertname: {rule['alert']}\}}", text), f"{rule['alert']} never stays silent"


@pytest.mark.needs_tool("promtool")
@pytest.mark.parametrize(
    "arguments", [["check", "rules", RULES], *(["test", "rules", path] for path in UNIT_TESTS)], ids=lambda a: a[-1].stem
)
def test_the_rules_pass_promtool(arguments: list[Any]) -> None:
    checked = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)

    assert checked.returncode == 0, checked.stdout + checked.stderr
