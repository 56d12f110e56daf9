"""Every flavour keeps every rule, and every rule finds its violations."""

import subprocess
from typing import Any

import pytest

from tests.deploy.chart.manifests import CHART, CONTAINER, FLAVOURS, POD, read, rendered, with_one_change
from tests.deploy.chart.rules import RULES, Rule

needs_helm = pytest.mark.needs_tool("helm")


@needs_helm
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_flavour_keeps_the_rules(flavour: str, rule: Rule) -> None:
    assert list(rule(rendered(flavour))) == []


# Mistakes seen in real charts: rule, flavour, kind, path, and the wrong value.
HELM_TEST = "the_jobs_of_helm_test_can_run_and_end"
HPA = "HorizontalPodAutoscaler"
KEDA = "keda_asks_prometheus_for_what_the_server_shows"
POLICY = "the_network_policy_lets_through_whom_it_should_and_nobody_else"
SECRETS = "secrets_are_mounted_as_folders_that_nobody_else_reads"
SCRAPE = "prometheus_speaks_as_the_server_does"
WAYS_IN = "ways_in_lead_to_the_port_that_they_are_for"
TRIGGER = ("spec", "triggers", 0, "metadata")
PODS = '{namespace="sentiment",pod=~"words-[^-]+-[^-]+"}'
BACKLOG = {"type": "Pods", "pods": {"metric": {"name": "sentiment_backlog_seconds"}}}
BREAKS: list[tuple[str, str, str, tuple[str | int, ...], Any]] = [
    ("selectors_match_the_servers_pods_and_no_others", "cpu", "Service", ("spec", "selector"), {}),
    ("selectors_match_the_servers_pods_and_no_others", "cpu", "PodDisruptionBudget", ("spec", "selector", "matchLabels"), {"app": "s"}),
    (
        "selectors_match_the_servers_pods_and_no_others",
        "everything",
        "Job",
        ("spec", "template", "metadata", "labels", "app.kubernetes.io/name"),
        "sentiment",
    ),
    ("a_stream_is_not_cut_because_its_connection_is_old", "cpu", "Deployment", (*CONTAINER, "env", 6, "value"), "60"),
    ("ports_exist", "cpu", "Service", ("spec", "ports", 0, "targetPort"), "h2c"),
    ("ports_exist", "cpu", "Deployment", (*CONTAINER, "env", 0, "value"), "0.0.0.0:50052"),
    ("pods_are_scraped_once", "cpu", "ServiceMonitor", ("spec", "endpoints", 0, "port"), "metrics"),
    ("pods_are_scraped_once", "cpu", "ServiceMonitor", ("spec", "endpoints", 0, "port"), "grpc"),
    ("the_grace_period_is_the_sum_of_what_it_must_hold", "cpu", "Deployment", (*POD, "terminationGracePeriodSeconds"), 48),
    ("probes_ask_what_they_mean", "cpu", "Deployment", (*CONTAINER, "livenessProbe", "grpc"), {"port": 50051}),
    ("probes_ask_what_they_mean", "cpu", "Deployment", (*CONTAINER, "startupProbe", "failureThreshold"), 10),
    ("probes_ask_what_they_mean", "gpu", "Deployment", ("spec", "progressDeadlineSeconds"), 600),
    ("probes_ask_what_they_mean", "cpu", "Deployment", (*CONTAINER, "readinessProbe", "periodSeconds"), 5),
    ("with_tls_probes_ask_the_port_that_has_none", "secured", "Deployment", (*CONTAINER, "readinessProbe", "grpc", "port"), 50051),
    (SECRETS, "secured", "Deployment", (*CONTAINER, "volumeMounts", 2, "subPath"), "tls.crt"),
    (SECRETS, "secured", "Job", (*POD, "volumes", 3, "secret", "defaultMode"), 0o644),
    (SECRETS, "secured", "Deployment", (*CONTAINER, "env", 0, "valueFrom"), {"secretKeyRef": {"name": "tokens", "key": "shop"}}),
    ("what_pods_name_is_there", "secured", "Deployment", (*CONTAINER, "volumeMounts", 2, "mountPath"), "/certificates"),
    (SCRAPE, "secured", "ServiceMonitor", ("spec", "endpoints", 0, "scheme"), "http"),
    (SCRAPE, "secured", "ServiceMonitor", ("spec", "endpoints", 0, "tlsConfig", "ca"), {}),
    (SCRAPE, "secured", "ServiceMonitor", ("spec", "endpoints", 0, "tlsConfig", "cert"), {}),
    (SCRAPE, "secured", "ServiceMonitor", ("spec", "endpoints", 0, "tlsConfig", "insecureSkipVerify"), True),
    ("pods_are_restricted", "cpu", "Deployment", (*POD, "securityContext", "runAsNonRoot"), False),
    ("pods_are_restricted", "everything", "Job", (*CONTAINER, "securityContext", "readOnlyRootFilesystem"), False),
    ("pods_are_restricted", "cpu", "Deployment", (*POD, "enableServiceLinks"), True),
    ("what_is_asked_for_is_the_limit", "cpu", "Deployment", (*CONTAINER, "resources", "limits", "memory"), "64Gi"),
    ("the_server_understands_its_variables", "cpu", "Deployment", (*CONTAINER, "env", 0, "name"), "SENTIMENT_GRPC_ADDRESS"),
    ("what_pods_name_is_there", "gpu", "Deployment", (*CONTAINER, "volumeMounts"), []),
    ("what_pods_name_is_there", "everything", "Deployment", (*POD, "volumes"), []),
    ("what_pods_name_is_there", "cpu", "Deployment", (*POD, "volumes", 0, "hostPath"), {"path": "/tmp"}),
    ("what_pods_name_is_there", "extended", "Deployment", (*CONTAINER, "volumeMounts", 2, "mountPath"), "/tokens-of-the-admin-port"),
    ("what_pods_name_is_there", "extended", "Deployment", (*CONTAINER, "volumeMounts", 3, "subPathExpr"), "shared"),
    ("what_pods_name_is_there", "extended", "Deployment", (*CONTAINER, "env", 12, "name"), "UNUSED"),
    ("what_pods_name_is_there", "cpu", "ServiceAccount", ("metadata", "name"), "default"),
    ("an_autoscaler_decides_alone", "cpu", "Deployment", ("spec", "replicas"), 2),
    ("an_autoscaler_decides_alone", "cpu", HPA, ("spec", "minReplicas"), 12),
    ("autoscalers_go_by_the_demand", "cpu", HPA, ("spec", "metrics", 0, "pods", "metric", "name"), "sentiment_demand"),
    ("autoscalers_go_by_the_demand", "mig", HPA, ("spec", "metrics"), [BACKLOG]),
    (KEDA, "everything", "ScaledObject", (*TRIGGER, "ignoreNullValues"), "true"),
    (KEDA, "everything", "ScaledObject", (*TRIGGER, "query"), f"sum(rate(sentiment_runner_busy_seconds{PODS}[2m]))"),
    (KEDA, "everything", "ScaledObject", (*TRIGGER, "query"), f"sum(rate(sentiment_runner_busy_seconds_total{PODS}[2m])"),
    (KEDA, "everything", "ScaledObject", (*TRIGGER, "query"), 'sum(sentiment_queue_rows{namespace="sentiment",pod="nope"})'),
    ("a_node_can_be_drained_and_a_rollout_can_move", "cpu", "PodDisruptionBudget", ("spec", "maxUnavailable"), 0),
    ("a_node_can_be_drained_and_a_rollout_can_move", "single", "Deployment", ("spec", "replicas"), 2),
    ("a_node_can_be_drained_and_a_rollout_can_move", "cpu", "Deployment", (*POD, "topologySpreadConstraints"), []),
    ("a_node_can_be_drained_and_a_rollout_can_move", "cpu", "Deployment", ("spec", "strategy", "rollingUpdate", "maxSurge"), 0),
    (POLICY, "cpu", "NetworkPolicy", ("spec", "ingress", 0, "from"), []),
    (POLICY, "cpu", "NetworkPolicy", ("spec", "ingress", 0, "ports", 0, "protocol"), "UDP"),
    (POLICY, "cpu", "NetworkPolicy", ("spec", "ingress", 0, "ports"), [{"port": "http", "protocol": "TCP"}]),
    (POLICY, "cpu", "NetworkPolicy", ("spec", "ingress", 1, "from"), [{"podSelector": {}}]),
    (POLICY, "cpu", "NetworkPolicy", ("spec", "egress"), []),
    (POLICY, "cpu", "NetworkPolicy", ("spec", "egress", 0, "to"), [{"ipBlock": {"cidr": "192.0.2.1/32"}}]),
    (POLICY, "cpu", "NetworkPolicy", ("spec", "egress", 0, "to"), []),
    ("traces_reach_their_collector", "everything", "NetworkPolicy", ("spec", "egress", 1, "ports", 0, "port"), 4317),
    ("traces_reach_their_collector", "everything", "NetworkPolicy", ("spec", "egress", 1, "to"), [{"podSelector": {}}]),
    ("traces_reach_their_collector", "everything", "Deployment", (*CONTAINER, "env", 8, "value"), "false"),
    ("a_gpu_is_asked_for_where_one_is_served_on", "mig", "Deployment", (*CONTAINER, "resources", "limits", "nvidia.com/gpu"), "1"),
    ("a_gpu_is_asked_for_where_one_is_served_on", "gpu", "Deployment", (*CONTAINER, "resources", "limits"), {"cpu": "4", "memory": "8Gi"}),
    (HELM_TEST, "everything", "Job", (*CONTAINER, "args", 2), "dns:///words:50052"),
    (HELM_TEST, "everything", "Job", (*CONTAINER, "args", -1), "2"),
    (HELM_TEST, "everything", "NetworkPolicy", ("spec", "ingress", 2, "ports", 0, "port"), "http"),
    (HELM_TEST, "everything", "Job", ("spec", "activeDeadlineSeconds"), 30),
    (HELM_TEST, "secured", "Job", (*CONTAINER, "args", 11), "--key"),
    (HELM_TEST, "cpu", "Job", (*CONTAINER, "args", 2), "dns:///sentiment:8081"),
    (HELM_TEST, "cpu", "Job", (*CONTAINER, "args", 4), "600"),
    (WAYS_IN, "extended", "Ingress", ("spec", "rules", 0, "http", "paths", 0, "backend", "service", "port", "name"), "http"),
    (WAYS_IN, "extended", "GRPCRoute", ("spec", "rules", 0, "backendRefs", 0, "port"), 8080),
    (WAYS_IN, "extended", "GRPCRoute", ("spec", "rules", 0, "backendRefs", 0, "name"), "sentiment-headful"),
    (WAYS_IN, "extended", "HTTPRoute", ("spec", "rules", 0, "matches"), []),
    ("names_are_one_releases", "cpu", "Deployment", ("metadata", "name"), 47 * "a"),
    ("names_are_one_releases", "cpu", "Deployment", (*CONTAINER, "image"), "sentiment:latest"),
]


@needs_helm
@pytest.mark.parametrize(("name", "flavour", "kind", "path", "value"), BREAKS, ids=str)
def test_a_rule_finds_its_violation(name: str, flavour: str, kind: str, path: tuple[str | int, ...], value: object) -> None:
    documents = with_one_change(rendered(flavour), kind, path, value)

    (broken,) = [rule for rule in RULES if rule.__name__ == name]
    assert list(broken(documents)) != []


def test_every_rule_has_a_violation() -> None:
    assert {rule.__name__ for rule in RULES} == {name for name, *_ in BREAKS}


@needs_helm
def test_a_release_of_the_longest_name_keeps_the_rules() -> None:
    command = ["helm", "template", 53 * "a", str(CHART), "--namespace", "sentiment", "--set", "autoscaling.kind=keda,loadTest.enabled=true"]
    documents = read(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)

    assert {rule.__name__: found for rule in RULES if (found := list(rule(documents)))} == {}
