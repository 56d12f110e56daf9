"""What linters do not check: unsafe scripts, files in git, and generated code."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import leave_out

ROOT = Path(__file__).parents[2]
GENERATED = (ROOT / "service/sentiment/v1", ROOT / "service/sentiment/oip")
ASSETS = sorted((ROOT / "service/sentiment_viewer/assets").iterdir())
# Each of these makes HTML, script or style from a text, or stores data in the browser.
UNSAFE = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\(\s*[\"'`](?:style|on)|srcdoc|"
    r"parseFromString|createContextualFragment|localStorage|sessionStorage|javascript:"
)


def tracked() -> list[Path]:
    """The files that git knows or would add."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def test_the_viewer_makes_no_html_of_texts() -> None:
    assert {path.suffix for path in ASSETS} == {".html", ".css", ".js"}
    assert {path.name: found for path in ASSETS if (found := UNSAFE.findall(path.read_text(encoding="utf-8")))} == {}


@pytest.mark.needs_tool("git")
def test_no_path_of_one_machine_is_committed() -> None:
    found = []
    for path in tracked():
        content = path.read_bytes()
        if b"\0" in content[:8192] or (ROOT / "tests") in path.parents:
            continue
        found += [
            f"{path.relative_to(ROOT)}: {line.strip()!r}" for line in content.splitlines() if re.search(rb"(?<![\w.])/(?:work|root)/", line)
        ]

    assert found == []


@pytest.mark.smoke
@pytest.mark.needs_tool("git")
def test_text_files_end_with_one_line_feed_and_have_no_other_line_ends() -> None:
    wrong = []
    for path in tracked():
        if (
            path.suffix in (".py", ".pyi", ".toml", ".md", ".proto", ".yaml", ".yml", ".js", ".css", ".html", ".svg")
            and "bundles" not in path.parts
        ):
            content = path.read_bytes()
            if content and (not content.endswith(b"\n") or content.endswith(b"\n\n") or b"\r" in content):
                wrong.append(str(path.relative_to(ROOT)))

    assert wrong == []


@pytest.fixture(scope="module")
def generator() -> Path:
    """The Python with which ``make proto`` generates code."""
    stamp = Path("build/tools/proto/.installed")
    made = subprocess.run(["make", "--silent", stamp], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if made.returncode:
        leave_out("packages of proto/requirements.txt", "could not be installed")
    return ROOT / stamp.with_name("bin") / "python"


def test_the_generated_code_is_what_the_proto_files_give(tmp_path: Path, generator: Path) -> None:
    # The generator prepends the folder of its plugins.
    command = [generator, "proto/generate.py", tmp_path, tmp_path / "sentiment.pb"]
    subprocess.run(command, cwd=ROOT, env={"PATH": "/usr/bin:/bin"}, capture_output=True, timeout=60, check=True)

    fresh = {path.name: path.read_text() for folder in ("v1", "oip") for path in (tmp_path / "sentiment" / folder).iterdir()}
    committed = {path.name: path.read_text() for folder in GENERATED for path in folder.glob("*.py*") if path.name != "__init__.py"}
    assert sorted(fresh) == sorted(committed)
    assert [name for name in fresh if fresh[name] != committed[name]] == [], "stale: make proto"
    assert (tmp_path / "sentiment.pb").read_bytes() == (ROOT / "deploy/envoy/sentiment.pb").read_bytes(), "stale: make proto"
