"""A bundle under another version: the same answers, another digest, whole or not there."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sentiment.errors import BadBundle
from sentiment.model import folders
from sentiment.model.bundle import MANIFEST, load_bundle
from sentiment_models.cli import main
from sentiment_models.errors import ModelsError
from sentiment_models.export.copying import copy
from tests.tiny import make_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """tiny/1 with a card, and with a file that does not belong to it."""
    folder = make_bundle(tmp_path)
    (folder / "MODEL_CARD.md").write_text("# tiny")
    (folder / "notes.txt").write_text("private")
    return folder


def test_a_copy_differs_in_the_version_alone_and_takes_a_reference(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["copy", str(bundle), "--version", "2"]) == 0

    one, two = load_bundle(bundle), load_bundle(tmp_path / "tiny" / "2")
    assert two.id == "tiny/2"
    assert two.digest != one.digest
    assert f"digest {two.digest}" in capsys.readouterr().out
    assert {**json.loads((two.path / MANIFEST).read_bytes()), "version": 1} == json.loads((bundle / MANIFEST).read_bytes())
    assert all((two.path / name).read_bytes() == (bundle / name).read_bytes() for name in (*one.manifest.files, "MODEL_CARD.md"))
    assert not (two.path / "notes.txt").exists()
    assert sorted(path.name for path in bundle.parent.iterdir()) == ["1", "2"]
    assert folders.missing(two.path) == ""
    texts = tmp_path / "texts.txt"
    texts.write_text("a good film\nawful\n" * 50)
    assert main(["reference", str(two.path), str(texts), "--name", "usual", "--record"]) == 0
    assert load_bundle(two.path).manifest.references["usual"].texts == 100
    assert load_bundle(bundle).digest == one.digest


def test_a_folder_can_be_named(bundle: Path, tmp_path: Path) -> None:
    copy(bundle, 7, tmp_path / "elsewhere" / "tiny" / "7")

    assert load_bundle(tmp_path / "elsewhere" / "tiny" / "7").id == "tiny/7"


@pytest.mark.parametrize(("version", "says"), [("1", "has this version"), ("3", "exists; versions are immutable")])
def test_no_version_is_written_over(bundle: Path, version: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle.parent / "3").mkdir()

    assert main(["copy", str(bundle), "--version", version]) == 1

    assert says in capsys.readouterr().err


def test_a_damaged_bundle_leaves_nothing(bundle: Path) -> None:
    file = bundle / "tokenizer.json"
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(bytes(content))

    with pytest.raises(BadBundle):
        copy(bundle, 2, bundle.parent / "2")

    assert [path.name for path in bundle.parent.iterdir()] == ["1"]


def test_a_full_disk_leaves_nothing(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", fill)

    with pytest.raises(ModelsError, match="No space left"):
        copy(bundle, 2, bundle.parent / "2")

    assert [path.name for path in bundle.parent.iterdir()] == ["1"]


def test_it_needs_no_torch(bundle: Path) -> None:
    program = "import sys; from sentiment_models.cli import main; sys.exit(main(sys.argv[1:]) or 9 * ('torch' in sys.modules))"

    subprocess.run([sys.executable, "-c", program, "copy", str(bundle), "--version", "2"], check=True, capture_output=True)
