"""What the script that measures a GPU needs, installed from a folder of wheels, and who is given what lies beside them."""

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.bench.gpu import __main__ as script
from tests.bench.gpu import bench as bench_module
from tests.bench.gpu import slim, wheel_probe, wheels
from tests.bench.gpu.bench import Bench, plan_of

ROOT = Path(__file__).parents[1]
# They need packages that the service does not, or run at their import.
NOT_IMPORTED = ("torch_peer", "triton_peer")


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
    save_wheel(tmp_path / "wheels", "onnxruntime_gpu", "1.31.1", *needs)

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

    assert "'onnxruntime-gpu[cuda,cudnn]<1.32,>=1.31.1'" in capfd.readouterr().err


def test_a_folder_without_wheels_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert wheels.run_with(tmp_path, [], 100) == 2
    assert "holds no wheels" in capfd.readouterr().err


def test_with_all_wheels_the_script_runs_again_with_the_remaining_budget(tmp_path: Path) -> None:
    save_wheel(tmp_path / "wheels", "onnxruntime_gpu", "1.31.1")
    save_wheel(tmp_path / "wheels", "nvidia_ml_py", "13.580.82")
    (tmp_path / "wheels" / "torch").mkdir()
    (tmp_path / "wheels" / "torch" / "torch-9.9-py3-none-any.whl").write_bytes(b"no zip file")
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
    # A peer's wheels cannot spoil the others'.
    assert "wheels/torch: left out: pip ended with" in ran.stdout
    assert json.loads(output.read_text())["meta"]["no_gpu"]


def test_all_wheels_are_named_with_the_commands_that_fetch_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", "--list-wheels", "carried", "--python", "3.12"])

    assert script.main() == 0

    said = capsys.readouterr().out
    commands = [line.strip() for line in said.splitlines() if "pip download" in line]
    assert [command.partition(" -d ")[2].split()[0] for command in commands] == [
        "carried",
        "carried/torch",
        "carried/tensorrt",
        "carried/triton",
    ]
    assert all(" --python-version 3.12 " in command for command in commands)
    assert all(f"'{need}'" in commands[0] for need in ("pip", *wheels.needed()))
    # The project itself is on no index, whatever its extras contain.
    assert "'numpy>=2'" in commands[0]
    assert "sentiment-service" not in commands[0]
    assert commands[2].endswith("'tensorrt-cu13-libs==10.16.1.11'")


def test_tensorrt_is_of_the_library_that_the_wheel_of_onnx_runtime_loads() -> None:
    (tensorrt,) = (peer for peer in wheels.PEERS if peer.name == "tensorrt")

    assert f"libnvinfer.so.{tensorrt.needs[0].partition('==')[2].partition('.')[0]}" == wheel_probe.TENSORRT_LIBRARY


def test_a_peers_packages_are_seen_by_its_own_process_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_wheel(tmp_path / "wheels", "nvidia_pytriton", "0.7.0")
    with zipfile.ZipFile(tmp_path / "wheels" / "nvidia_pytriton-0.7.0-py3-none-any.whl") as archive:
        archive.extractall(tmp_path / "triton")
    (tmp_path / "tensorrt" / "tensorrt_libs").mkdir(parents=True)
    sites = {"triton": str(tmp_path / "triton"), "tensorrt": str(tmp_path / "tensorrt")}
    assert wheels.find_peers()["triton"] is None

    for name, value in wheels.environment(tmp_path / "project", sites).items():
        monkeypatch.setenv(name, value)

    assert wheels.find_peers()["triton"] == "0.7.0"
    assert wheels.with_peer("triton")["PYTHONPATH"].split(os.pathsep)[:2] == [str(tmp_path / "triton"), str(tmp_path / "project")]
    assert wheels.with_peer("torch") == {}
    assert str(tmp_path / "tensorrt" / "tensorrt_libs") in wheels.with_libraries()["LD_LIBRARY_PATH"].split(os.pathsep)
    assert str(tmp_path / "triton") not in os.environ["PYTHONPATH"].split(os.pathsep)


def test_the_tree_is_small_and_has_all_that_the_script_imports_and_a_bundle_that_loads(tmp_path: Path) -> None:
    file = tmp_path / "tree.tar"
    assert slim.save_tar(file) < slim.BYTES_MAX
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path, filter="data")
    tree = tmp_path / slim.FOLDER
    modules = [f"tests.bench.gpu.{path.stem}" for path in (tree / "tests/bench/gpu").glob("*.py") if path.stem not in NOT_IMPORTED]
    code = (
        f"import importlib, sys\nfor name in {modules}: importlib.import_module(name)\n"
        "from sentiment.model.bundle import CHECKOUT_BUNDLES, find_bundle\nfrom sentiment.model.classifier import load_classifier\n"
        "load_classifier(find_bundle('english', [CHECKOUT_BUNDLES]), 'fp32')\n"
        "ours = ('tests', 'sentiment', 'sentiment_models')\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] in ours and getattr(m, '__file__', None)), sep='\\n')"
    )
    path = os.pathsep.join(map(str, (tree, tree / "service", tree / "models")))

    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert [name for name in ran.stdout.splitlines() if not Path(name).is_relative_to(tree)] == []


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
