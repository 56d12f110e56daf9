"""Deployment without the chart, and external checkers on all of it."""

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from sentiment.cli.main import _parser
from sentiment.settings import Settings, load_settings
from sentiment_front_ends.supervisor import LEAVE_S
from tests.deploy.chart.manifests import DEPLOY, FLAVOURS, Document, read, rendered
from tests.deploy.chart.rules.pods import RESTRICTED
from tests.deploy.chart.rules.release import environment, server
from tests.deploy.chart.schemas import schemas

DOCKERFILE = DEPLOY.parent / "Dockerfile"
# Fields of the container that differ with KServe.
KSERVES_OWN = {"name", "imagePullPolicy", "env", "securityContext", "ports"}


def from_file(name: str) -> Document:
    (document,) = read((DEPLOY / name).read_text(encoding="utf-8"))
    return document


def compose() -> Document:
    return from_file("compose.yaml")


@pytest.mark.parametrize("name", ["kserve/servingruntime.yaml", "kserve/inferenceservice.yaml"])
def test_kserve_knows_every_field(name: str) -> None:
    document = from_file(name)

    jsonschema.validate(document, schemas()[f"{document['apiVersion']}/{document['kind']}"])


@pytest.mark.needs_tool("helm")
def test_kserve_runs_the_container_of_the_chart() -> None:
    _, pod, container = server(rendered("default"))
    runtime, service = from_file("kserve/servingruntime.yaml")["spec"], from_file("kserve/inferenceservice.yaml")["spec"]["predictor"]
    (theirs,) = runtime["containers"]

    assert {key: theirs.get(key) for key in container.keys() - KSERVES_OWN} == {
        key: container[key] for key in container.keys() - KSERVES_OWN
    }
    # The first port becomes port 80 of the Service and the published URL, which clients call by HTTP/1.1.
    assert theirs["ports"] == sorted(container["ports"], key=lambda port: port["name"] != "http")
    assert environment(theirs) == {**environment(container), "SENTIMENT_BUNDLES": "/mnt/models"}
    assert RESTRICTED.items() <= theirs["securityContext"].items()
    assert {**pod["securityContext"], **theirs["securityContext"]} == {**theirs["securityContext"], "fsGroup": 65532}
    assert runtime["volumes"] == pod["volumes"]
    for field in ("terminationGracePeriodSeconds", "enableServiceLinks", "automountServiceAccountToken"):
        assert service[field] == pod[field]
    assert service["model"]["modelFormat"].items() <= runtime["supportedModelFormats"][0].items()


@pytest.mark.smoke
def test_compose_knows_every_field() -> None:
    jsonschema.validate(compose(), schemas()["compose-spec"], jsonschema.Draft202012Validator)


def test_deployed_images_have_this_version() -> None:
    version = importlib.metadata.version("sentiment-service")
    images = [service["image"] for name, service in compose()["services"].items() if name != "prometheus"]

    assert from_file("chart/Chart.yaml")["appVersion"] == version
    assert {*images, from_file("kserve/servingruntime.yaml")["spec"]["containers"][0]["image"]} == {f"sentiment:{version}"}


def test_compose_locks_every_container_and_is_reached_from_this_machine_alone() -> None:
    for service in compose()["services"].values():
        assert (service["read_only"], service["cap_drop"], service["security_opt"]) == (True, ["ALL"], ["no-new-privileges:true"])
        assert service["mem_limit"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_compose_waits_until_the_server_has_drained() -> None:
    defaults = Settings()
    seconds = int(compose()["services"]["sentiment"]["stop_grace_period"].removesuffix("s"))

    assert seconds > defaults.drain_wait_s + defaults.drain_grace_s + LEAVE_S


def test_compose_names_ports_that_the_image_listens_on() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    variables = dict(re.findall(r"(SENTIMENT_\w+)=(\S+)", text.rpartition(" AS cpu\n")[2]))
    found, _ = load_settings({}, variables)
    listening = {listen.rpartition(":")[2] for listen in (found.grpc_listen, found.http_listen)}

    assert set(re.findall(r"^EXPOSE (\d+) (\d+)$", text, re.MULTILINE)[-1]) == listening
    assert {port.rpartition(":")[2] for port in compose()["services"]["sentiment"]["ports"]} == listening
    assert from_file("prometheus.yaml")["scrape_configs"][0]["static_configs"][0]["targets"] == [f"sentiment:{found.http_listen[-4:]}"]


def test_each_image_asks_its_own_server_whether_it_is_ready() -> None:
    for stage in ("gpu", "cpu"):
        text = DOCKERFILE.read_text(encoding="utf-8").rpartition(f" AS {stage}\n")[2].partition("\nFROM ")[0]
        entrypoint, health = (
            json.loads(found) for found in re.findall(r"^(?:ENTRYPOINT|HEALTHCHECK .* CMD) (\[.*\])$", text, re.MULTILINE)[::-1]
        )

        assert health[:1] == entrypoint
        assert _parser().parse_args(health[1:]).target is None, "the server of the image's variables"
    services = compose()["services"]
    assert "test" not in services["sentiment"]["healthcheck"]
    assert services["loadtest"]["depends_on"]["sentiment"]["condition"] == "service_healthy"


def test_the_command_line_accepts_the_load_test_of_compose() -> None:
    options = _parser().parse_args(compose()["services"]["loadtest"]["command"])

    assert options.target == "sentiment:50051"
    assert options.processes == compose()["services"]["loadtest"]["cpus"]


@pytest.mark.needs_tool("promtool")
def test_prometheus_takes_the_configuration_of_compose(tmp_path: Path) -> None:
    for source in ("prometheus.yaml", "chart/files/rules.yaml"):
        shutil.copy(DEPLOY / source, tmp_path)

    command = ["promtool", "check", "config", tmp_path / "prometheus.yaml"]

    checked = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)

    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    command = [Path(sys.executable).parent / "hadolint", "--config", DEPLOY / ".hadolint.yaml", DOCKERFILE]

    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)

    # If the Dockerfile or the configuration is missing, it writes to stderr.
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


@pytest.mark.needs_tool("helm")
@pytest.mark.needs_tool("checkov")
def test_checkov_finds_nothing(tmp_path: Path) -> None:
    shutil.copy(DOCKERFILE, tmp_path)
    for flavour in FLAVOURS:
        if flavour != "single":  # open to all, on purpose
            (tmp_path / f"{flavour}.yaml").write_text(yaml.safe_dump_all(rendered(flavour)), encoding="utf-8")
    command = ["checkov", "--config-file", DEPLOY / ".checkov.yaml", "--framework", "kubernetes", "dockerfile", "--output", "json"]

    ran = subprocess.run([*command, "--directory", tmp_path], check=False, capture_output=True, text=True, timeout=300)

    found = {report["check_type"]: report for report in json.loads(ran.stdout)}
    failed = [f"{one['check_id']} {one['resource']}" for report in found.values() for one in report["results"]["failed_checks"]]
    assert failed == []
    assert found["kubernetes"]["summary"]["passed"] > 500
    assert found["dockerfile"]["summary"]["passed"] > 50
