"""The chart renders what Kubernetes, the operators and the server accept, in every flavour and for every supported version."""

import json
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
SERVED = {"Deployment", "Service", "Service -headless", "ServiceAccount"}
KEPT = SERVED | {"NetworkPolicy", "PodDisruptionBudget"}
WATCHED = KEPT | {"ServiceMonitor", "PrometheusRule", "ConfigMap -dashboard"}
SCALED = WATCHED | {"HorizontalPodAutoscaler"}
WHOLE = {
    "default": KEPT,
    "single": SERVED,
    "everything": WATCHED | {"ScaledObject", "Job -loadtest"},
    "secured": KEPT | {"ServiceMonitor", "Job -loadtest"},
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
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_installed(flags: list[str], message: str) -> None:
    refused = helm("template", "sentiment", str(CHART), *flags)

    assert refused.returncode == 1
    assert message in refused.stderr


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
    assert objects(documents) == WHOLE[base] | {"Job -loadtest"}
    assert server(documents)[2]["image"].startswith("registry.example/sentiment")


def objects(documents: Sequence[Document]) -> set[str]:
    """Kinds, and name suffixes after the Deployment's name."""
    name = server(documents)[0]["metadata"]["name"]
    return {f"{document['kind']} {document['metadata']['name'].removeprefix(name)}".rstrip() for document in documents}


@needs_helm
@each_flavour
def test_a_flavour_has_all_its_objects(flavour: str) -> None:
    assert objects(rendered(flavour)) == WHOLE[flavour]
