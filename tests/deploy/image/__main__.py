"""The image as a pod of the chart runs it, on this machine: ``make image-check`` or ``python -m tests.deploy.image`` (root; some minutes).

Makes a Debian base with Python, builds the Dockerfile's target ``cpu`` on it with buildah, has podman play the chart's own pod, with half a
core and 512 MiB, and asks it: is it locked in, does it answer, do its runners follow the quota, does it end as it should? A second pod
without limits tells what the quota changes and what an explanation takes.

Exit code 0: every check passed; 1: one did not, or the server did not start or answer; 2: a tool is missing, failed or took too long.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from tests.deploy.image.build import Layer, build, layers, make_base
from tests.deploy.image.checks import Check, PodFailed, in_half_a_core, without_limits
from tests.deploy.image.sbom import packages
from tests.deploy.image.store import Store

TOOLS = {
    **dict.fromkeys(("buildah", "podman", "runc", "catatonit", "mmdebstrap"), "apt"),
    "helm": ".ci/run puts it into build/tools/bin",
    "syft": "make build/tools/supply/.installed puts it there",
}
# podman finds catatonit, which holds the namespaces of a pod, in a folder of its own too.
TOOLS_PATH = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/libexec/podman"
MB = 1e6


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.deploy.image", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("build/image"), help="folder for the images and all else; deleted at the end")
    parser.add_argument("--keep", action="store_true", help="leave the folder: the next run takes base and image from it")
    parser.add_argument("--base", default="", help="build on this image of a registry instead of a Debian base made here")
    parser.add_argument("--suite", default="trixie", help="Debian release of the base that is made; its Python must be from 3.11 to 3.13")
    parser.add_argument("--json", type=Path, help="write everything here as well")
    parser.add_argument("--sbom", type=Path, help="write the bill of materials (CycloneDX) here")
    return parser.parse_args()


def cannot(user: int, path: str) -> str:
    """Why it cannot be done by this user with the tools on this path, all of it at once; empty if it can."""
    root = ["cgroups and chroots need root"] if user else []
    lacking = ", ".join(f"{tool} ({where})" for tool, where in TOOLS.items() if shutil.which(tool, path=path) is None)
    return "; ".join([*root, f"not installed: {lacking}"] if lacking else root)


def _print(sizes: list[Layer], checks: list[Check], figures: dict[str, object]) -> None:
    print(f"\n{'layer':24}{'compressed':>14}{'uncompressed':>14}")
    total = Layer("image", sum(layer.compressed for layer in sizes), sum(layer.uncompressed for layer in sizes))
    for layer in (*sizes, total):
        print(f"{layer.what:24}{layer.compressed / MB:11.1f} MB{layer.uncompressed / MB:11.1f} MB")
    print()
    for name, value in figures.items():
        print(f"{name:68}{value}")
    print()
    for check in checks:
        print(f"{'ok    ' if check.ok else 'FAILED'}  {check.what:60}{check.found}" + ("" if check.ok else f"; wanted: {check.wanted}"))


def _run(options: argparse.Namespace, store: Store) -> bool:
    begun = time.monotonic()
    base = options.base or make_base(store, options.suite)
    based = time.monotonic()
    build(store, base)
    figures: dict[str, object] = {"seconds to make the base": f"{based - begun:.0f}", "seconds to build": f"{time.monotonic() - based:.0f}"}
    sizes = layers(store.layout())
    checks: list[Check] = []
    for held, found in (in_half_a_core(store), without_limits(store), packages(store, options.sbom)):
        checks += held
        figures |= found
    _print(sizes, checks, figures)
    if options.json:
        whole = {"layers": [asdict(layer) for layer in sizes], "figures": figures, "checks": [asdict(check) for check in checks]}
        options.json.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    return all(check.ok for check in checks)


def main() -> int:
    """Run it; returns the exit code."""
    options = _options()
    if why := cannot(os.geteuid(), TOOLS_PATH):
        print(f"error: {why}", file=sys.stderr)
        return 2
    store = Store(options.work)
    try:
        return 0 if _run(options, store) else 1
    except PodFailed as error:
        print(f"FAILED  {error}", file=sys.stderr)
        return 1
    except subprocess.TimeoutExpired as error:
        print(f"error: {error.cmd[0]} took over {error.timeout:g} s", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(map(str, error.cmd[:8]))} ...:\n{(error.stderr or '')[-4000:]}", file=sys.stderr)
        return 2
    finally:
        store.close(options.keep)


if __name__ == "__main__":
    sys.exit(main())
