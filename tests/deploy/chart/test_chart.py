"""The chart renders what Kubernetes, the operators and the server accept, in every flavour and for every supported version."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.chart.manifests import (
    CHART,
    CONTAINER,
    DEPLOY,
    FLAVOURS,
    VERSIONS,
    Document,
    made_by,
    of_kind,
    read,
    rendered,
    values_of,
    with_one_change,
)
from tests.deploy.chart.rules import RULES
from tests.deploy.chart.rules.release import environment, server, settings
from tests.deploy.chart.schemas import schemas

needs_helm = pytest.mark.needs_tool("helm")
each_flavour = pytest.mark.parametrize("flavour", FLAVOURS)


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["helm", *arguments], check=False, capture_output=True, text=True, timeout=60)


# Rules do not notice missing objects. So these are the expected ones: kinds, and name suffixes after the Deployment's name.
SERVED = {"Deployment", "Service", "Service -headless", "ServiceAccount", "Job -call"}
KEPT = SERVED | {"NetworkPolicy", "PodDisruptionBudget"}
WATCHED = KEPT | {"ServiceMonitor", "PrometheusRule", "ConfigMap -dashboard"}
SCALED = WATCHED | {"HorizontalPodAutoscaler"}
WHOLE = {
    "default": KEPT,
    "single": SERVED,
    "everything": WATCHED | {"ScaledObject", "Job -loadtest"},
    "secured": KEPT | {"ServiceMonitor", "Job -loadtest"},
    "extended": KEPT | {"Ingress -grpc", "Ingress -http", "GRPCRoute -grpc", "HTTPRoute -http"},
    **dict.fromkeys(("cpu", "gpu", "mig", "laid_over"), SCALED),
}


def faults(documents: list[Document], version: str) -> list[str]:
    """Errors against Kubernetes' schemas, or those of custom resources. An unknown kind is an error too."""
    known = schemas()
    found = []
    for document in documents:
        name = f"{document['apiVersion']}/{document['kind']}"
        try:
            if name in known:
                jsonschema.validate(document, known[name])
            else:
                kubernetes_validate.validate(document, version, strict=True)
        except (jsonschema.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            found.append(f"{name}: {error.message}")
    return found


@needs_helm
@each_flavour
def test_helm_finds_nothing_to_complain_of(flavour: str) -> None:
    for version in (VERSIONS[0], VERSIONS[-1]):
        linted = helm("lint", "--strict", str(CHART), *values_of(flavour), "--kube-version", version)

        assert linted.returncode == 0, f"{version}: {linted.stdout}"


@needs_helm
@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_one_of_that_version_of_kubernetes(version: str) -> None:
    # Most documents are the same in several flavours.
    documents = {json.dumps(document, sort_keys=True): document for flavour in FLAVOURS for document in rendered(flavour, version)}

    assert len(documents) > 20
    assert faults(list(documents.values()), version) == []


@needs_helm
def test_a_kubernetes_that_is_too_old_for_the_chart_is_refused() -> None:
    refused = helm("template", "sentiment", str(CHART), "--kube-version", "1.30")

    assert "incompatible with Kubernetes v1.30" in refused.stderr


@needs_helm
@pytest.mark.parametrize(
    ("flavour", "kind", "path", "value"),
    [
        ("cpu", "Deployment", (*CONTAINER, "readinesProbe"), {}),
        ("cpu", "HorizontalPodAutoscaler", ("apiVersion",), "autoscaling/v2beta2"),
        ("cpu", "ServiceMonitor", ("spec", "endpoints", 0, "port"), 8080),
        ("cpu", "ServiceMonitor", ("spec", "endpoints", 0, "intervall"), "15s"),
        ("cpu", "PrometheusRule", ("spec", "groups", 0, "rules", 0, "expression"), "1"),
        ("everything", "ScaledObject", ("spec", "maxReplicas"), 3),
        ("extended", "GRPCRoute", ("spec", "parentRefs", 0, "listener"), "https"),
        ("extended", "HTTPRoute", ("spec", "rules", 0, "matches", 0, "path", "type"), "Prefix"),
    ],
    ids=str,
)
def test_a_single_wrong_field_is_found(flavour: str, kind: str, path: Sequence[str | int], value: object) -> None:
    document = of_kind(with_one_change(rendered(flavour), kind, path, value), kind)[0]

    assert len(faults([document], VERSIONS[-1])) == 1


@needs_helm
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--set", "replica=3"], "additional properties 'replica' not allowed"),
        (["--set", "replicas=two"], "got string, want integer"),
        (["--set", "settings.queue_row_max=3"], "additional properties 'queue_row_max' not allowed"),
        (["--set", "settings.bulk_share=2"], "exclusiveMaximum: got 2, want 1"),
        (["--set-json", "networkPolicy.clients=[]"], "minItems: got 0, want 1"),
        (["--set", "lifecycle.marginSeconds=5"], "want 11"),
        (["--set", "cache.volume.emptyDir.medium=Memory,cache.volume.nfs.path=a"], "maxProperties: got 2, want 1"),
        (["--set", "fullnameOverride=" + 47 * "a"], "maxLength: got 47, want 46"),
        (["--set", "tracing.endpoint=collector:4317"], "does not match pattern"),
        (["--set", "tracing.endpoint=http://collector2"], "does not match pattern"),
        (["--set", "tracing.ratio=2"], "maximum: got 2, want 1"),
        (["--set", "tls.clientAuth=maybe"], "value must be one of 'none', 'require'"),
        (["--set", "tls.secretName=a,tls.clientAuth=require,monitoring.serviceMonitor=true"], "tls.clientSecretName must name"),
        (["--set", "tls.clientAuth=require"], "tls.secretName is empty"),
        (["--set", "loadTest.enabled=true,auth.tokensSecretName=a"], "needs tls.secretName: a token goes to another pod over TLS only"),
        (["--set", "auth.tokensSecretName=a", "--set-json", 'settings.auth_exempt=["/metrics"]'], "lacks /grpc.health.v1.Health/Check"),
        (["--set", "autoscaling.min=12"], "autoscaling.min is 12, autoscaling.max 10"),
        (["--set-json", 'settings={"effort_fallback": true, "effort_audit_share": 0}'], "audits show when the bound breaks"),
        (["--set-json", 'settings={"feedback_bound": true}'], "needs auth.tokensSecretName and journal.volume"),
        (["--set-json", 'settings={"hidden_drift_share": 0.1, "explain": false}'], "needs settings.explain: true"),
        (["--set-json", 'settings={"hidden_drift_share": 0.1, "explain_on": "device"}'], "and settings.explain_on: cpu"),
        (["--set", "settings.journal=/var/lib/journal"], "is /var/lib/journal, which is read-only: set journal.volume in its place"),
        (["--set", "settings.journal=/var/cache/sentiments"], "is /var/cache/sentiments, which is read-only"),
        (
            [
                "--set",
                "settings.journal=/data/j,extraVolumeMounts[0].name=d,extraVolumeMounts[0].mountPath=/data,extraVolumeMounts[0].readOnly=true",
            ],
            "is /data/j, which is read-only",
        ),
        (
            ["--set", "settings.journal=/var/cache/sentiment/j,cache.volume.persistentVolumeClaim.claimName=c"],
            "set journal.volume, which has",
        ),
        (["--set", "settings.journal=/var/cache/sentiment/j,journal.volume.emptyDir.sizeLimit=2Gi"], "remove settings.journal"),
        (["--set", "resources.cpu=500m"], "resources.cpu is 500m, and a batch runs on each core: set whole cores, such as 1"),
        (["--set-json", "resources.cpu=1.5"], "resources.cpu is 1.5, and a batch runs on each core"),
        (["--set", "resources.memory=512Mi"], "set at least 1536Mi, or settings.explain: false"),
        (["--set", "resources.memory=1.5G"], "resources.memory is 1.5G, too little"),
        (["--set", "resources.memory=500Mi,settings.explain=false"], "set at least 512Mi"),
        (["--set-json", 'settings={"answer_cache_bytes": 1073741824, "models": ["german"]}'], "set at least 3584Mi"),
        (["--set", "resources.memory=much"], "does not match pattern"),
        (["--set", "requests.cpu=4"], "requests.cpu is 4, above the limit 2: set resources.cpu"),
        (["--set", "requests.memory=2Gi"], "requests.memory is 2Gi, above the limit 1536Mi: set resources.memory"),
        (
            ["--set-json", 'podLabels={"app.kubernetes.io/name": "words"}'],
            "podLabels has app.kubernetes.io/name, by which Services find the pods",
        ),
        (["--set", "extraEnv[0].name=SENTIMENT_QUEUE_ROWS_MAX"], "extraEnv sets SENTIMENT_QUEUE_ROWS_MAX: set settings.queue_rows_max"),
        (["--set", "extraEnv[0].name=OTEL_TRACES_SAMPLER"], "extraEnv sets OTEL_TRACES_SAMPLER: set tracing.endpoint, tracing.sampler"),
        (["--set", "extraEnv[0].value=x"], "missing property 'name'"),
        (["--set", "extraVolumes[0].name=cache"], "extraVolumes has cache, which is a volume of the chart"),
        (["--set", "rollout.maxSurge=0"], "rollout.maxSurge and rollout.maxUnavailable are 0, so that no pod could be replaced"),
        (["--set", "service.grpcPort=8080"], "service.grpcPort and service.httpPort are both 8080"),
        (["--set", "service.type=ExternalName"], "value must be one of 'ClusterIP', 'NodePort', 'LoadBalancer'"),
        (["--set", "service.type=NodePort"], "service.type is NodePort, and networkPolicy.clients lets in pods alone"),
        (["--set-json", 'service.ipFamilies=["IPv4", "IPv6"]'], "set service.ipFamilyPolicy to PreferDualStack or RequireDualStack"),
        (["--set", "ingress.http.hosts[0]=a.example", "--set-json", "service.httpPaths=[]"], "service.httpPaths is empty"),
        (["--set", "ingress.grpc.hosts[0]=https://a.example"], "does not match pattern"),
        (["--set", "monitoring.runbooks=wiki/runbooks"], "does not match pattern"),
        (["--set", "monitoring.runbooks=https://wiki.example/#runbooks"], "does not match pattern"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_installed(flags: list[str], message: str) -> None:
    refused = helm("template", "sentiment", str(CHART), *flags)

    assert refused.returncode == 1
    assert message in refused.stderr


@needs_helm
@pytest.mark.parametrize("name", sorted(made_by.SET_BY_CHART))
def test_a_setting_that_the_chart_makes_is_refused_with_the_value_that_makes_it(name: str) -> None:
    refused = helm("template", "sentiment", str(CHART), "--set", f"settings.{name}=x")

    said = re.search(rf"settings\.{name} is made by the chart: set ([\w.]+)", refused.stderr)
    assert said, refused.stderr
    assert said[1] in dict(made_by.commented((CHART / "values.yaml").read_text(encoding="utf-8")))


@needs_helm
@pytest.mark.parametrize(
    "flags",
    [
        ["--set", "settings.journal=/var/cache/sentiment/journal"],
        ["--set", "settings.journal=/data/j,extraVolumeMounts[0].name=d,extraVolumeMounts[0].mountPath=/data/"],
        ["--set", "resources.memory=512Mi,settings.explain=false"],
        ["--set", "resources.memory=2G"],
        ["--set", "resources.memory=1572864Ki"],
        ["--set", "requests.cpu=1999m,requests.memory=1536Mi"],
        ["--set", "service.type=NodePort,networkPolicy.enabled=false"],
        ["--set-json", 'service.ipFamilies=["IPv6"]'],
        ["--set", "monitoring.runbooks=https://docs.example/operate/runbooks.html"],
    ],
    ids=str,
)
def test_a_value_that_works_is_not_refused(flags: list[str]) -> None:
    assert helm("template", "sentiment", str(CHART), *flags).stderr == ""


@needs_helm
def test_requests_may_be_below_the_limits_but_not_of_a_gpu() -> None:
    made = made_by.template("--set", "requests.cpu=500m,gpu.resource=nvidia.com/gpu")

    resources = server(made)[2]["resources"]
    assert resources["limits"] == {"cpu": "2", "memory": "1536Mi", "nvidia.com/gpu": "1"}
    assert resources["requests"] == {**resources["limits"], "cpu": "500m"}


@needs_helm
def test_what_a_team_adds_stands_in_the_pod_beside_what_the_chart_has() -> None:
    values = yaml.safe_load(FLAVOURS["extended"][0].read_text(encoding="utf-8"))
    documents = rendered("extended")
    _, pod, container = server(documents)

    assert container["env"][-2:] == values["extraEnv"]
    assert container["envFrom"] == values["envFrom"]
    assert container["volumeMounts"][-1:] == values["extraVolumeMounts"]
    assert pod["volumes"][-1:] == values["extraVolumes"]
    assert pod["initContainers"] == values["initContainers"]
    assert pod["containers"] == [container, *values["extraContainers"]]
    (account,) = of_kind(documents, "ServiceAccount")
    assert account["metadata"]["annotations"] == values["serviceAccount"]["annotations"]
    outer, headless = of_kind(documents, "Service")
    assert (outer["spec"]["type"], headless["spec"]["type"]) == ("LoadBalancer", "ClusterIP")
    assert outer["metadata"]["annotations"] == values["service"]["annotations"]
    assert [each["spec"]["ipFamilies"] for each in (outer, headless)] == [["IPv6", "IPv4"]] * 2


@needs_helm
def test_with_a_journal_and_an_admin_port_the_server_reads_and_writes_the_mounted_folders() -> None:
    found = settings(server(rendered("extended"))[2])

    assert (found.journal, found.admin_listen, found.admin_tokens) == ("/journal", "127.0.0.1:50053", "/admin-tokens")


@needs_helm
@pytest.mark.parametrize(
    ("flags", "kinds"),
    [
        ([], {"Job -call"}),
        (["tls.secretName=a,auth.tokensSecretName=b"], {"Job -call"}),
        (["tls.secretName=a,tls.clientAuth=require,tls.clientSecretName=b"], {"Job -call"}),
        # It could not show a token or a certificate.
        (["auth.tokensSecretName=b"], set()),
        (["tls.secretName=a,tls.clientAuth=require"], set()),
    ],
    ids=str,
)
def test_helm_test_makes_a_call_where_it_can(flags: list[str], kinds: set[str]) -> None:
    made = made_by.template(*(part for flag in flags for part in ("--set", flag)))

    assert {kind for kind in objects(made) if kind.startswith("Job")} == kinds


def notes(*flags: str) -> str:
    """What Helm says after an installation."""
    return helm("install", "sentiment", str(CHART), "--namespace", "words", "--dry-run=client", *flags).stdout.partition("NOTES:")[2]


@needs_helm
def test_the_notes_say_what_to_know_of_replicas_and_runbooks() -> None:
    scaled = notes("--values", str(CHART / "values-cpu.yaml"))
    linked = notes(
        "--values", str(CHART / "values-cpu.yaml"), "--set", "autoscaling.kind=none,monitoring.runbooks=https://wiki.example/sentiment"
    )

    assert "helm test sentiment --namespace words" in linked
    assert "set autoscaling.min to the pods that run" in scaled
    assert "set monitoring.runbooks to the URL" in scaled
    assert "autoscal" not in linked
    assert "runbooks" not in linked


@needs_helm
def test_numbers_reach_the_server_as_they_were_written() -> None:
    _, _, container = server(rendered("everything"))

    variables = environment(container)

    assert [variables[f"SENTIMENT_{name}"] for name in ("TEXT_BYTES_MAX", "BULK_SHARE", "EXPLAIN")] == ["2097152", "0.3", "false"]
    assert float(variables["OTEL_TRACES_SAMPLER_ARG"]) == 1e-6


@needs_helm
def test_lists_reach_the_server_as_it_splits_them() -> None:
    container = server(rendered("laid_over"))[2]

    assert environment(container)["SENTIMENT_MODELS"] == "english/2,german"
    assert settings(container).models == ("english/2", "german")


@needs_helm
@pytest.mark.parametrize("flags", [["tls.secretName=b"], ["settings.auth_exempt[1]=/grpc.health.v1.Health/Check"]])
def test_tokens_are_allowed_where_probes_get_their_answer(flags: list[str]) -> None:
    made = made_by.template("--set", "auth.tokensSecretName=a,settings.auth_exempt[0]=/metrics", "--set", *flags)

    assert settings(server(made)[2]).auth_tokens == "/tokens"


@needs_helm
def test_with_tls_and_tokens_the_server_reads_the_mounted_files() -> None:
    found = settings(server(rendered("secured"))[2])

    files = (found.tls_cert_file, found.tls_key_file, found.tls_client_ca_file, found.auth_tokens)
    assert files == ("/tls/tls.crt", "/tls/tls.key", "/tls/ca.crt", "/tokens")
    assert found.health_listen == "0.0.0.0:50052"


@needs_helm
@pytest.mark.parametrize("flavour", made_by.FLAVOURS)
def test_reflection_is_off_in_production(flavour: str) -> None:
    assert not settings(server(rendered(flavour))[2]).reflection


@needs_helm
def test_the_alerts_name_the_place_where_their_runbooks_are_read() -> None:
    place = "https://wiki.example/sentiment"
    made = made_by.template("--set", "monitoring.rules=true", "--set", f"monitoring.runbooks={place}")

    groups = of_kind(made, "PrometheusRule")[0]["spec"]["groups"]
    urls = [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"] if "alert" in rule]
    assert len(urls) > 5
    assert all(url.startswith(f"{place}#sentiment") for url in urls), urls


def rules_of(release: str, namespace: str, *flags: str) -> Document:
    """The rules of a release, in Prometheus' format."""
    rendered = helm("template", release, str(CHART), "--namespace", namespace, "--set", "monitoring.rules=true", *flags)
    (document,) = of_kind(read(rendered.stdout), "PrometheusRule")
    spec: Document = document["spec"]
    return spec


@needs_helm
def test_the_rules_of_all_releases_are_those_of_the_file() -> None:
    file = yaml.safe_load((CHART / "files/rules.yaml").read_text(encoding="utf-8"))

    assert rules_of("words", "shop", "--set", "monitoring.everyRelease=true") == file
    assert rules_of("words", "shop") != file


@needs_helm
@pytest.mark.needs_tool("promtool")
def test_two_releases_under_one_prometheus_do_not_meet(tmp_path: Path) -> None:
    for file, release in (("here", "words"), ("there", "sentiment")):
        spec = rules_of(release, "shop")
        # As if of another version: its recorded series have a label of their own.
        for group in spec["groups"]:
            group["name"] += f".{file}"
            for rule in group["rules"]:
                if "record" in rule:
                    rule["labels"] = {**rule.get("labels", {}), "rules": file}
        (tmp_path / f"{file}.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    shutil.copy(Path(__file__).with_name("two_releases.yaml"), tmp_path)

    checked = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "two_releases.yaml"], capture_output=True, text=True, timeout=60, check=False
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_value_is_explained() -> None:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    explained = {path for path, _ in made_by.commented(text)}

    def leaves(node: Document, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        found = []
        for key, value in node.items():
            here = (*above, key)
            found += leaves(value, here) if isinstance(value, dict) and value and ".".join(here) not in explained else [here]
        return found

    assert [path for path in leaves(yaml.safe_load(text)) if ".".join(path) not in explained] == []


@needs_helm
def test_the_manifests_made_from_the_chart_are_fresh() -> None:
    made = made_by.made()
    committed = {path for path in (DEPLOY / "kustomize").rglob("*") if path.is_file()}

    stale = [str(path.relative_to(DEPLOY)) for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]

    assert stale == [], "stale: make manifests"
    assert committed <= made.keys()


@pytest.fixture
def overlay(tmp_path: Path) -> Callable[..., list[Document]]:
    """Build an overlay with kustomize, in a folder beside the bases."""

    def build(base: str, *components: str) -> list[Document]:
        folder = tmp_path / "overlay"
        folder.mkdir()
        (tmp_path / "kustomize").symlink_to(DEPLOY / "kustomize")
        entry = {
            "namespace": "words",
            "resources": [f"../kustomize/{base}"],
            "components": [f"../kustomize/{name}" for name in components],
            "images": [{"name": name, "newName": f"registry.example/{name}", "newTag": "0.2.0"} for name in ("sentiment", "sentiment-gpu")],
        }
        (folder / "kustomization.yaml").write_text(json.dumps(entry), encoding="utf-8")
        command = ["kubectl", "kustomize", "--load-restrictor", "LoadRestrictionsNone", str(folder)]
        return read(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)

    return build


@pytest.mark.needs_tool("kubectl")
@pytest.mark.parametrize("base", made_by.FLAVOURS)
def test_kustomize_gives_a_whole_that_keeps_the_rules(overlay: Callable[..., list[Document]], base: str) -> None:
    documents = overlay(base, "monitoring", "loadtest")

    assert {document["metadata"]["namespace"] for document in documents} == {"words"}
    assert faults(documents, VERSIONS[-1]) == []
    assert {rule.__name__: found for rule in RULES if (found := list(rule(documents)))} == {}
    assert objects(documents) == WHOLE[base] - {"Job -call"} | {"Job -loadtest"}
    assert server(documents)[2]["image"].startswith("registry.example/sentiment")


def objects(documents: Sequence[Document]) -> set[str]:
    """Kinds, and name suffixes after the Deployment's name."""
    name = server(documents)[0]["metadata"]["name"]
    return {f"{document['kind']} {document['metadata']['name'].removeprefix(name)}".rstrip() for document in documents}


@needs_helm
@each_flavour
def test_a_flavour_has_all_its_objects(flavour: str) -> None:
    assert objects(rendered(flavour)) == WHOLE[flavour]
