"""Rules for objects around the pods: Services, ways in, network policies, autoscalers, disruption budgets, and jobs of ``helm test``."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import promql_parser as promql
from prometheus_client import CollectorRegistry

from sentiment.cli.main import _parser
from sentiment.observability.metrics import Metrics
from tests.deploy.chart.manifests import Document, of_kind
from tests.deploy.chart.rules.release import Rule, environment, matches, pods, server, settings

RULES: list[Rule] = []
NAMESPACE = "kubernetes.io/metadata.name"
OWN = ""
SPREAD_OVER = ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]


def rule(check: Rule) -> Rule:
    """Register a rule that every flavour must keep."""
    RULES.append(check)
    return check


@rule
def selectors_match_the_servers_pods_and_no_others(documents: Sequence[Document]) -> Iterator[str]:
    deployment, spec, _ = server(documents)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    spread = [constraint["labelSelector"]["matchLabels"] for constraint in spec["topologySpreadConstraints"]]
    selecting = {"Deployment": [deployment["spec"]["selector"]["matchLabels"]], "spread": spread}
    selecting["Service"] = [service["spec"]["selector"] for service in of_kind(documents, "Service")]
    selecting["PodDisruptionBudget"] = [one["spec"]["selector"]["matchLabels"] for one in of_kind(documents, "PodDisruptionBudget")]
    selecting["NetworkPolicy"] = [policy["spec"]["podSelector"]["matchLabels"] for policy in of_kind(documents, "NetworkPolicy")]
    strangers = [labels for name, _, labels in pods(documents) if name.startswith("Job")]
    for kind, found in selecting.items():
        yield from (f"{kind} selects {one}, pods have {labels}" for one in found if not matches(one, labels))
        yield from (f"{kind} selects a job of helm test" for one in found for labels in strangers if matches(one, labels))


@rule
def pods_are_scraped_once(documents: Sequence[Document]) -> Iterator[str]:
    for monitor in of_kind(documents, "ServiceMonitor"):
        for endpoint in monitor["spec"]["endpoints"]:
            found = [
                service["metadata"]["name"]
                for service in of_kind(documents, "Service")
                if matches(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"])
                and endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
            ]
            if len(found) != 1:
                yield f"port {endpoint['port']!r} is found on the Services {found}; wanted is one"


@rule
def prometheus_speaks_as_the_server_does(documents: Sequence[Document]) -> Iterator[str]:
    told = settings(server(documents)[2])
    for endpoint in (endpoint for monitor in of_kind(documents, "ServiceMonitor") for endpoint in monitor["spec"]["endpoints"]):
        tls = endpoint.get("tlsConfig", {})
        if (endpoint.get("scheme", "http") == "https") is not bool(told.tls_cert_file) or bool(tls) is not bool(told.tls_cert_file):
            yield f"it asks by {endpoint.get('scheme', 'http')} with {tls}"
        if "insecureSkipVerify" in tls or (tls and not (tls.get("ca") and tls.get("serverName"))):
            yield f"it does not check whom it asks: {tls}"
        if bool(told.tls_client_ca_file) is not bool(tls.get("cert") and tls.get("keySecret")):
            yield f"client certificates are wanted: {told.tls_client_ca_file!r}; it has {tls}"
        if told.auth_tokens and "/metrics" not in told.auth_exempt:
            yield "it has no token"


def through(rules: Sequence[Document], side: str, namespace: str, labels: Mapping[str, str]) -> set[tuple[Any, str]]:
    """Ports and protocols that a policy's rules allow for a pod; ``side`` is from or to.

    ``namespace``: the name of the pod's; OWN for the policy's.
    """

    def is_one(peer: Document) -> bool:
        there = peer.get("namespaceSelector")
        in_it = namespace == OWN if there is None else there.get("matchLabels", {}).items() <= {NAMESPACE: namespace}.items()
        return "ipBlock" not in peer and in_it and peer.get("podSelector", {}).get("matchLabels", {}).items() <= labels.items()

    # No peers are all.
    let = [rule for rule in rules if not rule.get(side) or any(map(is_one, rule[side]))]
    return {(port["port"], port["protocol"]) for rule in let for port in rule["ports"]}


@rule
def the_network_policy_lets_through_whom_it_should_and_nobody_else(documents: Sequence[Document]) -> Iterator[str]:
    jobs = [[{"podSelector": {"matchLabels": labels}}] for name, _, labels in pods(documents) if name.startswith("Job")]
    for policy in of_kind(documents, "NetworkPolicy"):
        into, out = policy["spec"]["ingress"], policy["spec"]["egress"]
        ports = {(port["port"], port["protocol"]) for rule in into if rule["from"] not in jobs for port in rule["ports"]}
        for what, found, wanted in [
            ("somebody gets in", ports, {("grpc", "TCP"), ("http", "TCP")}),
            ("Prometheus gets in", through(into, "from", "monitoring", {}), {("http", "TCP")}),
            ("names are asked for", through(out, "to", "kube-system", {}), {(53, "UDP"), (53, "TCP")}),
            ("a stranger gets in", through(into, "from", "strangers", {}), set()),
            ("a stranger is reached", through(out, "to", "strangers", {}), set()),
        ]:
            if found != wanted:
                yield f"{what} by {found}; wanted is {wanted}"


@rule
def traces_reach_their_collector(documents: Sequence[Document]) -> Iterator[str]:
    told = environment(server(documents)[2])
    endpoint = urlsplit(told.get("OTEL_EXPORTER_OTLP_ENDPOINT", ""))
    wanted = {(endpoint.port, "TCP")} if endpoint.hostname else set()
    if bool(wanted) is not settings(server(documents)[2]).tracing:
        yield f"tracing is {settings(server(documents)[2]).tracing} and the collector {endpoint.geturl()!r}"
    for policy in of_kind(documents, "NetworkPolicy"):
        if (found := through(policy["spec"]["egress"], "to", "observability", {})) != wanted:
            yield f"the collector is reached by {found}; wanted is {wanted}"


@rule
def an_autoscaler_decides_alone(documents: Sequence[Document]) -> Iterator[str]:
    deployment, _, _ = server(documents)
    scalers = of_kind(documents, "HorizontalPodAutoscaler", "ScaledObject")
    if ("replicas" in deployment["spec"]) is bool(scalers) or len(scalers) > 1:
        yield f"{len(scalers)} autoscalers, and replicas are {deployment['spec'].get('replicas')}"
    for scaler in scalers:
        if scaler["spec"]["scaleTargetRef"]["name"] != deployment["metadata"]["name"]:
            yield f"it scales {scaler['spec']['scaleTargetRef']}"
        if not 1 <= replicas(scaler, "min") <= replicas(scaler, "max"):
            yield f"from {replicas(scaler, 'min')} to {replicas(scaler, 'max')} pods"


def replicas(scaler: Document, end: str) -> int:
    """An autoscaler's number of pods, min or max."""
    return int(scaler["spec"].get(f"{end}Replicas") or scaler["spec"][f"{end}ReplicaCount"])


@rule
def autoscalers_go_by_the_demand(documents: Sequence[Document]) -> Iterator[str]:
    for scaler in of_kind(documents, "HorizontalPodAutoscaler"):
        metrics = scaler["spec"]["metrics"]
        names = {metric["pods"]["metric"]["name"] for metric in metrics if metric["type"] == "Pods"}
        # As the default rules of prometheus-adapter call them: a counter is shown as its rate, without what it counts.
        if names - {re.sub(r"(_seconds)?_total$", "", name) for name in metric_names()}:
            yield f"no server shows all of {sorted(names)}"
        # What waits or runs says no more where all is full: work that is refused or expires does neither.
        if "sentiment_demand_ratio" not in names:
            yield f"it goes by {metrics}"


@rule
def keda_asks_prometheus_for_what_the_server_shows(documents: Sequence[Document]) -> Iterator[str]:
    deployment, _, _ = server(documents)
    labels = {"namespace": deployment["metadata"]["namespace"], "pod": f"{deployment['metadata']['name']}-5d4f8c7b9-x2x4z"}
    for trigger in [trigger for scaler in of_kind(documents, "ScaledObject") for trigger in scaler["spec"]["triggers"]]:
        # By default no series are a 0: a scrape that is lost would take pods away under load.
        if trigger["metadata"].get("ignoreNullValues") != "false":
            yield f"{trigger} takes silence for idleness"
        try:
            selectors = vector_selectors(trigger["metadata"]["query"])
        except ValueError as error:
            yield f"{trigger['metadata']['query']}: {error}"
            continue
        yield from (f"no server shows {one.name}" for one in selectors if one.name not in metric_names())
        yield from (f"{one.matchers} is not for a pod with {labels}" for one in selectors if not is_for(one, labels))


def vector_selectors(query: str) -> list[Any]:
    """The selectors of a query. Raises ValueError if it is not PromQL."""
    found: list[Any] = []
    promql.walk(promql.parse(query), found.append)
    return [node for node in found if isinstance(node, promql.VectorSelector)]


def is_for(selector: Any, labels: Mapping[str, str]) -> bool:
    """Whether a selector matches exactly these labels, each by = or =~."""
    asked = {matcher.name: matcher for matcher in selector.matchers.matchers}
    return asked.keys() == labels.keys() and all(
        re.fullmatch(matcher.value if matcher.op == promql.MatchOp.Re else re.escape(matcher.value), labels[name])
        for name, matcher in asked.items()
    )


def metric_names() -> set[str]:
    """The name of every series that the server can expose, including those of GPUs."""

    class Meter:
        def memory_bytes(self) -> float:
            return 0.0

        def busy_ratio(self) -> float:
            return 0.0

    metrics = Metrics([])
    metrics.watch_devices({"": Meter()})
    metrics.watch_certificate(lambda: 0.0)
    return series_of(metrics.registry)


def series_of(registry: CollectorRegistry) -> set[str]:
    """The names of a registry's series: a counter's with _total, and a histogram's three."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "info": ("_info",)}
    return {family.name + suffix for family in registry.collect() for suffix in suffixes.get(family.type, ("",))}


@rule
def a_node_can_be_drained_and_a_rollout_can_move(documents: Sequence[Document]) -> Iterator[str]:
    deployment, spec, _ = server(documents)
    scalers = of_kind(documents, "HorizontalPodAutoscaler", "ScaledObject")
    most = max([deployment["spec"].get("replicas", 0), *(replicas(scaler, "max") for scaler in scalers)])
    budgets = of_kind(documents, "PodDisruptionBudget")
    if len(budgets) != (most > 1) or any(budget["spec"].get("maxUnavailable") in (None, 0, "0%") for budget in budgets):
        yield f"{budgets} for up to {most} pods"
    rolling = deployment["spec"]["strategy"]["rollingUpdate"]
    if not rolling["maxSurge"] and not rolling["maxUnavailable"]:
        yield "no pod may come before one goes, and none may go before one comes"
    spread = spec["topologySpreadConstraints"]
    if [constraint["topologyKey"] for constraint in spread] != SPREAD_OVER:
        yield f"pods are spread over {spread}"
    if any(constraint["matchLabelKeys"] != ["pod-template-hash"] for constraint in spread):
        yield "a rollout's pods are spread among those that go"


@rule
def ways_in_lead_to_the_port_that_they_are_for(documents: Sequence[Document]) -> Iterator[str]:
    ports = {
        (service["metadata"]["name"], key): port["name"]
        for service in of_kind(documents, "Service")
        for port in service["spec"]["ports"]
        for key in (port["name"], port["port"])
    }
    ways: list[tuple[str, str, Any, str]] = []
    for ingress in of_kind(documents, "Ingress"):
        for path in (path for rule in ingress["spec"]["rules"] for path in rule["http"]["paths"]):
            to = path["backend"]["service"]
            ways.append((ingress["metadata"]["name"], path["path"], to["name"], to["port"]["name"]))
    for route in of_kind(documents, "GRPCRoute", "HTTPRoute"):
        for each in route["spec"]["rules"]:
            paths = [match["path"]["value"] for match in each.get("matches", [])] or ["/"]
            ways += [(route["metadata"]["name"], path, to["name"], to["port"]) for path in paths for to in each["backendRefs"]]
    for name, path, service, port in ways:
        wanted = name.rpartition("-")[2]
        if ports.get((service, port)) != wanted:
            yield f"{name} leads to port {port} of {service}, which is not {wanted}"
        if wanted == "http" and path == "/":
            yield f"{name} lets everybody read /metrics"


@rule
def the_jobs_of_helm_test_can_run_and_end(documents: Sequence[Document]) -> Iterator[str]:
    services = {
        f"dns:///{service['metadata']['name']}:{port['port']}"
        for service in of_kind(documents, "Service")
        for port in service["spec"]["ports"]
    }
    for job in of_kind(documents, "Job"):
        template = job["spec"]["template"]
        (container,) = template["spec"]["containers"]
        try:
            asked = _parser().parse_args(container["args"])
        except SystemExit:
            yield f"sentiment does not understand {container['args']}"
            return
        if asked.target not in services:
            yield f"{asked.target} is not one of {services}"
        told = settings(server(documents)[2])
        shown = [bool(told.tls_cert_file), bool(told.tls_client_ca_file), bool(told.auth_tokens)]
        if [bool(asked.ca), bool(asked.cert and asked.key), bool(asked.token_file)] != shown:
            yield f"it shows other than the server wants: {container['args']}"
        for policy in of_kind(documents, "NetworkPolicy"):
            if ("grpc", "TCP") not in through(policy["spec"]["ingress"], "from", OWN, template["metadata"]["labels"]):
                yield "the network policy keeps it out"
        loads = container["args"][0] == "loadtest"
        # It would go by the node's cores, which a quota does not change.
        if loads and (asked.processes is None or asked.processes > int(container["resources"]["limits"]["cpu"])):
            yield f"{asked.processes} processes for {container['resources']['limits']['cpu']} cores"
        if job["spec"]["activeDeadlineSeconds"] <= (asked.seconds if loads else asked.wait + asked.timeout):
            yield f"it is ended after {job['spec']['activeDeadlineSeconds']} s"
