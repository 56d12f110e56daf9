"""A bundle as a wheel: pip installs it, and the service finds and serves it without its path."""

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from sentiment.errors import BadBundle
from sentiment.model.bundle import BUNDLES_GROUP, load_bundle
from sentiment_models.cli import main
from sentiment_models.export.export import Exported
from sentiment_models.export.wheel import pack

CLASSIFY = "from sentiment import Local\nwith Local('tiny') as local: print(local.classifier.bundle.id)"


@pytest.fixture
def bundle(exported: tuple[Path, Exported], tmp_path: Path) -> Path:
    """A copy with a file that does not belong to it."""
    folder = Path(shutil.copytree(exported[0], tmp_path / "somewhere"))
    (folder / "notes.txt").write_text("private")
    return folder


def test_an_installed_bundle_is_served_by_its_name(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", str(bundle), "--out", str(tmp_path / "dist")]) == 0
    wheel = Path(capsys.readouterr().out.strip())
    manifest = load_bundle(bundle).manifest
    assert wheel.name == f"sentiment_bundle_{manifest.name}-{manifest.version}-py3-none-any.whl"

    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    script = CLASSIFY.replace("tiny", manifest.name)
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert found.stdout.strip() == f"{manifest.name}/{manifest.version}"
    assert not list(site.rglob("notes.txt"))


def test_equal_bundles_make_equal_wheels(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, copy, later = pack(bundle, tmp_path / "one"), Path(shutil.copytree(bundle, tmp_path / "copy")), time.time() + 60
    monkeypatch.setattr("wheel.wheelfile.time.time", lambda: later)
    other = pack(copy, tmp_path / "other")

    assert one.read_bytes() == other.read_bytes()
    with zipfile.ZipFile(one) as file:
        (points,) = [name for name in file.namelist() if name.endswith("entry_points.txt")]
        assert file.read(points).decode().startswith(f"[{BUNDLES_GROUP}]\n")


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(file.read(name).decode())


def relabelled(bundle: Path, label: str) -> Path:
    """Give the first label another name."""
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    first = manifest["labels"][0]
    manifest["labels"][0] = label
    for golden in manifest["golden"]:
        golden["label"] = label if golden["label"] == first else golden["label"]
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    return bundle


# The second would be two lines if somebody decoded it.
@pytest.mark.parametrize("label", [f"n\u00e9gatif: Requires-Dist {'x' * 150}", "=?utf-8?q?a=0ARequires-Dist:_evil?="])
def test_the_metadata_have_no_header_of_the_manifest_or_the_card(bundle: Path, tmp_path: Path, label: str) -> None:
    relabelled(bundle, label)
    (bundle / "MODEL_CARD.md").write_text("Requires-Dist: evil\n\n# \u00c9\n", encoding="utf-8")

    found = metadata(pack(bundle, tmp_path / "dist"))

    assert found.get_all("Requires-Dist") == ["sentiment-service"]
    assert found["Summary"] == f"bert classifier of {label}, positive for sentiment-service"
    assert found.get_payload() == "Requires-Dist: evil\n\n# \u00c9\n"
    assert len(found.keys()) == 7


def test_a_label_of_two_lines_is_not_packed(bundle: Path, tmp_path: Path) -> None:
    relabelled(bundle, "a\nRequires-Dist: evil")

    with pytest.raises(BadBundle, match=r"labels\.0: "):
        pack(bundle, tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


def test_a_damaged_bundle_is_not_packed(bundle: Path, tmp_path: Path) -> None:
    file = bundle / "tokenizer.json"
    file.write_bytes(file.read_bytes() + b" ")

    with pytest.raises(BadBundle, match=r"tokenizer\.json"):
        pack(bundle, tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


def test_a_folder_that_cannot_be_written_is_named(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dist").write_text("a file")

    assert main(["pack", str(bundle), "--out", str(tmp_path / "dist")]) == 1
    assert f"{tmp_path / 'dist'}" in capsys.readouterr().err
