"""The runtime, and what it must not do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import make_bundle

LOAD = "import sys; from pathlib import Path; from sentiment.model.session import Session; Session(Path(sys.argv[1]))"


@pytest.mark.parametrize("module", ["sentiment.model.session", "sentiment_models"])
def test_the_runtime_is_told_not_to_report_before_it_loads(module: str) -> None:
    program = f"import os, sys, {module}; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    environment = {name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "CI")}

    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60, check=True)

    assert found.stdout == "1\n"


def test_loading_a_graph_writes_nothing_into_the_home_folder(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    graph = make_bundle(tmp_path / "bundles") / "fp32.onnx"
    # ONNX Runtime keeps quiet in CI by itself: this is about everywhere else.
    environment = {name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "CI")}

    subprocess.run([sys.executable, "-c", LOAD, str(graph)], env={**environment, "HOME": str(home)}, timeout=60, check=True)

    assert list(home.rglob("*")) == []
