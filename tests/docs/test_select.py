"""What a change reaches, for ``make test CHANGED=REV``."""

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.select import ROOT, WINGS, Selection, reached

ALL = sorted(WINGS)


@pytest.mark.parametrize(
    ("path", "wings"),
    [
        ("service/sentiment/settings.py", ALL),
        ("proto/sentiment/v1/sentiment.proto", ALL),
        ("pyproject.toml", ALL),
        ("tests/tiny.py", ALL),
        ("a new file", ALL),
        ("models/sentiment_models/training/scratch.py", ["models"]),
        # A command that the core loads by its entry point, and what the page of the commands is made of.
        ("service/sentiment_tools/commands/top.py", ["core", "docs", "tools"]),
        # Named in a string only.
        ("service/sentiment_front_ends/__main__.py", ["core", "docs", "front_ends"]),
        ("service/sentiment_viewer/assets/dom.js", ["viewer"]),
        ("tests/core/explain/exported/conftest.py", ["core"]),
        # Other tests start its servers.
        ("tests/core/servers.py", ["core", "front_ends", "models", "tools", "viewer"]),
        ("deploy/board.py", ["deploy"]),
        ("tests/bench/slo.py", []),
        ("tests/bench/gpu/bert.py", ["models"]),
    ],
)
def test_a_change_reaches_the_wings_that_import_it(path: str, wings: list[str]) -> None:
    assert sorted(reached([path])) == wings


def test_a_module_that_is_gone_reaches_as_much_as_the_package_around_it() -> None:
    assert "front_ends" in reached(["service/sentiment/batching/gone.py"])
    assert "models" not in reached(["service/sentiment/doors/http/gone.py"])


def test_a_page_reaches_the_tests_that_read_pages() -> None:
    found = reached(["docs/guide/python-client.md"])

    assert found & WINGS == {"docs", "deploy"}
    assert all((ROOT / "tests" / one).exists() for one in found)


def test_each_wing_has_three_smoke_tests() -> None:
    found = {
        wing: sum(text.count("\n@pytest.mark.smoke\n") for text in map(Path.read_text, (ROOT / "tests" / wing).rglob("test_*.py")))
        for wing in WINGS
    }

    assert found == dict.fromkeys(WINGS, 3)


def test_what_is_not_reached_is_left_out_but_for_smoke_tests_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    selection = Selection("HEAD~1", {"viewer", "docs", "core/client/test_guide.py"})
    whole, smoke, none = (ROOT / "tests/core/client" / f"test_{name}.py" for name in ("guide", "alone", "times"))

    assert selection.has(whole)
    assert not selection.has(smoke)
    assert [selection.pytest_ignore_collect(path) for path in (whole, smoke, none)] == [None, None, True]
    selection.pytest_unconfigure(SimpleNamespace())
    assert capsys.readouterr().out.strip().endswith("smoke tests: core, deploy, front_ends, models, tools")


@pytest.mark.needs_tool("make")
def test_a_part_is_refused_where_all_are_required() -> None:
    command = ["make", "--dry-run", "test", "CHANGED=HEAD", "REQUIRE_ALL=1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)

    assert done.returncode == 2
    assert re.search("CHANGED leaves tests out, and REQUIRE_ALL is set", done.stderr)
