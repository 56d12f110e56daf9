"""Generates the Grafana dashboard deploy/chart/files/dashboard.json from ``ROWS``: ``python deploy/board.py``."""

import json
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase

BOARD = Path(__file__).parent / "chart/files/dashboard.json"
# By name, not by id: nobody fills in inputs of a dashboard that is provisioned from a file.
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Selection by the dashboard's variables. "All" also selects series without the label.
PODS = 'namespace=~"$namespace", pod=~"$pod"'
MODELS = f'{PODS}, model=~"$model"'
# Calls that ended before their model was known.
TURNED_AWAY = f'{PODS}, model="", method=~"Classify|ClassifyBatch|ClassifyStream"'
# Grafana's grid has 24 columns.
PANEL_COLUMNS = 8
PANEL_LINES = 8
COLUMNS = 24


@dataclass(frozen=True)
class Panel:
    """A plot over time.

    Attributes:
        title: the panel's title.
        unit: Grafana's name of the unit.
        about: the description.
        queries: PromQL by legend, in which {{label}} is a label's value.
        stacked: whether to stack the series, as parts of a whole.
    """

    title: str
    unit: str
    about: str
    queries: dict[str, str]
    stacked: bool = False


def rate(counter: str, *by: str, only: str = "", of: str = MODELS) -> str:
    """The per-second rate of a counter, summed by labels; ``only`` are additional matchers."""
    grouping = f" by ({', '.join(by)})" if by else ""
    matchers = f"{of}, {only}" if only else of
    return f"sum{grouping} (rate(sentiment_{counter}{{{matchers}}}[$__rate_interval]))"


def mean(histogram: str, *by: str) -> str:
    """The mean of a histogram."""
    return f"{rate(f'{histogram}_sum', *by)} / {rate(f'{histogram}_count', *by)}"


def quantile(q: float, histogram: str, *by: str, only: str = "") -> str:
    """A quantile of a histogram, interpolated within its buckets."""
    return f"histogram_quantile({q}, {rate(f'{histogram}_bucket', 'le', *by, only=only)})"


def quantiles(histogram: str, only: str = "") -> dict[str, str]:
    """p50, p95 and p99 of a histogram."""
    return {f"p{100 * q:.0f}": quantile(q, histogram, only=only) for q in (0.5, 0.95, 0.99)}


def of_servers(expression: str) -> str:
    """Restrict metrics that every Python process has to our servers."""
    return f"{expression} and on (namespace, job, instance) sentiment_build_info"


def gauge(name: str) -> str:
    """A gauge of each pod."""
    return f"sentiment_{name}{{{MODELS}}}"


def share(part: str, whole: str, only: str = "") -> dict[str, str]:
    """How much of a counter another counts, by model."""
    return {"{{model}}": f"{rate(part, 'model', only=only)} / {rate(whole, 'model')}"}


PADDED = 'kind="padded"'

ROWS: dict[str, tuple[Panel, ...]] = {
    "Objectives": (
        Panel(
            "Budget burn, 5 minutes",
            "short",
            "1 uses up exactly the budget of the objective. All pods and models of a namespace together.",
            {"{{job}} {{slo}}": 'sentiment:slo_burn:rate5m{namespace=~"$namespace"}'},
        ),
        Panel(
            "Budget burn, 1 and 6 hours",
            "short",
            "It pages at 14.4 over one hour and at 6 over six.",
            {
                "{{job}} {{slo}}, 1 h": 'sentiment:slo_burn:rate1h{namespace=~"$namespace"}',
                "{{job}} {{slo}}, 6 h": 'sentiment:slo_burn:rate6h{namespace=~"$namespace"}',
            },
        ),
        Panel(
            "Servers",
            "short",
            "Pods that are scraped, by version.",
            {"{{version}}": f"count by (version) (sentiment_build_info{{{PODS}}})"},
        ),
    ),
    "Rate and errors": (
        Panel("Calls by method", "reqps", "Calls that ended, well or not.", {"{{method}}": rate("requests_total", "method")}, stacked=True),
        Panel(
            "Texts by pod",
            "cps",
            "Texts that ended, well or not.",
            {"{{pod}} {{model}}": rate("items_total", "pod", "model")},
            stacked=True,
        ),
        Panel(
            "Texts not answered",
            "cps",
            "By status code. A call that is turned away before its model is known counts as one text.",
            {
                "{{code}}": rate("items_total", "code", only='code!="OK"'),
                "{{code}}, turned away": rate("requests_total", "code", only='code!="OK"', of=TURNED_AWAY),
            },
            stacked=True,
        ),
    ),
    "Lost calls and event loops": (
        Panel(
            "Calls lost",
            "reqps",
            "Ended by gRPC's core before the event loop saw them; callers see CANCELLED. A long call adds 1 at its start, -1 at its end.",
            {"{{pod}}": f"{rate('grpc_calls_started_total', 'pod', of=PODS)} - {rate('grpc_calls_ended_total', 'pod', of=PODS)}"},
        ),
        Panel(
            "Event loops busy",
            "percentunit",
            "Share of the time that a process's event loop did not wait. From 0.8 on, calls may be lost.",
            {"{{pod}} {{process}}": f"rate(sentiment_loop_busy_seconds_total{{{PODS}}}[$__rate_interval])"},
        ),
    ),
    "Latency": (
        Panel(
            "Classify",
            "s",
            "From a call's arrival to its answer; the objective is latency_objective_s (0.5 s) for 99 %.",
            quantiles("request_seconds", 'method="Classify"'),
        ),
        Panel(
            "Mean of each stage",
            "s",
            "A text passes receive, tokenize, queue, score and send, a batch plan, pad, copy and run.",
            {"{{stage}}": mean("stage_seconds", "stage")},
        ),
        Panel("99th percentile of each stage", "s", "As above.", {"{{stage}}": quantile(0.99, "stage_seconds", "stage")}),
    ),
    "Batches": (
        Panel("Rows of a batch", "short", "Texts, or windows of long ones.", {"mean": mean("batch_rows"), **quantiles("batch_rows")}),
        Panel("Tokens of a batch", "short", "With their padding.", {"mean": mean("batch_tokens"), **quantiles("batch_tokens")}),
        Panel(
            "Padding",
            "percentunit",
            "Share of the computed tokens that are padding.",
            share("tokens_total", "tokens_total", PADDED),
        ),
        Panel("Why batches were not larger", "cps", "Batches by reason.", {"{{reason}}": rate("batches_total", "reason")}, stacked=True),
        Panel(
            "Runners busy",
            "percentunit",
            "Share of the time that a pod's runners spent in batches. At 1 they are saturated.",
            {
                "{{pod}}": f"{rate('runner_busy_seconds_total', 'pod', of=PODS)} / "
                f"count by (pod) (sentiment_runner_busy_seconds_total{{{PODS}}})"
            },
        ),
        Panel(
            "Run time over predicted",
            "short",
            "A slow average. Above 1 the machine is slower than at the start: a busy neighbour, a throttled core.",
            {"{{pod}} {{model}}": gauge("run_over_predicted")},
        ),
    ),
    "Queue": (
        Panel(
            "Demand",
            "percentunit",
            "Work that is offered, refused or not, over what the pod can do. Above 100 % pods are missing; the autoscaler aims at 70 %.",
            {"{{pod}}": f"sentiment_demand_ratio{{{PODS}}}"},
        ),
        Panel("Backlog", "s", "Predicted time until a text that arrives now would start.", {"{{pod}} {{model}}": gauge("backlog_seconds")}),
        Panel("Rows waiting", "short", "For a runner.", {"{{pod}} {{model}}": gauge("queue_rows")}),
        Panel(
            "Deadlines",
            "cps",
            "Texts by the outcome of their deadline.",
            {"{{outcome}}": rate("deadline_outcome_total", "outcome")},
            stacked=True,
        ),
        Panel(
            "Texts refused",
            "cps",
            "Texts and explanations that are not admitted.",
            {"{{reason}}": rate("refused_total", "reason")},
            stacked=True,
        ),
        Panel("Rows dropped", "cps", "Admitted, but never run.", {"{{reason}}": rate("dropped_total", "reason")}, stacked=True),
        Panel("Rows wasted", "cps", "Run, but the result was not used.", {"{{reason}}": rate("wasted_rows_total", "reason")}, stacked=True),
    ),
    "What the model answers": (
        Panel("Answers by label", "cps", "Those that abstain too.", {"{{label}}": rate("predictions_total", "label")}, stacked=True),
        Panel(
            "Answers that abstain",
            "percentunit",
            "Share of the answers with a probability below the model's abstain_below.",
            share("predictions_total", "predictions_total", 'abstained="true"'),
        ),
        Panel(
            "Expected accuracy",
            "percentunit",
            "Mean probability of the last 5 minutes' answers, without those that abstain, and its 95 % interval. It does not see "
            "a model that is sure and wrong. Where it is withheld there is a gap, and a line at 0 % that says why: drift, for example.",
            {
                "{{pod}} {{model}}": gauge("expected_accuracy"),
                "{{pod}} {{model}}, 95 % low": gauge("expected_accuracy_low"),
                "{{pod}} {{model}}, 95 % high": gauge("expected_accuracy_high"),
                "{{pod}} {{model}}, withheld: {{reason}}": f"0 * ({gauge('expected_accuracy_withheld')} == 1)",
            },
        ),
        Panel(
            "Drift",
            "short",
            "Population stability index of the last 2,000 texts (for hidden_1 to hidden_8 of the sample) against the nearest of the "
            "model's references or mixture of them, by signal. From 0.25 on they differ much; a change by that much is an alert.",
            {"{{pod}} {{model}} {{signal}}": gauge("drift")},
        ),
        Panel(
            "Nearest reference",
            "percentunit",
            "Shares of the references in what drift is measured against, but for hidden_1 to hidden_8: the kinds of the last 2,000 texts.",
            {"{{pod}} {{model}} {{reference}}": gauge("drift_reference_share")},
        ),
        Panel(
            "Texts in another language",
            "percentunit",
            "Share of the texts with many word fragments: in another script or language, or no prose.",
            share("foreign_texts_total", "text_tokens_count"),
        ),
        Panel("Unknown tokens", "percentunit", "Share of the tokens read.", share("unknown_tokens_total", "text_tokens_sum")),
        Panel("Tokens of a text", "short", "As far as it was read.", {"mean": mean("text_tokens"), **quantiles("text_tokens")}),
        Panel(
            "Texts truncated",
            "percentunit",
            "Share of the texts that were not read to their end.",
            share("truncated_texts_total", "text_tokens_count"),
        ),
        Panel(
            "Texts answered early",
            "percentunit",
            "Share of the texts of which a part sufficed, with adaptive effort.",
            share("early_texts_total", "text_tokens_count"),
        ),
        Panel(
            "Answers that adaptive effort changes",
            "percentunit",
            "Share of the texts with adaptive effort, by audits: an interval that holds at all times. The bound is 1 %. 1: reads in full.",
            {"{{pod}} {{model}} {{end}}": gauge("effort_differs"), "{{pod}} {{model}} has fallen back": gauge("effort_in_full")},
        ),
        Panel(
            "Texts answered without a run",
            "percentunit",
            "Kept answers, and those of equal texts under way, to a text. A text of several rows may have several.",
            share("known_rows_total", "text_tokens_count"),
        ),
    ),
    "Explanations": (
        Panel("Explanations in progress", "short", "Waiting or being computed.", {"{{pod}} {{model}}": gauge("explanations")}),
        Panel("Parts of explanations made", "cps", "By method.", {"{{method}}": rate("explain_seconds_count", "method")}, stacked=True),
        Panel("Mean time of a part", "s", "Waiting for a core included.", {"{{method}}": mean("explain_seconds", "method")}),
    ),
    "Processes": (
        Panel(
            "Memory",
            "bytes",
            "Resident, of each process of a server, and the limit of its container.",
            {
                "{{pod}} {{process}}": of_servers(f"process_resident_memory_bytes{{{PODS}}}"),
                "{{pod}} limit": f"sentiment_memory_limit_bytes{{{PODS}}} < Inf",
            },
        ),
        Panel(
            "Cores used",
            "short",
            "By each process of a server.",
            {"{{pod}} {{process}}": of_servers(f"rate(process_cpu_seconds_total{{{PODS}}}[$__rate_interval])")},
        ),
    ),
    "Callers, where they have tokens": (
        Panel("Calls by caller", "reqps", "By the name of the token.", {"{{caller}}": rate("caller_requests_total", "caller", of=PODS)}),
        Panel(
            "Texts not answered, by caller",
            "cps",
            "By the name of the token and status code.",
            {"{{caller}} {{code}}": rate("caller_items_total", "caller", "code", only='code!="OK"', of=PODS)},
            stacked=True,
        ),
        Panel(
            "Work by caller",
            "short",
            "Cores that run the texts and explanations of each.",
            {"{{caller}}": rate("caller_work_seconds_total", "caller", of=PODS)},
            stacked=True,
        ),
    ),
    "Traces, where they are sent": (
        Panel(
            "Spans",
            "cps",
            "Sent, and lost by reason: the queue was full, or the collector did not take them.",
            {
                "sent": rate("trace_spans_sent_total", of=PODS),
                "{{reason}}": rate("trace_spans_dropped_total", "reason", of=PODS),
            },
            stacked=True,
        ),
    ),
    "GPUs, where there are any": (
        Panel(
            "GPU memory taken",
            "bytes",
            "Of each GPU, by all processes.",
            {"{{pod}} {{device}}": f"sentiment_device_memory_bytes{{{PODS}}}"},
        ),
        Panel(
            "GPUs busy",
            "percentunit",
            "Share of the time, from the driver.",
            {"{{pod}} {{device}}": f"sentiment_device_busy_ratio{{{PODS}}}"},
        ),
    ),
}


def dashboard() -> dict[str, object]:
    """The dashboard in Grafana's format."""
    panels: list[dict[str, object]] = []
    line = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": _place(0, line, COLUMNS, 1), "panels": []})
        line += 1
        for number, panel in enumerate(row):
            across, down = number % (COLUMNS // PANEL_COLUMNS), number // (COLUMNS // PANEL_COLUMNS)
            panels.append(_panel(panel, _place(across * PANEL_COLUMNS, line + down * PANEL_LINES, PANEL_COLUMNS, PANEL_LINES)))
        line += (down + 1) * PANEL_LINES
    return {
        "uid": "sentiment",
        "title": "Sentiment service",
        "tags": ["sentiment"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                _variable("namespace", "sentiment_build_info"),
                _variable("model", 'sentiment_model_info{namespace=~"$namespace"}'),
                _variable("pod", 'sentiment_build_info{namespace=~"$namespace"}'),
            ]
        },
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels, 1)],
    }


def _place(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def _variable(label: str, series: str) -> dict[str, object]:
    query = f"label_values({series}, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": label},
        "definition": query,
        # Refresh when the time range changes, because pods come and go.
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, object]:
    drawn = {
        "lineWidth": 1,
        "fillOpacity": 25 if panel.stacked else 0,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none"},
    }
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": drawn}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [
            {"refId": letter, "datasource": SOURCE, "expr": expr, "legendFormat": legend, "range": True}
            for letter, (legend, expr) in zip(ascii_uppercase, panel.queries.items(), strict=False)
        ],
    }


def text() -> str:
    """The content of the file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    BOARD.write_text(text(), encoding="utf-8")
