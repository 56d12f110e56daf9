"""The limit of open files."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from sentiment.observability import logs
from sentiment.doors import open_files

logs.configure("info", "json")
resource.setrlimit(resource.RLIMIT_NOFILE, tuple(map(int, sys.argv[1:])))
assert open_files.raise_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("soft", "hard", "events"), [(256, 5000, []), (256, 512, ["low_file_limit"]), (512, 512, ["low_file_limit"])])
def test_the_limit_is_raised_to_the_hard_one_and_a_low_one_is_logged(soft: int, hard: int, events: list[str]) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(soft), str(hard)], capture_output=True, text=True, timeout=60, check=True)

    assert int(ended.stdout) == hard
    assert [json.loads(line)["event"] for line in ended.stderr.splitlines()] == events


SHARES = """
import resource, sys
from sentiment.doors.open_files import grpc_connections, http_connections

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
print(grpc_connections(), http_connections(tls=False), http_connections(tls=True))
"""


@pytest.mark.parametrize(("limit", "granted"), [(512, "332 128 128"), (19_000, "12350 4096 512")])
def test_connections_leave_some_files_to_the_rest(limit: int, granted: str) -> None:
    command = [sys.executable, "-c", SHARES, str(limit)]

    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip() == granted
