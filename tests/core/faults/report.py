"""Make deploy/RELIABILITY.md from the records of the fault tests: python -m tests.core.faults.report FOLDER.

Records in FOLDER are added to deploy/reliability.json, or replace those of the same test, with the day and machine of the run. The page is
made from that file and from the first lines of the tests' docstrings, so that it only states measured results.
"""

import ast
import datetime
import json
import os
import platform
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from tests.core.faults.fates import ANSWERED, HUNG, WRONG

DEPLOY = Path(__file__).parents[3] / "deploy"
KEPT = DEPLOY / "reliability.json"
PAGE = DEPLOY / "RELIABILITY.md"
HEAD = f"""# Reliability

For operators and reviewers: the faults that were injected into the service, what it promises in
each, and how the calls ended that were made during them. Each row is one test in
[tests/core/faults](../tests/core/faults), which fails if its promise is broken and describes the fault in its
docstring.

**Calls** are all that were made, **{WRONG}** those with the answer of another text, **{HUNG}** those
without answer or status five seconds after their deadline. The others ended with an answer or with
the status that the test names. Callers may retry UNAVAILABLE and RESOURCE_EXHAUSTED, as our clients
do. Most tests serve a tiny model: the code paths are the same. Processes, files, sockets, network
namespaces and memory limits are real. **No cluster was available**: what Kubernetes does about a
fault is not shown.

`make faults` writes this page again. [reliability.json](reliability.json) has what each test
measured, with statuses, day and machine.
"""
COLUMNS = 100
SPELLED = {"grpc": "gRPC", "http": "HTTP", "utf8": "UTF-8"}


def declared() -> dict[str, str]:
    """The promise of each fault test that writes a record, by its name, in the order of their files."""
    promises = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and "evidence" in [one.arg for one in node.args.args]:
                promises[node.name.removeprefix("test_")] = (ast.get_docstring(node) or "").partition("\n")[0]
    return promises


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
    order = list(declared())
    return sorted((one for one in records.values() if test_of(one) in order), key=lambda one: order.index(test_of(one)))


def test_of(record: dict[str, Any]) -> str:
    """The name of a record's test, without its parameter."""
    return str(record["name"]).partition("[")[0]


def titled(name: str) -> str:
    """``http_servers_are_killed``: "HTTP servers are killed"."""
    words = " ".join(SPELLED.get(word, word) for word in name.split("_"))
    return words if words.startswith("gRPC") else words[0].upper() + words[1:]


def page(records: list[dict[str, Any]], promises: dict[str, str]) -> str:
    """The page of these records: a row for each test, with the calls of all its parameters."""
    calls: dict[str, Counter[str]] = {}
    for record in records:
        calls.setdefault(test_of(record), Counter()).update(record["calls"])
    total = sum(calls.values(), Counter[str]())
    runs = "; ".join(sorted({f"{record['day']}, {record['machine']}" for record in records}))
    order = (ANSWERED, WRONG, HUNG, *sorted(total.keys() - {ANSWERED, WRONG, HUNG}))
    ended_as = ", ".join(f"{total[name]:,} {name}" for name in order)
    lines = [
        HEAD,
        textwrap.fill(f"{len(calls)} faults, {total.total():,} calls: {ended_as}. Measured on {runs}.", COLUMNS),
        "",
        f"|Fault|Promise|Calls|{WRONG}|{HUNG}|",
        "|---|---|---:|---:|---:|",
    ]
    for name, ended in calls.items():
        figures = (f"{ended.total():,}", ended[WRONG], ended[HUNG]) if ended else ("-", "-", "-")
        lines.append("|".join(["", titled(name), promises[name], *map(str, figures), ""]))
    return "\n".join(lines) + "\n"


def kept() -> list[dict[str, Any]]:
    return list(json.loads(KEPT.read_text(encoding="utf-8"))) if KEPT.exists() else []


def main(folder: Path) -> None:
    records, promises = merged(kept(), gathered(folder)), declared()
    KEPT.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(records, promises), encoding="utf-8")
    missing = sorted(promises.keys() - {test_of(record) for record in records})
    print(f"{PAGE}: {len(records)} records" + (f"; without a record: {', '.join(missing)}" if missing else ""))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
