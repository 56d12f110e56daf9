"""Environments of packages that cannot stand in ours; each is made at the first run, and kept below build/tools."""

import fcntl
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import leave_out

TOOLS = Path(__file__).parents[1] / "build" / "tools"
INSTALL_S_MAX = 480


def environment(name: str, packages: Sequence[str], *, sees_ours: bool = False) -> Path:
    """The Python of an environment with these packages. ``sees_ours``: what the tests have is there too, where it fits.

    Skips the test if they cannot be installed.
    """
    folder = TOOLS / name
    wanted = "\n".join((sys.version, *packages))
    python, stamp = folder / "bin" / "python", folder / ".installed"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        # Several processes run tests: one of them makes the environment.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (stamp.is_file() and stamp.read_text() == wanted):
            try:
                subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, capture_output=True, timeout=INSTALL_S_MAX)
                if sees_ours:
                    # By site, for ours may be an editable install, whose own .pth file counts.
                    (library,) = folder.glob("lib/python*/site-packages")
                    (library / "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
                install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
                subprocess.run(install, check=True, capture_output=True, timeout=INSTALL_S_MAX)
            except (OSError, subprocess.SubprocessError) as error:
                leave_out(name, f"could not be installed ({type(error).__name__})")
            stamp.write_text(wanted)
    return python
