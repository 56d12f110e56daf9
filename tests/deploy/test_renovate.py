"""The configuration of Renovate, which runs elsewhere: it names files that exist, and its patterns find every pin of the gate."""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CONFIGURATION: dict[str, Any] = json.loads((ROOT / "renovate.json").read_text(encoding="utf-8"))
# Whatever looks like one, with less care than the patterns take: a name, a separator and a version with a dot.
PIN = re.compile(r"(?P<depName>[@\w][\w./-]*)(?:@|==)(?P<currentValue>\d+\.[\w.]*\w)")


def in_python(pattern: str) -> str:
    """A pattern of JavaScript, whose groups are spelled otherwise."""
    return re.sub(r"\(\?<(\w+)>", r"(?P<\1>", pattern)


def files(patterns: list[str]) -> set[str]:
    """The files, by their paths in the repository, that patterns between slashes match."""
    names = [str(path.relative_to(ROOT)) for folder in (".ci", "deploy/locks") for path in (ROOT / folder).iterdir()]
    return {name for name in names for pattern in patterns if re.search(pattern.removeprefix("/").removesuffix("/"), name)}


def test_the_patterns_find_every_pin_of_the_gate_once() -> None:
    text = (ROOT / ".ci/run").read_text(encoding="utf-8")
    found = [
        (each["depName"], each["currentValue"])
        for manager in CONFIGURATION["customManagers"]
        for pattern in manager["matchStrings"]
        for each in re.finditer(in_python(pattern), text)
    ]

    assert len(found) > 5
    assert sorted(found) == sorted((each["depName"], each["currentValue"]) for each in PIN.finditer(text))


def test_each_source_of_pins_has_its_own_pattern() -> None:
    text = (ROOT / ".ci/run").read_text(encoding="utf-8")
    for manager in CONFIGURATION["customManagers"]:
        separator = {"npm": "@", "pypi": "=="}[manager["datasourceTemplate"]]

        assert files(manager["managerFilePatterns"]) == {".ci/run"}
        for pattern in manager["matchStrings"]:
            for each in re.finditer(in_python(pattern), text):
                assert each[0].strip() == f"{each['depName']}{separator}{each['currentValue']}"


def test_it_renews_each_lock_by_a_command_that_it_understands() -> None:
    locks = {name for name in files(["/^deploy/locks/"]) if name.endswith(".txt")}

    assert files(CONFIGURATION["pip-compile"]["managerFilePatterns"]) == locks
    for lock in locks:
        command = (ROOT / lock).read_text(encoding="utf-8").splitlines()[1]
        # It asks for an equal sign, and for the lock's own path from the root.
        assert re.fullmatch(r"#    uv pip compile( --(universal|generate-hashes|[\w-]+=\S+))+ \S+", command)
        assert f" --output-file={lock} " in command


def test_the_files_that_its_rules_name_exist() -> None:
    assert all((ROOT / name).is_file() for rule in CONFIGURATION["packageRules"] for name in rule.get("matchFileNames", []))
