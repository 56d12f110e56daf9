"""What the check of the image knows without an image: whom it asks for packages, whose pod it runs, how it counts bytes."""

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from tests.deploy.manifests import rendered
from tests.deploy.rules.release import environment, server
from tests.image.build import Layer, layers, pip_configuration
from tests.image.pod import PORTS, chart_pod
from tests.image.sbom import unwanted


def test_pip_looks_where_it_looks_here(tmp_path: Path) -> None:
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


def test_what_only_compiles_or_trains_is_found() -> None:
    needed = ["pkg:pypi/onnxruntime@1.30.0", "pkg:deb/debian/gcc-14-base@14.2.0-19?arch=amd64", "pkg:deb/debian/libgcc-s1@14.2.0-19"]
    wrong = [
        "pkg:deb/debian/g%2B%2B-14@14.2.0-19",
        "pkg:deb/debian/gcc-14@14.2.0-19?arch=amd64",
        "pkg:deb/ubuntu/gcc@4:13",
        "pkg:pypi/torch@2.9.1",
    ]

    assert unwanted([*wrong, *needed]) == wrong


def test_no_configuration_of_pip_is_none_inside() -> None:
    assert pip_configuration("") == ("", [])


@pytest.mark.needs_tool("helm")
def test_the_pod_is_the_charts_but_for_its_ports_and_its_limits() -> None:
    _, theirs, asked = server(rendered("default"))

    pod = chart_pod("500m", "512Mi")["spec"]

    (container,) = pod["containers"]
    told, wanted = environment(container), environment(asked)
    assert container["resources"] == {kind: {"cpu": "500m", "memory": "512Mi"} for kind in ("requests", "limits")}
    assert pod["securityContext"] == theirs["securityContext"]
    same = asked.keys() - {"image", "ports", "resources", "env"}
    assert {key: container[key] for key in same} == {key: asked[key] for key in same}
    assert told.keys() == wanted.keys()
    assert {name for name in told if told[name] != wanted[name]} == PORTS.keys()
    assert "resources" not in chart_pod()["spec"]["containers"][0]


def test_layers_are_told_by_what_they_bring_and_their_bytes(tmp_path: Path) -> None:
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
