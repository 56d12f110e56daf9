"""``--wheels DIR``: installs missing packages from a folder of wheels, without a network, into a temporary folder.

Imports nothing but the standard library and, of pip, how requirements are read: it runs before anything is installed. Packages that
this Python has already (a machine's own PyTorch and CUDA libraries, say) are used too, unless a wheel brings the same.
"""

import importlib
import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PROJECT = "sentiment-service"
# The project's extra for GPUs.
EXTRA = "gpu"
# The folders of CUDA libraries, for ONNX Runtime's processes only: PyTorch would prefer them to its own.
LIBRARIES = "GPU_BENCH_LIBRARIES"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def run_with(wheels: Path, argv: list[str], budget_s: float) -> int:
    """Install the wheels and run the script again with them; returns its exit code.

    Args:
        wheels: a folder of .whl files.
        argv: the script's arguments, without ``--wheels`` and ``--budget-s``.
        budget_s: seconds for all of it; what installing takes is taken off.
    """
    begun = time.monotonic()
    files = sorted(wheels.glob("*.whl"))
    if not files:
        print(f"{wheels}: holds no wheels", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="sentiment-wheels-") as folder:
        site = Path(folder)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir"]
        print(f"installing {len(files)} wheels of {wheels}", flush=True)
        code = subprocess.run([*command, "--target", str(site), *map(str, files)], check=False).returncode
        if code:
            print(f"pip could not install the wheels of {wheels}: for Python {sysconfig.get_python_version()}?", file=sys.stderr)
            return 2
        _describe_project(site)
        missing = sorted(lacking([str(site), *sys.path], site))
        if missing:
            print(what_is_missing(missing, wheels), file=sys.stderr)
            return 2
        left_s = budget_s - (time.monotonic() - begun)
        print(f"installed in {time.monotonic() - begun:.0f} s", flush=True)
        again = [sys.executable, "-m", "tests.bench.gpu", *argv, "--budget-s", f"{left_s:.0f}"]
        return subprocess.run(again, cwd=ROOT, env=environment(site), check=False).returncode


def environment(site: Path) -> dict[str, str]:
    """Variables with which Python finds the wheels first, then the checkout; and, ``with_libraries``, the loader CUDA's."""
    path = [str(site), str(ROOT), str(ROOT / "service"), str(ROOT / "models"), *filter(None, [os.environ.get("PYTHONPATH")])]
    # ONNX Runtime searches beside itself, but these wheels are in another folder.
    libraries = [str(lib) for entry in (str(site), *sys.path) for lib in sorted(Path(entry).glob("nvidia/*/lib")) if entry]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), LIBRARIES: os.pathsep.join(libraries)}


def with_libraries() -> dict[str, str]:
    """The additional environment variables of an ONNX Runtime process."""
    found = [os.environ[name] for name in (LIBRARIES, "LD_LIBRARY_PATH") if os.environ.get(name)]
    return {"LD_LIBRARY_PATH": os.pathsep.join(found)} if found else {}


def _describe_project(site: Path) -> None:
    """The metadata of the checkout as a package: name, version and requirements."""
    with (ROOT / "pyproject.toml").open("rb") as stream:
        project = tomllib.load(stream)["project"]
    needs = [*project["dependencies"], *project["optional-dependencies"][EXTRA]]
    folder = site / f"{PROJECT.replace('-', '_')}-{project['version']}.dist-info"
    folder.mkdir(exist_ok=True)
    lines = ["Metadata-Version: 2.1", f"Name: {PROJECT}", f"Version: {project['version']}", *(f"Requires-Dist: {need}" for need in needs)]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")


def lacking(path: list[str], site: Path) -> Iterator[str]:
    """The requirements, of the project and of what it requires, that nothing on ``path`` meets.

    Of what this Python has outside of ``site`` its own needs are taken for met.
    """
    requirements: Any = importlib.import_module("pip._vendor.packaging.requirements")  # Any: pip has no types
    found: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions(path=path):
        # The first one on the path is imported.
        found.setdefault(_plain(distribution.name or ""), distribution)
    waiting: list[tuple[str, tuple[str, ...]]] = [(PROJECT, ())]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while waiting:
        name, extras = one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        distribution = found[name]
        # Only those in the temporary folder were installed without their requirements.
        own = Path(str(distribution.locate_file(""))) == site
        for line in distribution.requires or () if own or extras else ():
            need = requirements.Requirement(line)
            if need.marker and not any(need.marker.evaluate({"extra": extra}) for extra in extras or ("",)):
                continue
            wanted = _plain(need.name)
            if wanted not in found or not need.specifier.contains(found[wanted].version, prereleases=True):
                with_extras = f"[{','.join(sorted(need.extras))}]" if need.extras else ""
                yield f"{need.name}{with_extras}{need.specifier}"
            else:
                waiting.append((wanted, tuple(sorted(need.extras))))


def what_is_missing(missing: Iterable[str], wheels: Path) -> str:
    """The message with the missing wheels and the command that fetches them."""
    version = sysconfig.get_python_version()
    platforms = " ".join(f"--platform {each}" for each in PLATFORMS)
    names = " ".join(f"'{each}'" for each in dict.fromkeys(missing))
    return (
        f"{wheels}: these wheels are missing, or older than wanted: {names}\n"
        f"where there is a network: python3 -m pip download --only-binary=:all: --implementation cp --python-version {version} "
        f"{platforms} -d {wheels} {names}"
    )


def _plain(name: str) -> str:
    """A package name in normalized form."""
    return name.lower().replace("_", "-").replace(".", "-")
