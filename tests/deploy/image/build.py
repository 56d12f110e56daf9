"""The base, the image on it, and how large it is."""

import ast
import configparser
import gzip
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.image.store import IMAGE, Store

ROOT = Path(__file__).resolve().parents[3]
# What the slim images of Debian leave out.
LEFT_OUT = ("doc", "man", "info", "locale")
CHUNK = 2**20


@dataclass(frozen=True)
class Layer:
    """One layer of an image: what it brings, and its bytes as pulled and as unpacked."""

    what: str
    compressed: int
    uncompressed: int


def make_base(store: Store, suite: str) -> str:
    """Debian with its own Python, much like python:slim; returns the image's name."""
    name = f"localhost/python:{suite}"
    if store.has(name):
        return name
    context = store.folder / "base"
    context.mkdir(exist_ok=True)
    leave_out = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in LEFT_OUT]
    keep = "--dpkgopt=path-include=/usr/share/doc/*/copyright"
    packages = "--include=python3,python3-venv,ca-certificates"
    store.run("mmdebstrap", "--variant=apt", packages, *leave_out, keep, suite, context / "base.tar", timeout_s=900)
    (context / "Containerfile").write_text('FROM scratch\nADD base.tar /\nCMD ["python3"]\n', encoding="utf-8")
    store.buildah("bud", "--tag", name, "--file", context / "Containerfile", context, timeout_s=300)
    (context / "base.tar").unlink()
    return name


def build(store: Store, base: str) -> None:
    """The Dockerfile's target ``cpu``, as it stands in the repository; pip looks where it looks on this machine."""
    config, places = pip_of_this_machine()
    file = store.folder / "pip.conf"
    # The address of an index may hold a password.
    file.touch(mode=0o600)
    file.write_text(config, encoding="utf-8")
    mounts = [f"--volume={file}:/etc/pip.conf:ro", *(f"--volume={place}:{place}:ro" for place in places)]
    flags = ["--isolation=chroot", "--network=host", "--layers", "--target=cpu", f"--build-arg=BASE={base}", f"--tag={IMAGE}"]
    never = ["--pull-never"] if base.startswith("localhost/") else []
    store.buildah("bud", *flags, *never, *mounts, "--file", ROOT / "Dockerfile", ROOT, timeout_s=1800)


def pip_of_this_machine() -> tuple[str, list[Path]]:
    """This machine's configuration of pip as one file, and what lies here of the indexes and certificates that it names."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    return pip_configuration(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)


def pip_configuration(listed: str) -> tuple[str, list[Path]]:
    """The same of the lines of ``pip config list``."""
    # What the environment says, ":env:.name", counts most.
    lines = sorted(listed.splitlines(), key=lambda line: line.startswith(":env:"))
    parsed = configparser.RawConfigParser()
    for line in lines:
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        section = "global" if section == ":env:" else section
        if not parsed.has_section(section):
            parsed.add_section(section)
        parsed.set(section, key, str(ast.literal_eval(value)))
    values = [word for section in parsed.sections() for _, value in parsed.items(section) for word in value.split()]
    text = "".join(
        f"[{section}]\n" + "".join(f"{key} = {' '.join(value.split())}\n" for key, value in parsed.items(section))
        for section in parsed.sections()
    )
    return text, sorted({place for value in values if (place := _here(value)) is not None})


def _here(value: str) -> Path | None:
    """What must be seen inside for a value of pip's configuration to mean there what it means here."""
    path = Path(value.removeprefix("file://"))
    if not path.is_absolute() or not path.exists():
        return None
    # The pages of an index point to files beside it.
    return path.parent if value.startswith("file://") else path


def layers(layout: Path) -> list[Layer]:
    """The layers of the only image in a folder of OCI's image layout, base first."""

    def blob(digest: str) -> Path:
        return layout / "blobs" / digest.replace(":", "/")

    (image,) = json.loads((layout / "index.json").read_text(encoding="utf-8"))["manifests"]
    manifest = json.loads(blob(image["digest"]).read_text(encoding="utf-8"))
    config = json.loads(blob(manifest["config"]["digest"]).read_text(encoding="utf-8"))
    made_by = [step.get("created_by", "") for step in config["history"] if not step.get("empty_layer")]
    return [
        Layer(_what(step), layer["size"], _unpacked(blob(layer["digest"]))) for step, layer in zip(made_by, manifest["layers"], strict=True)
    ]


def _what(step: str) -> str:
    copied = re.search(r"COPY .* in (\S+)", step)
    return copied[1] if copied else "base"


def _unpacked(path: Path) -> int:
    with gzip.open(path) as stream:
        return sum(map(len, iter(lambda: stream.read(CHUNK), b"")))
