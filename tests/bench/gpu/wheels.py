"""``--list-wheels``: names what a machine without a network needs. ``--wheels DIR``: installs it from there, into a temporary folder.

Imports nothing but the standard library and, of pip, how requirements are read: it runs before anything is installed. Packages that
this Python has already (a machine's own PyTorch and CUDA libraries, say) are used too, unless a wheel brings the same.

What only a peer needs lies in a folder of its own and is seen by that peer's process only: PyTorch pins other CUDA libraries than ONNX
Runtime takes.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PROJECT = "sentiment-service"
# The project's extra for GPUs.
EXTRA = "gpu"
# The folders of CUDA libraries, for ONNX Runtime's processes only: PyTorch would prefer them to its own.
LIBRARIES = "GPU_BENCH_LIBRARIES"
# Where the packages of each peer are installed, as JSON.
SITES = "GPU_BENCH_SITES"
# pip matches each of them exactly.
PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in (35, 34, 31, 28, 27, 24, 17)), "manylinux2014_x86_64")
# Of the budget, for all wheels: with PyTorch's they have some 5 GB.
INSTALL_S_MAX = 180.0
# A run ends by itself; this is for one that cannot.
LATE_S = 60.0


@dataclass(frozen=True, slots=True)
class Peer:
    """What is measured beside the service, if its packages are there: the first of ``needs`` tells."""

    name: str
    needs: tuple[str, ...]
    gives: str

    @property
    def package(self) -> str:
        """The package that tells whether the peer is there."""
        return self.needs[0].partition("=")[0].partition(">")[0]


PEERS = (Peer("torch", ("torch==2.13.0",), "torch_sdpa, torch_fp16, torch_compiled, --engines, and its products in the probes"),)


def run_with(wheels: Path, argv: list[str], budget_s: float) -> int:
    """Install the wheels and run the script again with them; returns its exit code.

    Args:
        wheels: a folder of .whl files; those of a peer in a folder of its name in it.
        argv: the script's arguments, without ``--wheels`` and ``--budget-s``.
        budget_s: seconds for all of it; what installing takes is taken off.
    """
    begun = time.monotonic()
    until = begun + INSTALL_S_MAX
    if not list(wheels.glob("*.whl")):
        print(f"{wheels}: holds no wheels\n{what_to_fetch(wheels)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="sentiment-wheels-", ignore_cleanup_errors=True) as folder:
        site = Path(folder) / "project"
        pip = _Pip(wheels)
        main = pip.install(wheels, site)
        peers = {peer.name: pip.install(wheels / peer.name, Path(folder) / peer.name) for peer in PEERS if _wheels(wheels / peer.name)}
        if reason := main.fault(until):
            print(f"pip could not install the wheels of {wheels} for Python {sysconfig.get_python_version()}: {reason}", file=sys.stderr)
            for each in peers.values():
                each.fault(0.0)
            return 2
        _describe_project(site)
        missing = sorted(lacking([str(site), *sys.path], site))
        sites: dict[str, str] = {}
        for name, installing in peers.items():
            reason = installing.fault(0.0 if missing else until)
            if reason:
                print(f"{wheels / name}: left out: {reason}", flush=True)
            else:
                sites[name] = str(installing.site)
        if missing:
            print(what_is_missing(missing, wheels), file=sys.stderr)
            return 2
        left_s = max(0.0, budget_s - (time.monotonic() - begun))
        print(f"installed in {time.monotonic() - begun:.0f} s", flush=True)
        again = [sys.executable, "-m", "tests.bench.gpu", *argv, "--budget-s", f"{left_s:.0f}"]
        try:
            return subprocess.run(again, cwd=ROOT, env=environment(site, sites), check=False, timeout=left_s + LATE_S).returncode
        except subprocess.TimeoutExpired:
            return 1


def _wheels(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.whl"))


class _Pip:
    """pip of this Python, or of a wheel of pip."""

    def __init__(self, wheels: Path) -> None:
        own = [file for file in _wheels(wheels) if file.name.startswith("pip-")]
        if importlib.util.find_spec("pip") is None and own:
            # A wheel is a zip file, from which Python runs and imports.
            sys.path.append(str(own[0]))
            self._command = [sys.executable, str(own[0] / "pip")]
        else:
            self._command = [sys.executable, "-m", "pip"]

    def install(self, folder: Path, site: Path) -> "_Installing":
        """Begin to install the wheels of a folder."""
        files = _wheels(folder)
        print(f"installing {len(files)} wheels of {folder}", flush=True)
        flags = ["install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--target", str(site)]
        return _Installing(subprocess.Popen([*self._command, *flags, *map(str, files)], stderr=subprocess.PIPE, text=True), site)


class _Installing:
    """A running installation."""

    def __init__(self, process: "subprocess.Popen[str]", site: Path) -> None:
        self._process, self.site = process, site

    def fault(self, until: float) -> str:
        """Wait for its end, until a monotonic instant; returns why it failed, or nothing."""
        try:
            _, said = self._process.communicate(timeout=max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            return "there was no time to install it"
        last = said.strip().splitlines()[-1:]
        return "" if self._process.returncode == 0 else f"pip ended with {self._process.returncode}: {''.join(last)}"


def environment(site: Path, sites: dict[str, str] | None = None) -> dict[str, str]:
    """Variables with which Python finds the wheels first, then the checkout; and, ``with_libraries``, the loader CUDA's."""
    path = [str(site), str(ROOT), str(ROOT / "service"), str(ROOT / "models"), *filter(None, [os.environ.get("PYTHONPATH")])]
    entries = [str(site), *filter(None, sys.path)]
    # ONNX Runtime searches beside itself, but these wheels are in another folder.
    libraries = [str(lib) for entry in entries for lib in sorted(Path(entry).glob("nvidia/*/lib"))]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        LIBRARIES: os.pathsep.join(libraries),
        SITES: json.dumps(sites or {}),
    }


def with_libraries() -> dict[str, str]:
    """The additional environment variables of an ONNX Runtime process."""
    found = [os.environ[name] for name in (LIBRARIES, "LD_LIBRARY_PATH") if os.environ.get(name)]
    return {"LD_LIBRARY_PATH": os.pathsep.join(found)} if found else {}


def with_peer(name: str) -> dict[str, str]:
    """The additional environment variables of a peer's process, which sees its own packages first."""
    site = _site_of(name)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH")]))} if site else {}


def _site_of(name: str) -> str:
    sites: dict[str, str] = json.loads(os.environ.get(SITES, "{}"))
    return sites.get(name, "")


def find_peers() -> dict[str, str | None]:
    """The version of each peer's package, by the peer's name; None if it is not there."""
    found: dict[str, str | None] = {}
    for peer in PEERS:
        path = [*filter(None, [_site_of(peer.name)]), *sys.path]
        versions = (each.version for each in importlib.metadata.distributions(name=peer.package, path=path))
        found[peer.name] = next(versions, None)
    return found


def why_not(peer: Peer) -> str:
    """The reason for a missing figure of a peer that is not there."""
    return f"{peer.package} is not installed (see --list-wheels)"


def _describe_project(site: Path) -> None:
    """The metadata of the checkout as a package: name, version and requirements."""
    project = _project()
    folder = site / f"{PROJECT.replace('-', '_')}-{project['version']}.dist-info"
    folder.mkdir(exist_ok=True)
    needs = [f"Requires-Dist: {need}" for need in needed()]
    lines = ["Metadata-Version: 2.1", f"Name: {PROJECT}", f"Version: {project['version']}", *needs]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")


def _project() -> dict[str, Any]:  # Any: TOML
    with (ROOT / "pyproject.toml").open("rb") as stream:
        project: dict[str, Any] = tomllib.load(stream)["project"]
    return project


def needed() -> list[str]:
    """What the service needs on a GPU."""
    project = _project()
    extras = {f"{PROJECT}[{name}]": needs for name, needs in project["optional-dependencies"].items()}
    # An extra may contain another, which no index has.
    of_extra = [need for entry in extras[f"{PROJECT}[{EXTRA}]"] for need in extras.get(entry, [entry])]
    return [*project["dependencies"], *of_extra]


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
    names = list(dict.fromkeys(missing))
    return (
        f"{wheels}: these wheels are missing, or older than wanted: {' '.join(map(repr, names))}\n"
        f"where there is a network: {_command(wheels, names, sysconfig.get_python_version())}"
    )


def what_to_fetch(wheels: Path, python: str = "") -> str:
    """All that the script can use, with the commands that fetch it: what it needs, then each peer.

    ``python``: the version of the machine's Python, such as 3.12; "" for this one's.
    """
    python = python or sysconfig.get_python_version()
    lines = [
        f"For Python {python} on x86-64 Linux, where there is a network; then carry {wheels} to the machine and use --wheels.",
        "pip also fetches what these packages need.",
        "",
        # A machine's Python may come without pip.
        f"needed:\n  {_command(wheels, ['pip', *needed()], python)}",
    ]
    for peer in PEERS:
        lines += ["", f"optional, for {peer.gives}:\n  {_command(wheels / peer.name, peer.needs, python)}"]
    return "\n".join(lines)


def _command(folder: Path, names: Iterable[str], python: str) -> str:
    platforms = " ".join(f"--platform {each}" for each in PLATFORMS)
    quoted = " ".join(f"'{name}'" for name in names)
    target = f"--implementation cp --python-version {python} {platforms}"
    return f"python3 -m pip download --only-binary=:all: {target} -d {folder} {quoted}"


def _plain(name: str) -> str:
    """A package name in normalized form."""
    return name.lower().replace("_", "-").replace(".", "-")
