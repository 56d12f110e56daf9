"""A folder for images, containers and their state, and the tools that work in it; the machine's own images stay as they are."""

import os
import resource
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

IMAGE = "localhost/sentiment"
# In every hierarchy of cgroups podman puts its pods below it.
PARENT = "libpod_parent"
CGROUPS = Path("/sys/fs/cgroup")
NOFILE_MAX = 65536


class Store:
    """Storage of buildah and podman in ``folder``, which need not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        self._driver = "overlay" if self._has_overlay() else "vfs"
        self._groups_before = _groups()
        config = self.folder / "containers.conf"
        config.write_text(_containers_conf(), encoding="utf-8")
        self._environment = {**os.environ, "CONTAINERS_CONF": str(config), "TMPDIR": str(self.folder / "tmp")}

    def run(self, *command: str | Path, timeout_s: float = 60, with_errors: bool = False) -> str:
        """What the command writes to standard output, ``with_errors`` to standard error too.

        Raises:
            subprocess.CalledProcessError: it failed; ``stderr`` says why.
        """
        # In its folder, for podman's monitor drops files where it is started.
        ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout_s, cwd=self.folder, env=self._environment)
        return ran.stdout + (ran.stderr if with_errors else "")

    def buildah(self, *arguments: str | Path, timeout_s: float = 60) -> str:
        return self.run("buildah", *self._places(), *arguments, timeout_s=timeout_s)

    def podman(self, *arguments: str | Path, timeout_s: float = 60, with_errors: bool = False) -> str:
        command = ("podman", *self._places(), "--tmpdir", self.folder / "podman", *arguments)
        return self.run(*command, timeout_s=timeout_s, with_errors=with_errors)

    def has(self, image: str) -> bool:
        """Whether the image is in it."""
        return bool(self.buildah("images", "--quiet", "--filter", f"reference={image}").strip())

    def layout(self) -> Path:
        """The image as a registry would have it, compressed: a folder of OCI's image layout."""
        path = self.folder / "layout"
        shutil.rmtree(path, ignore_errors=True)
        self.buildah("push", "--quiet", IMAGE, f"oci:{path}:cpu", timeout_s=300)
        return path

    def close(self, keep: bool) -> None:
        """End what still runs, and unless it is to be kept delete the folder."""
        with suppress(subprocess.SubprocessError):
            self.podman("pod", "rm", "--all", "--force", "--time", "0")
        # podman forgets those of hierarchies without limits.
        for group in sorted(_groups() - self._groups_before, reverse=True):
            try:
                group.rmdir()
            except OSError as error:
                print(f"left behind: {error}", file=sys.stderr)
        if not keep:
            # As a mount point it would not go.
            subprocess.run(["umount", self.folder / "storage/overlay"], check=False, capture_output=True, timeout=10)
            shutil.rmtree(self.folder)

    def _places(self) -> tuple[str | Path, ...]:
        return ("--root", self.folder / "storage", "--runroot", self.folder / "run", "--storage-driver", self._driver)

    def _has_overlay(self) -> bool:
        """Whether the kernel mounts one here: in a container it may not. Without it every layer is a copy of all below it, in minutes."""
        probe = self.folder / "probe"
        for name in ("lower", "upper", "work", "merged"):
            (probe / name).mkdir(parents=True, exist_ok=True)
        options = f"lowerdir={probe}/lower,upperdir={probe}/upper,workdir={probe}/work"
        command = ["mount", "-t", "overlay", "overlay", "-o", options, str(probe / "merged")]
        try:
            mounted = subprocess.run(command, check=False, capture_output=True, timeout=10).returncode == 0
            if mounted:
                subprocess.run(["umount", probe / "merged"], check=True, timeout=10)
        finally:
            shutil.rmtree(probe, ignore_errors=True)
        return mounted


def _groups() -> set[Path]:
    """Podman's cgroups of any pod, in all hierarchies."""
    parents = {path for pattern in (PARENT, f"*/{PARENT}") for path in CGROUPS.glob(pattern)}
    return parents | {path for parent in parents for path in parent.rglob("*") if path.is_dir()}


def _containers_conf() -> str:
    """What podman needs where no systemd runs and the limits of open files are lower than it would set."""
    nofile = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], NOFILE_MAX)
    return (
        f'[containers]\ndefault_ulimits = ["nofile={nofile}:{nofile}", "nproc=1024:1024"]\n'
        f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nlock_type = "file"\n'
        # crun refuses machines that have cgroups of both versions.
        'runtime = "runc"\n'
    )
