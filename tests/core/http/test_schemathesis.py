"""schemathesis draws requests from the served /openapi.json, sends them to the server, and compares the answers with it."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.core.grpc.gate import Start, assert_nothing_left
from tests.core.http.http import call

CONFIG = Path(__file__).with_name("schemathesis.toml")
# Drawn for each route, besides those at the limits of each field.
EXAMPLES = 20
LIMIT_S = 120
ROUTES = 12


def test_the_server_is_as_its_document_says(start: Start, tmp_path: Path) -> None:
    # The viewer's page is a route that is not in the document.
    server = start(journal=str(tmp_path / "journal"), viewer=False)
    seed = str(int.from_bytes(os.urandom(3)))
    arguments = ["--phases", "coverage,fuzzing", "--max-examples", str(EXAMPLES), "--seed", seed, "--warnings", "off"]
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", CONFIG, "run", f"{server.url}/openapi.json", *arguments]

    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path, check=False)

    assert ran.returncode == 0, f"seed {seed}\n{ran.stdout}{ran.stderr}"
    assert f"Tested: {ROUTES}" in ran.stdout
    cases = re.search(r"(\d+) generated", ran.stdout)
    assert cases is not None
    assert int(cases[1]) >= EXAMPLES * ROUTES / 2, ran.stdout
    assert call(server, "/v1/classify", {"text": "good"}).status == 200
    assert_nothing_left(server)
