"""The style that a linter does not know, and what is committed twice."""

import ast
import re
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GENERATED = (ROOT / "service/sentiment/v1", ROOT / "service/sentiment/oip")
# A name that says nothing collects what belongs elsewhere.
NO_NAMES = {"utils", "util", "helpers", "helper", "common", "constants", "types", "misc", "base", "manager"}


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py") if path.parent not in GENERATED)


PRODUCT = modules("service", "models/sentiment_models", "proto")
SERVICE = modules("service")
ASSETS = sorted((ROOT / "service/sentiment/viewer/assets").iterdir())
COLUMNS_MAX = 140
# Each makes HTML, script or style of a text. Of attributes only those that a page may write itself are left.
UNSAFE = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\(\s*[\"'`](?:style|on)|srcdoc|"
    r"parseFromString|createContextualFragment|localStorage|sessionStorage|javascript:"
)


def each(paths: list[Path]) -> pytest.MarkDecorator:
    """A test for each path, called by its name in the repository."""
    return pytest.mark.parametrize("path", paths, ids=[str(path.relative_to(ROOT)) for path in paths])


each_product_module = each(PRODUCT)
each_service_module = each(SERVICE)


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def tracked() -> list[Path]:
    """What git knows or would add."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def test_there_is_something_to_look_at() -> None:
    assert len(SERVICE) > 30
    assert len(PRODUCT) > len(SERVICE) + 10


def test_no_module_has_a_name_that_says_nothing() -> None:
    names = {
        part.removesuffix(".py")
        for path in modules("service", "models/sentiment_models", "proto", "tests")
        for part in path.relative_to(ROOT).parts
    }

    assert names & NO_NAMES == set()


@each_product_module
def test_a_module_says_what_it_is(path: Path) -> None:
    assert len((ast.get_docstring(tree(path)) or "").splitlines()[:1]) == 1


@each_product_module
def test_nothing_is_left_to_be_done(path: Path) -> None:
    assert re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", path.read_text(encoding="utf-8")) == []


@each(ASSETS)
def test_what_browsers_read_has_lines_that_can_be_read_and_makes_no_html_of_texts(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")

    assert path.suffix in (".html", ".css", ".js", ".svg")
    assert [number for number, line in enumerate(lines, 1) if len(line) > COLUMNS_MAX] == []
    assert UNSAFE.findall("\n".join(lines)) == []
    assert re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", "\n".join(lines)) == []


def imported(path: Path) -> set[str]:
    """The top-level packages that a module imports anywhere."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


@each_service_module
def test_serving_imports_nothing_that_makes_bundles(path: Path) -> None:
    assert imported(path) & {"torch", "transformers", "optimum", "safetensors", "sentiment_models"} == set()


@each_service_module
def test_only_what_makes_the_graphs_of_a_gpu_imports_onnx(path: Path) -> None:
    assert "onnx" not in imported(path) or path.name in ("gpu_graphs.py", "packed_graph.py")


@each_service_module
def test_only_the_session_imports_the_runtime(path: Path) -> None:
    assert "onnxruntime" not in imported(path) or path.name in ("session.py", "device_session.py", "device_memory.py", "gpu_graphs.py")


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


def test_the_generated_code_is_what_the_proto_files_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The generator puts the plugins' folder there.
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    generator = runpy.run_path(str(ROOT / "proto/generate.py"))
    generator["generate"](tmp_path)
    generator["describe"](tmp_path / "sentiment.pb")

    fresh = {path.name: path.read_text() for folder in ("v1", "oip") for path in (tmp_path / "sentiment" / folder).iterdir()}
    committed = {path.name: path.read_text() for folder in GENERATED for path in folder.glob("*.py*") if path.name != "__init__.py"}
    assert sorted(fresh) == sorted(committed)
    assert [name for name in fresh if fresh[name] != committed[name]] == [], "stale: make proto"
    assert (tmp_path / "sentiment.pb").read_bytes() == (ROOT / "deploy/envoy/sentiment.pb").read_bytes(), "stale: make proto"
