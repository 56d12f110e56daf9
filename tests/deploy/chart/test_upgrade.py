"""An upgrade from a released chart changes nothing that Kubernetes does not let change, and leaves no object behind.

``released/`` has the charts as ``helm package`` made them at the end of their versions: of f187ca0a (0.1.0) and 44dd8e41 (0.2.0).
"""

import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.chart.manifests import CHART, Document, of_kind, read, values_of, with_one_change
from tests.deploy.chart.rules import RULES
from tests.deploy.chart.rules.release import environment, matches, server

pytestmark = pytest.mark.needs_tool("helm")
RELEASED = sorted((Path(__file__).parent / "released").glob("*.tgz"))
each_release = pytest.mark.parametrize("released", RELEASED, ids=lambda path: path.stem)
# What Kubernetes refuses to change, and the selectors by which old pods and new ones are found during the rollout.
KEPT = {
    "Deployment": ["selector"],
    "StatefulSet": ["selector", "serviceName", "volumeClaimTemplates", "podManagementPolicy"],
    "Service": ["clusterIP", "selector"],
    "PersistentVolumeClaim": ["accessModes", "storageClassName", "volumeName"],
    "PodDisruptionBudget": ["selector"],
    "NetworkPolicy": ["podSelector"],
    "HorizontalPodAutoscaler": ["scaleTargetRef"],
    "ScaledObject": ["scaleTargetRef"],
}


@cache
def template(chart: Path, *flags: str) -> list[Document]:
    command = ["helm", "template", "sentiment", str(chart), "--namespace", "sentiment", *flags]
    return read(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)


def kept(documents: Iterable[Document]) -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and name of what Helm keeps, the fields that stay. Each ``helm test`` makes its jobs again."""
    return {
        (document["kind"], document["metadata"]["name"]): {key: document["spec"].get(key) for key in KEPT.get(document["kind"], [])}
        for document in documents
        if "helm.sh/hook" not in document["metadata"].get("annotations", {})
    }


def lost(before: Iterable[Document], after: Iterable[Document]) -> dict[tuple[str, str], object]:
    """What an upgrade changes or removes of that."""
    now = kept(after)
    return {what: (fields, now.get(what)) for what, fields in kept(before).items() if now.get(what) != fields}


@each_release
@pytest.mark.parametrize("flavour", ["default", "single", "everything", "secured", "laid_over"])
def test_an_upgrade_keeps_every_object_and_what_is_immutable(released: Path, flavour: str) -> None:
    before, after = template(released, *values_of(flavour)), template(CHART, *values_of(flavour))

    assert len(kept(before)) >= 4
    assert lost(before, after) == {}
    pods = server(after)[0]["spec"]["template"]["metadata"]["labels"]
    assert all(matches(service["spec"]["selector"], pods) for service in of_kind(before, "Service"))


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", ("spec", "selector", "matchLabels", "app"), "sentiment"),
        ("Deployment", ("metadata", "name"), "words"),
        ("Service", ("spec", "clusterIP"), "None"),
        ("Service", ("spec", "selector"), {}),
    ],
)
def test_a_change_that_no_upgrade_survives_is_found(kind: str, path: tuple[str, ...], value: object) -> None:
    before = template(RELEASED[0])

    assert lost(before, with_one_change(before, kind, path, value)) != {}


@each_release
def test_values_kept_from_a_release_render_although_they_lack_the_newer_ones(released: Path, tmp_path: Path) -> None:
    # As with --reuse-values: Helm takes the defaults of the earlier chart, too.
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    shown = subprocess.run(["helm", "show", "values", released], check=True, capture_output=True, text=True, timeout=60).stdout
    (chart / "values.yaml").write_text(shown, encoding="utf-8")

    for flavour in ("default", "everything", "secured"):
        before, after = template(released, *values_of(flavour)), template(chart, *values_of(flavour))

        assert lost(before, after) == {}
        assert {rule.__name__: found for rule in RULES if (found := list(rule(after)))} == {}
        assert environment(server(after)[2]).items() >= environment(server(before)[2]).items()
