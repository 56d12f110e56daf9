"""What the script that measures a GPU needs, installed from a folder of wheels, and who is given what lies beside them."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.bench.gpu import bench as bench_module
from tests.bench.gpu import wheels
from tests.bench.gpu.bench import Bench, plan_of

ROOT = Path(__file__).parents[1]


def save_wheel(folder: Path, name: str, version: str, *needs: str) -> None:
    """A package that has nothing but its name."""
    described = f"{name}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
        archive.writestr(f"{described}/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{described}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{described}/RECORD", "")


def test_missing_wheels_are_listed_with_the_command_that_fetches_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    needs = ["not-there-either>=2,<3", "numpy>=1", 'only-on-windows>=1; sys_platform == "win32"', 'of-cuda==13.*; extra == "cuda"']
    save_wheel(tmp_path / "wheels", "onnxruntime_gpu", "1.31.0", *needs)

    code = wheels.run_with(tmp_path / "wheels", [], 100)

    said = capfd.readouterr().err
    assert code == 2
    assert "are missing, or older than wanted: 'not-there-either<3,>=2' 'nvidia-ml-py>=13.580' 'of-cuda==13.*'" in said
    assert f"-d {tmp_path}/wheels 'not-there-either<3,>=2' 'nvidia-ml-py>=13.580' 'of-cuda==13.*'" in said
    assert "pip download --only-binary=:all:" in said


def test_missing_wheels_are_listed_with_extras_even_if_the_projects_own_wheel_is_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (ROOT / "pyproject.toml").open("rb") as stream:
        project = tomllib.load(stream)["project"]
    save_wheel(tmp_path / "wheels", project["name"].replace("-", "_"), project["version"])

    assert wheels.run_with(tmp_path / "wheels", [], 100) == 2

    assert "'onnxruntime-gpu[cuda,cudnn]>=1.31'" in capfd.readouterr().err


def test_a_folder_without_wheels_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert wheels.run_with(tmp_path, [], 100) == 2
    assert "holds no wheels" in capfd.readouterr().err


def test_with_all_wheels_the_script_runs_again_with_the_remaining_budget(tmp_path: Path) -> None:
    save_wheel(tmp_path / "wheels", "onnxruntime_gpu", "1.31.0")
    save_wheel(tmp_path / "wheels", "nvidia_ml_py", "13.580.82")
    output = tmp_path / "bench.json"
    flags = ["--device", "cpu", "--budget-s", "1", "--output", str(output)]

    ran = subprocess.run(
        [sys.executable, "-m", "tests.bench.gpu", "--wheels", str(tmp_path / "wheels"), *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    # 1: it had no time for any figure.
    assert ran.returncode in (0, 1), ran.stderr
    assert "installing 2 wheels" in ran.stdout
    assert json.loads(output.read_text())["meta"]["no_gpu"]


def test_cuda_libraries_of_the_wheels_are_used_by_onnx_runtime_and_not_by_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Mapping[str, str]] = {}

    class Started:
        alive = True

        def __init__(self, module: str, said: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
            given[module] = {**os.environ, **(environment or {})}

        def ask(self, until: float, do: str) -> dict[str, str]:
            return {}

    (tmp_path / "site" / "nvidia" / "cu13" / "lib").mkdir(parents=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of/the/machine")
    for name, value in wheels.environment(tmp_path / "site").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bench_module, "Child", Started)
    bench = Bench(plan_of("cuda:0", 2), tmp_path, tmp_path, 5.0)

    bench.inside()
    bench.torch()

    assert given["torch_peer"]["LD_LIBRARY_PATH"] == "/of/the/machine"
    assert given["inside"]["LD_LIBRARY_PATH"].split(":")[0] == str(tmp_path / "site" / "nvidia" / "cu13" / "lib")
    assert given["inside"]["LD_LIBRARY_PATH"].split(":")[-1] == "/of/the/machine"
