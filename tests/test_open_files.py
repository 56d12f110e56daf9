"""The limit of open files."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from sentiment.observability import logs
from sentiment.serving import open_files

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


SHARE = "import resource, sys; from sentiment.serving.open_files import http_connections; soft, stated = map(int, sys.argv[1:]); "
SHARE += "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft)); print(http_connections(stated))"


@pytest.mark.parametrize(("limit", "stated", "granted"), [(512, 0, 128), (512, 300, 300), (19_000, 0, 4096)])
def test_http_connections_may_take_a_quarter_of_the_files_unless_a_number_is_stated(limit: int, stated: int, granted: int) -> None:
    command = [sys.executable, "-c", SHARE, str(limit), str(stated)]

    assert int(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout) == granted
