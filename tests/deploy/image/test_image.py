"""The parts of the image check that need no image: package sources, the pod, and layer sizes."""

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.chart.manifests import rendered
from tests.deploy.chart.rules.release import environment, server
from tests.deploy.image.__main__ import TOOLS, cannot
from tests.deploy.image.build import Layer, layers, pip_configuration
from tests.deploy.image.pod import PORTS, chart_pod
from tests.deploy.image.sbom import unwanted


def test_all_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    for tool in TOOLS:
        (tmp_path / tool).touch(mode=0o755)

    assert cannot(0, str(tmp_path)) == ""
    for tool in ("catatonit", "helm", "runc"):
        (tmp_path / tool).unlink()
    assert cannot(1000, str(tmp_path)) == (
        f"cgroups and chroots need root; not installed: runc (apt), catatonit (apt), helm ({TOOLS['helm']})"
    )


def test_without_tools_nothing_is_built(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.deploy.image", "--work", tmp_path / "work"]

    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PATH": str(tmp_path)})

    assert ran.returncode == 2
    assert re.search("^error: .*buildah .*podman .*runc .*mmdebstrap .*helm .*syft", ran.stderr)
    assert not (tmp_path / "work").exists()


def test_pip_in_the_image_uses_the_same_sources(tmp_path: Path) -> None:
    (tmp_path / "index/simple").mkdir(parents=True)
    (tmp_path / "authority.pem").touch()
    listed = (
        f":env:.find-links='{tmp_path}'\nglobal.cert='{tmp_path}/authority.pem'\nglobal.find-links='/overruled'\n"
        f"install.extra-index-url='https://index.example/simple\\nfile://{tmp_path}/index/simple'\n"
    )

    text, places = pip_configuration(listed)

    assert text == (
        f"[global]\ncert = {tmp_path}/authority.pem\nfind-links = {tmp_path}\n"
        f"[install]\nextra-index-url = https://index.example/simple file://{tmp_path}/index/simple\n"
    )
    assert places == [tmp_path, tmp_path / "authority.pem", tmp_path / "index"]


def test_packages_that_only_compile_or_train_are_found() -> None:
    needed = ["pkg:pypi/onnxruntime@1.30.0", "pkg:deb/debian/gcc-14-base@14.2.0-19?arch=amd64", "pkg:deb/debian/libgcc-s1@14.2.0-19"]
    wrong = [
        "pkg:deb/debian/g%2B%2B-14@14.2.0-19",
        "pkg:deb/debian/gcc-14@14.2.0-19?arch=amd64",
        "pkg:deb/ubuntu/gcc@4:13",
        "pkg:pypi/torch@2.9.1",
    ]

    assert unwanted([*wrong, *needed]) == wrong


def test_without_a_pip_configuration_the_image_gets_none() -> None:
    assert pip_configuration("") == ("", [])


@pytest.mark.needs_tool("helm")
def test_the_pod_is_that_of_the_chart_except_for_ports_and_limits() -> None:
    _, theirs, original = server(rendered("default"))

    pod = chart_pod("500m", "512Mi")["spec"]

    (container,) = pod["containers"]
    actual, expected = environment(container), environment(original)
    assert container["resources"] == {kind: {"cpu": "500m", "memory": "512Mi"} for kind in ("requests", "limits")}
    assert pod["securityContext"] == theirs["securityContext"]
    same = original.keys() - {"image", "ports", "resources", "env"}
    assert {key: container[key] for key in same} == {key: original[key] for key in same}
    assert actual.keys() == expected.keys()
    assert {name for name in actual if actual[name] != expected[name]} == PORTS.keys()
    assert "resources" not in chart_pod()["spec"]["containers"][0]


def test_layers_are_listed_by_content_and_size(tmp_path: Path) -> None:
    def put(content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (tmp_path / "blobs/sha256").mkdir(parents=True, exist_ok=True)
        (tmp_path / "blobs/sha256" / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    packed = [gzip.compress(bytes(size)) for size in (3_000_000, 70)]
    steps = [
        {"created_by": "/bin/sh -c #(nop) ADD file:0a in / "},
        {"created_by": "/bin/sh -c #(nop) ENV A=B", "empty_layer": True},
        {"created_by": "/bin/sh -c #(nop) COPY dir:0b in /models "},
    ]
    config = put(json.dumps({"history": steps}).encode())
    manifest = put(json.dumps({"config": config, "layers": [put(one) for one in packed]}).encode())
    (tmp_path / "index.json").write_text(json.dumps({"manifests": [manifest]}), encoding="utf-8")

    found = layers(tmp_path)

    assert found == [Layer("base", len(packed[0]), 3_000_000), Layer("/models", len(packed[1]), 70)]
