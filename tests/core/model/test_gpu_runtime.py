"""The graphs for a GPU under the release that makes them there: onnxruntime-gpu's newest may be older than that of the CPU package."""

import os
import subprocess
import sys
from pathlib import Path

from sentiment.model.gpu.wheel import TESTED
from tests.conftest import leave_out

ROOT = Path(__file__).parents[3]
VERSION = ".".join(map(str, TESTED[0]))


def test_the_graphs_are_made_and_compute_the_same_under_the_wheels_own_release(tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(tmp_path)]
    try:
        subprocess.run([*install, f"onnxruntime=={VERSION}"], check=True, capture_output=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        leave_out(f"onnxruntime {VERSION}", f"could not be installed ({type(error).__name__})")
    # The folder comes before the environment's own onnxruntime.
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    says = f"import onnxruntime; assert onnxruntime.__version__ == {VERSION!r}, onnxruntime.__version__; import pytest, sys; "
    tests = ["-p", "no:cacheprovider", "-p", "no:xdist", "tests/core/model/test_gpu_graphs.py"]

    ran = subprocess.run(
        [sys.executable, "-c", f"{says}sys.exit(pytest.main({tests!r}))"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
