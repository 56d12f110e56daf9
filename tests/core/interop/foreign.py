"""Programs of other languages, run beside the tests."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROTO = ROOT / "proto"


def run(command: list[str | Path], folder: Path = ROOT, timeout_s: float = 300) -> str:
    """What a program prints; it must end with 0."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=folder, env=_environment())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def _environment() -> dict[str, str]:
    """Node looks for packages where their programs lie."""
    program = shutil.which("proto-loader-gen-types")
    return {**os.environ, **({} if program is None else {"NODE_PATH": str(Path(program).parents[1])})}
