"""The wheel and the source distribution: what they hold, and that pip and a bundle's wheel in an empty folder are enough to serve."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from sentiment_viewer.page import assets
from tests.conftest import leave_out
from tests.deploy.packaging.conftest import ROOT
from tests.english import NAME
from tests.programs import run, serving
from tests.tiny import make_bundle

TEXTS = {"a gripping, beautifully shot film": "positive", "two hours of my life I will never get back": "negative"}


@pytest.fixture(scope="session")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return set(file.namelist())


def test_wheels_and_source_distribution_pass_the_checks_of_a_package_index(built: Path, wheel: Path, bundle_wheel: Path) -> None:
    """twine renders the description, too."""
    run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), bundle_wheel)
    run(sys.executable, "-m", "check_wheel_contents", wheel, cwd=ROOT)
    run(sys.executable, "-m", "check_wheel_contents", "--no-config", bundle_wheel)


def test_the_source_distribution_makes_the_wheel_of_the_checkout(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT)

    (other,) = tmp_path.glob("*.whl")
    assert other.name == wheel.name
    assert other.read_bytes() == wheel.read_bytes()


@pytest.mark.needs_tool("make")
def test_make_wheels_makes_the_two_wheels_that_the_page_installs(wheel: Path, bundle_wheel: Path, tmp_path: Path) -> None:
    def make(*targets: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(["make", "--silent", *targets], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)

    if make("build/tools/wheels/.installed").returncode:
        leave_out("what makes wheels", "could not be installed")
    done = make("wheels", f"DIST={tmp_path}")
    assert done.returncode == 0, done.stderr
    line = re.search(r"^pip install 'dist/(.*)\[cpu\]' dist/(.*)$", (ROOT / "docs/operate/install.md").read_text(), re.MULTILINE)

    assert line
    assert list(line.groups()) == [wheel.name, bundle_wheel.name]
    assert {path.name for path in tmp_path.iterdir()} == set(line.groups())
    for other in (wheel, bundle_wheel):
        with zipfile.ZipFile(other) as one, zipfile.ZipFile(tmp_path / other.name) as made:
            # Of the package, the name and version of what builds it may differ.
            assert [(file.filename, file.CRC) for file in made.infolist() if ".dist-info/" not in file.filename] == [
                (file.filename, file.CRC) for file in one.infolist() if ".dist-info/" not in file.filename
            ]


@pytest.mark.smoke
@pytest.mark.needs_tool("git")
def test_the_wheel_holds_every_file_of_its_packages_and_nothing_else(names: set[str]) -> None:
    packages = [f"service/{name}" for name in ("sentiment", "sentiment_front_ends", "sentiment_viewer", "sentiment_tools")]
    tracked = run("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", *packages, "models/sentiment_models")
    wanted = {name.partition("/")[2] for name in tracked.splitlines() if (ROOT / name).is_file()}

    assert {name for name in names if ".dist-info/" not in name} == wanted
    assert {"sentiment/py.typed", "sentiment_models/py.typed"} <= names
    assert {f"sentiment_viewer/assets/{name}" for name in assets()} <= names
    assert {"sentiment/v1/sentiment_pb2.py", "sentiment/v1/sentiment_pb2.pyi", "sentiment/oip/inference_pb2_grpc.py"} <= names
    assert not [name for name in names if re.search(r"(^|/)tests?/|bundles/|\.onnx$|\.safetensors$", name)]


def test_the_source_distribution_holds_the_proto_files_and_no_test_bundle_or_page(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as file:
        held = {name.partition("/")[2] for name in file.getnames()}

    assert {"proto/sentiment/v1/sentiment.proto", "pyproject.toml", "CHANGELOG.md", "LICENSE", "PKG-INFO"} <= held
    assert {name.partition("/")[0] for name in held} == {
        *("service", "models", "proto"),
        *("pyproject.toml", "CHANGELOG.md", "LICENSE", "PKG-INFO", ".gitignore"),
    }
    assert not [name for name in held if "bundles" in name]


def test_the_metadata_say_what_the_package_is(metadata: Message, names: set[str]) -> None:
    classifiers = metadata.get_all("Classifier", [])
    versions = {classifier.rpartition(" :: ")[2] for classifier in classifiers if " :: Python :: 3." in classifier}
    description = str(metadata.get_payload())

    assert (metadata["Name"], metadata["License-Expression"], metadata["License-File"]) == ("sentiment-service", "Apache-2.0", "LICENSE")
    assert [name for name in names if name.endswith("dist-info/licenses/LICENSE")]
    assert (metadata["Requires-Python"], versions) == ("<3.14,>=3.11", {"3.11", "3.12", "3.13"})
    assert {"Typing :: Typed", "Operating System :: POSIX :: Linux"} <= set(classifiers)
    # An expression of the licence and its classifier exclude each other.
    assert not [classifier for classifier in classifiers if classifier.startswith("License ::")]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "pip install 'sentiment-service[cpu]'" in description
    # Links into the repository lead nowhere on a package index, and addresses of one machine nowhere at all.
    assert re.findall(r"\]\((?!https://)[^)]*\)", description) == []
    assert [url for url in metadata.get_all("Project-URL", []) if not re.search(r", https://[^/ ]+\.[^/ ]+", url)] == []
    assert not re.search(r"file://|/(?:work|root|home|tmp)/", metadata.as_string())


def test_every_extra_of_the_description_exists(metadata: Message) -> None:
    named = set(re.findall(r"`([a-z]+)`", str(metadata.get_payload()).partition("## Extras")[2].partition("\n\n")[2]))

    assert named - set(metadata.get_all("Provides-Extra", [])) == set()


# In a clean environment


def test_an_installed_bundle_is_served_and_called_in_an_empty_folder(program: Path, clean: Path) -> None:
    assert re.fullmatch(rf"sentiment \S+\nPython \S+, onnxruntime \S+, bundles: {NAME}\n", run(program, "--version"))

    with serving([program]) as ready:
        assert ready["model"] == NAME
        out = run(program, "classify", "--target", str(ready["grpc"]), *TEXTS)
        page = run(program.with_name("python"), "-c", f"import urllib.request as u; print(u.urlopen('http://{ready['http']}/').read())")

    assert [line.split()[0] for line in out.splitlines()] == list(TEXTS.values())
    assert "<title>" in page
    assert list(clean.iterdir()) == []


def test_a_folder_of_bundles_is_served(program: Path, clean: Path, tmp_path: Path) -> None:
    make_bundle(tmp_path / "bundles")

    with serving([program], "--bundles", tmp_path / "bundles", "--model", "tiny") as ready:
        assert ready["model"] == "tiny/1"
        assert run(program, "classify", "--target", str(ready["grpc"]), "good").split()[0] == "positive"


def test_without_a_runtime_serving_says_what_to_install_and_the_client_works(program: Path, clean: Path, tmp_path: Path) -> None:
    """As without the extra ``cpu``: a module of the runtime's name that cannot be found stands before it."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['onnxruntime'] = None\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    done = subprocess.run([program, "serve"], check=False, capture_output=True, text=True, timeout=60, env=environment)

    assert done.returncode == 2
    assert done.stderr == "error: module onnxruntime is missing: run pip install 'sentiment-service[cpu]', or [gpu]\n"
    run(program.with_name("python"), "-c", "from sentiment.client import Client", env=environment)
