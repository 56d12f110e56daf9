"""Rules for pods, and for the objects that their specs name."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from sentiment.errors import BadSettings
from sentiment.settings import load_settings
from sentiment_front_ends.supervisor import CONNECTION_GRACE_S, LEAVE_S
from tests.deploy.chart.manifests import Document, of_kind
from tests.deploy.chart.rules.release import Rule, environment, pods, server, settings

RULES: list[Rule] = []
# A cold start took 2.2 s on two cores and 3.0 s on one (tests/deploy/chart/footprint.py); a busy node may take twenty times that.
STARTUP_S_MIN = 60
RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
# Kubernetes makes 17 more of it for a pod (a hash of up to 10, five of its own, two dashes), and cuts what does not go into 63.
DEPLOYMENT_NAME_MAX = 46


def rule(check: Rule) -> Rule:
    """Register a rule that every flavour must keep."""
    RULES.append(check)
    return check


def port_names(container: Document) -> set[Any]:
    """The numbers and names of a container's ports."""
    return {port[key] for port in container["ports"] for key in ("name", "containerPort")}


def seconds(probe: Document) -> int:
    """How many seconds a probe may fail."""
    return int(probe["periodSeconds"] * probe["failureThreshold"])


@rule
def ports_exist(documents: Sequence[Document]) -> Iterator[str]:
    _, _, container = server(documents)
    names = port_names(container)
    used = [port["targetPort"] for service in of_kind(documents, "Service") for port in service["spec"]["ports"]]
    for policy in of_kind(documents, "NetworkPolicy"):
        used += [port["port"] for ingress in policy["spec"]["ingress"] for port in ingress["ports"]]
    used += [container[probe]["grpc"]["port"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
    yield from (f"port {port!r} is not one of {names}" for port in used if port not in names)
    told = settings(container)
    listens = [told.grpc_listen, told.http_listen, *([told.health_listen] if told.tls_cert_file else [])]
    listening = {int(listen.rpartition(":")[2]) for listen in listens}
    if listening != {port["containerPort"] for port in container["ports"]}:
        yield f"the server listens on {listening}"


@rule
def the_grace_period_is_the_sum_of_what_it_must_hold(documents: Sequence[Document]) -> Iterator[str]:
    _, spec, container = server(documents)
    told = settings(container)
    needed = container["lifecycle"]["preStop"]["sleep"]["seconds"] + told.drain_wait_s + told.drain_grace_s + LEAVE_S
    if spec["terminationGracePeriodSeconds"] <= needed:
        yield f"terminationGracePeriodSeconds is {spec['terminationGracePeriodSeconds']}; the drain may take {needed}"


@rule
def a_stream_is_not_cut_because_its_connection_is_old(documents: Sequence[Document]) -> Iterator[str]:
    _, _, container = server(documents)
    told = settings(container)
    if told.connection_age_max_s and told.connection_age_grace_s < CONNECTION_GRACE_S:
        yield f"a stream is cut after {told.connection_age_max_s + told.connection_age_grace_s} s"


@rule
def probes_ask_what_they_mean(documents: Sequence[Document]) -> Iterator[str]:
    deployment, _, container = server(documents)
    for name, service in (("startupProbe", ""), ("readinessProbe", ""), ("livenessProbe", "liveness")):
        probe = container[name]
        handlers = probe.keys() & {"grpc", "httpGet", "tcpSocket", "exec"}
        if handlers != {"grpc"} or probe["grpc"].get("service", "") != service or probe["timeoutSeconds"] < 2:
            yield f"{name} is {probe}"
    startup_s = seconds(container["startupProbe"])
    if startup_s < STARTUP_S_MIN:
        yield f"a start may take {startup_s} s; at least {STARTUP_S_MIN}"
    if deployment["spec"]["progressDeadlineSeconds"] <= startup_s:
        yield f"progressDeadlineSeconds is not above the {startup_s} s of a start"
    # The server ends a hung run by itself after two times stall_s: only then is a restart of use.
    if seconds(container["livenessProbe"]) <= 2 * settings(container).stall_s:
        yield f"liveness gives up after {seconds(container['livenessProbe'])} s"
    # Not ready must be seen before the port is closed.
    if seconds(container["readinessProbe"]) > container["lifecycle"]["preStop"]["sleep"]["seconds"] + settings(container).drain_wait_s:
        yield "readiness is noticed later than the drain begins"


@rule
def with_tls_probes_ask_the_port_that_has_none(documents: Sequence[Document]) -> Iterator[str]:
    _, _, container = server(documents)
    told = settings(container)
    port = int((told.health_listen if told.tls_cert_file else told.grpc_listen).rpartition(":")[2])
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        if container[name]["grpc"]["port"] != port:
            yield f"{name} asks {container[name]['grpc']['port']}; the server answers it at {port}"


@rule
def secrets_are_mounted_as_folders_that_nobody_else_reads(documents: Sequence[Document]) -> Iterator[str]:
    for name, spec, _ in pods(documents):
        secrets = {volume["name"]: volume["secret"] for volume in spec["volumes"] if "secret" in volume}
        yield from (f"{name}: {secret} may be read by others" for secret in secrets.values() if secret.get("defaultMode") != 0o440)
        for mount in (mount for container in spec["containers"] for mount in container["volumeMounts"] if mount["name"] in secrets):
            # A single file would stay what it was when the pod began.
            if "subPath" in mount or not mount.get("readOnly"):
                yield f"{name}: {mount}"
        for container in spec["containers"]:
            yield from (
                f"{name}: {variable['name']} holds a secret"
                for variable in container.get("env", [])
                if "secretKeyRef" in variable.get("valueFrom", {})
            )


@rule
def pods_are_restricted(documents: Sequence[Document]) -> Iterator[str]:
    for name, spec, _ in pods(documents):
        of_pod = spec["securityContext"]
        if not of_pod.get("runAsNonRoot") or not of_pod.get("runAsUser") or of_pod.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{name}: {of_pod}"
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            if container.get("securityContext") != RESTRICTED:
                yield f"{name}, {container['name']}: {container.get('securityContext')}"
        if spec.get("enableServiceLinks") is not False or spec.get("automountServiceAccountToken") is not False:
            yield f"{name} is given variables of Services or a token"
        if any("hostPath" in volume for volume in spec.get("volumes", [])) or spec.get("hostNetwork") or spec.get("hostPID"):
            yield f"{name} reaches into its node"


@rule
def what_is_asked_for_is_the_limit(documents: Sequence[Document]) -> Iterator[str]:
    for name, spec, _ in pods(documents):
        for container in spec["containers"]:
            asked, limits = container["resources"]["requests"], container["resources"]["limits"]
            if asked != limits or not {"cpu", "memory"} <= limits.keys():
                yield f"{name}: requests {asked}, limits {limits}"
            elif not limits["cpu"].isdigit():
                yield f"{name}: {limits['cpu']} is not a number of whole cores"


@rule
def the_server_understands_its_variables(documents: Sequence[Document]) -> Iterator[str]:
    _, _, container = server(documents)
    try:
        load_settings({}, environment(container))
    except BadSettings as error:
        yield str(error)


@rule
def what_pods_name_is_there(documents: Sequence[Document]) -> Iterator[str]:
    accounts = {account["metadata"]["name"] for account in of_kind(documents, "ServiceAccount")}
    for name, spec, _ in pods(documents):
        if spec.get("serviceAccountName", "default") not in {*accounts, "default"}:
            yield f"{name}: no ServiceAccount {spec['serviceAccountName']}"
        yield from (f"{name}: {volume} has not one source" for volume in spec["volumes"] if len(volume) != 2)
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            yield from (f"{name}: no volume {one['name']}" for one in container["volumeMounts"] if one["name"] not in volumes)
    _, _, container = server(documents)
    told = settings(container)
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    files = (told.tls_cert_file, told.tls_key_file, told.tls_client_ca_file)
    folders = (told.cache_dir, told.journal, told.auth_tokens, told.admin_tokens)
    for path in [*folders, *map(str, told.bundles), *(file.rpartition("/")[0] for file in files)]:
        if path and path not in mounted:
            yield f"{path} is not a volume, and the root file system is read-only"
    if told.admin_listen and not told.admin_tokens:
        yield "the admin port has no tokens"
    # A second server of one journal does not start.
    yield from (
        f"the journal is one for all pods: {mount}"
        for mount in container["volumeMounts"]
        if mount["mountPath"] == told.journal and mount.get("subPathExpr") != "$(POD_NAME)"
    )


@rule
def a_gpu_is_asked_for_where_one_is_served_on(documents: Sequence[Document]) -> Iterator[str]:
    deployment, spec, container = server(documents)
    asked = [resource for resource in container["resources"]["limits"] if resource.startswith("nvidia.com/")]
    has = bool(asked)
    told = settings(container)
    if len(asked) > 1:
        yield f"no node has all of {asked}"
    if told.device == "auto" or told.device.startswith("cuda") is not has:
        yield f"device {told.device}, limits {container['resources']['limits']}"
    if has:
        if not told.cache_dir:
            yield "graphs for a GPU have no folder"
        if deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"]:
            yield "a rollout waits for a GPU that nobody has to spare"
        if not spec.get("tolerations"):
            yield "nodes with GPUs are tainted"


@rule
def names_are_one_releases(documents: Sequence[Document]) -> Iterator[str]:
    seen = [(document["kind"], document["metadata"]["name"]) for document in documents]
    yield from (f"{one} twice" for one in set(seen) if seen.count(one) > 1)
    yield from (f"{name} is not a valid name" for _, name in seen if not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", name))
    deployment, _, _ = server(documents)
    if len(deployment["metadata"]["name"]) > DEPLOYMENT_NAME_MAX:
        yield "the names of its pods are cut"
    images = [container["image"] for _, spec, _ in pods(documents) for container in spec["containers"]]
    yield from (
        f"{image} may be another one tomorrow" for image in images if not re.search(r":(?!latest$)[\w.-]+$|@sha256:[0-9a-f]{64}$", image)
    )
