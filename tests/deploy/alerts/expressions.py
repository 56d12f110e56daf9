"""Every PromQL expression that deploy/ holds, and what can be read off one without a Prometheus."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy/chart/files/rules.yaml"
BOARD = ROOT / "deploy/chart/files/dashboard.json"
# Labels that Prometheus gives a series for where it came from.
TARGET_LABELS = {"namespace", "job", "pod", "instance"}
# What Grafana puts in place of its variables when "All" is chosen and the range is short. A window of ten scrapes a second.
GRAFANA = {"$__rate_interval": "10s", "$namespace": ".*", "$model": ".*", "$pod": ".*"}


@dataclass(frozen=True)
class Query:
    """An expression, by what it is for: the rule's or the panel's name."""

    name: str
    text: str

    def selectors(self) -> list[Any]:
        """Its vector selectors."""
        return [node for node in nodes(promql.parse(self.text)) if isinstance(node, promql.VectorSelector)]

    def without_thresholds(self) -> str:
        """What it compares with numbers, before it does, and whether other comparisons hold: an alert has data only while it fires."""

        def plain(node: Any) -> Any:
            if isinstance(node, promql.BinaryExpr) and str(node.op) in (">", ">=", "<", "<=", "==", "!="):
                if isinstance(node.rhs, promql.NumberLiteral):
                    return node.lhs
                return promql.parse(str(node).replace(f" {node.op} ", f" {node.op} bool ", 1))
            if isinstance(node, promql.BinaryExpr) and str(node.op) == "unless":
                return promql.transform(node.lhs, None, plain)
            if isinstance(node, promql.Call) and node.func.name == "absent_over_time":
                return promql.parse(f"present_over_time({node.args[0].prettify()})")
            return None

        return str(promql.transform(promql.parse(self.text), None, plain).prettify())


def nodes(expression: Any) -> list[Any]:
    """All parts of an expression."""
    found: list[Any] = []
    promql.walk(expression, found.append)
    return found


def rules(kind: str) -> list[dict[str, Any]]:
    """All rules of a kind, ``alert`` or ``record``, as the file has them."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def queries(kind: str) -> list[Query]:
    """The expressions of all rules of a kind."""
    return [
        Query(" ".join([rule[kind], *rule["labels"].values()]) if kind == "record" and "labels" in rule else rule[kind], rule["expr"])
        for rule in rules(kind)
    ]


def rows() -> dict[str, list[dict[str, Any]]]:
    """The board's panels that show something, by the title of their row."""
    found: dict[str, list[dict[str, Any]]] = {}
    for panel in json.loads(BOARD.read_text(encoding="utf-8"))["panels"]:
        if panel["type"] == "row":
            title = panel["title"]
            found[title] = []
        else:
            found[title].append(panel)
    return found


def panels() -> list[dict[str, Any]]:
    """The board's panels that show something."""
    return [panel for row in rows().values() for panel in row]


def chosen_all(expression: str) -> str:
    """A panel's expression with its variables filled in."""
    for variable, value in GRAFANA.items():
        expression = expression.replace(variable, value)
    return expression


def shown() -> list[Query]:
    """The expressions of all panels."""
    return [
        Query(f"{panel['title']}: {target['legendFormat']}", chosen_all(target["expr"]))
        for panel in panels()
        for target in panel["targets"]
    ]


def everything() -> list[Query]:
    """All of them."""
    return [*queries("record"), *queries("alert"), *shown()]
