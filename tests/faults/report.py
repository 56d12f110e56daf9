"""Make deploy/RELIABILITY.md from the records of the fault tests: python -m tests.faults.report FOLDER.

Records in FOLDER are added to deploy/reliability.json, or replace those of the same test, with the day and machine of the run. The page is
made from that file alone, so that it only states measured results.
"""

import ast
import datetime
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import psutil

from tests.faults.fates import ANSWERED, HUNG, WRONG

DEPLOY = Path(__file__).parents[2] / "deploy"
KEPT = DEPLOY / "reliability.json"
PAGE = DEPLOY / "RELIABILITY.md"
HEAD = f"""# Reliability

Faults that were injected into the service, and how the calls ended that were made during them. Each section is one test in
`tests/faults`, which fails if its promise is broken. The figures are those of the run that is named below them. `make test` runs the quick
tests. `make faults` runs all of them and writes this page; with `SOAK_S=3600` the soak takes an hour, and `INPUTS=1000000` sends a million
malformed inputs.

**{WRONG}** are answers that belong to another text. **{HUNG}** are calls without answer or status five seconds after their deadline. Both
must be 0, or the test fails. All other calls ended with an answer or with the status that is named; callers may retry UNAVAILABLE and
RESOURCE_EXHAUSTED, as our clients do. Unless stated otherwise, the model is a tiny one: the code paths are the same, and the tests are
faster. Processes, files, sockets, network namespaces and memory limits are real. **No cluster was available**, so this page does not show
how Kubernetes reacts to a fault (restart, reschedule, remove from the endpoints).
"""


def declared() -> list[str]:
    """The names of all fault tests that write a record, in the order of their files."""
    names = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and "evidence" in [one.arg for one in node.args.args]:
                names.append(node.name.removeprefix("test_"))
    return names


def gathered(folder: Path) -> list[dict[str, Any]]:
    """The records of a run, with day and machine."""
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    system = f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}"
    machine = f"{os.cpu_count()} cores, {memory}, {system}"
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return [json.loads(path.read_text(encoding="utf-8")) | {"day": day, "machine": machine} for path in sorted(folder.glob("*.json"))]


def merged(kept: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest record of each existing test, in the tests' order. A parametrized test has several."""
    records = {record["name"]: record for record in [*kept, *new]}
    order = declared()

    def place(name: str) -> int:
        return order.index(name.partition("[")[0])

    return sorted((one for name, one in records.items() if name.partition("[")[0] in order), key=lambda one: place(one["name"]))


def titled(name: str) -> str:
    """``a_server_is_killed[front end]``: "A server is killed: front end"."""
    words, _, parameter = name.partition("[")
    title = words.replace("_", " ")
    return title[0].upper() + title[1:] + (f": {parameter.removesuffix(']')}" if parameter else "")


def table(rows: dict[str, Any]) -> list[str]:
    return [f"| {' | '.join(rows)} |", f"|{'---:|' * len(rows)}", f"| {' | '.join(plain(value) for value in rows.values())} |", ""]


def plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def page(records: list[dict[str, Any]]) -> str:
    """The page of these records."""
    calls = [record["calls"] for record in records if record["calls"]]
    total = {name: sum(one.get(name, 0) for one in calls) for name in (ANSWERED, WRONG, HUNG)}
    others = sum(sum(one.values()) for one in calls) - sum(total.values())
    lines = [HEAD]
    lines += [f"{len(records)} faults, {sum(total.values()) + others:,} calls:", ""]
    lines += table(total | {"another status": others})
    group = ""
    for record in records:
        if record["group"] != group:
            group = record["group"]
            lines += [f"## {group}", ""]
        lines += [f"### {titled(record['name'])}", "", record["fault"], ""]
        if record["calls"]:
            lines += table(record["calls"])
        lines += [f"- {name}: {plain(value)}" for name, value in record["measured"].items()]
        lines += [""] if record["measured"] else []
        lines += [f"*{record['day']}, {record['machine']}; {record['seconds']:.0f} s.*", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def kept() -> list[dict[str, Any]]:
    return list(json.loads(KEPT.read_text(encoding="utf-8"))) if KEPT.exists() else []


def main(folder: Path) -> None:
    records = merged(kept(), gathered(folder))
    KEPT.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(records), encoding="utf-8")
    missing = sorted(set(declared()) - {record["name"].partition("[")[0] for record in records})
    print(f"{PAGE}: {len(records)} faults" + (f"; without a record: {', '.join(missing)}" if missing else ""))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
