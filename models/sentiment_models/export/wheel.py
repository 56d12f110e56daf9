"""A bundle as a wheel that pip installs and the service finds."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from wheel.wheelfile import WheelFile

from sentiment.model.bundle import BUNDLES_GROUP, Bundle, load_bundle
from sentiment_models.errors import ModelsError
from sentiment_models.export.copying import copy_files

# Of every file in a wheel, so that equal bundles make equal wheels: the first instant that a zip file can state.
MADE_AT = 315_532_800


def pack(folder: Path, out: Path) -> Path:
    """Write a bundle's wheel into the folder ``out``, which is made if it does not exist. Returns the wheel's path.

    Raises:
        sentiment.errors.BadBundle: the bundle is damaged.
        ModelsError: the wheel cannot be written.
    """
    bundle = load_bundle(folder)
    for name in bundle.manifest.files:
        bundle.check(name)
    manifest = bundle.manifest
    package = f"sentiment_bundle_{re.sub('[^a-z0-9]+', '_', manifest.name)}"
    wheel = out / f"{package}-{manifest.version}-py3-none-any.whl"
    part = wheel.with_suffix(".part")
    with tempfile.TemporaryDirectory() as made:
        tree, built = Path(made) / "tree", Path(made) / wheel.name
        _write(tree, package, bundle)
        with _dated(MADE_AT), WheelFile(built, "w") as file:
            file.write_files(tree)
        try:
            out.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(built, part)
            part.replace(wheel)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            raise ModelsError(f"{wheel}: cannot be written: {error.strerror}") from error
    return wheel


@contextlib.contextmanager
def _dated(seconds: int) -> Iterator[None]:
    """Give every file of a wheel the same time, RECORD too, which ``wheel`` writes itself."""
    name = "SOURCE_DATE_EPOCH"
    before = os.environ.get(name)
    os.environ[name] = str(seconds)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _write(tree: Path, package: str, bundle: Bundle) -> None:
    manifest, distribution = bundle.manifest, package.replace("_", "-")
    folder = tree / package / manifest.name / str(manifest.version)
    folder.mkdir(parents=True)
    copy_files(bundle, folder)
    (tree / package / "__init__.py").write_text(f'"""The bundle {bundle.id} of sentiment-service."""\n', encoding="utf-8")
    info = tree / f"{package}-{manifest.version}.dist-info"
    info.mkdir()
    content = {
        "METADATA": _metadata(bundle, distribution),
        "WHEEL": "Wheel-Version: 1.0\nGenerator: sentiment-models\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": f"[{BUNDLES_GROUP}]\n{manifest.name} = {package}\n",
    }
    for name, text in content.items():
        (info / name).write_text(text, encoding="utf-8")


def _metadata(bundle: Bundle, distribution: str) -> str:
    """Return the package's core metadata, whose description is the card.

    Written by hand: the standard library's email decodes encoded words, so that the label =?utf-8?q?a=0Ab?= would be two lines, and
    packaging.metadata writes names in lower case, which twine does not find.
    """
    manifest = bundle.manifest
    headers = {
        "Metadata-Version": "2.1",
        "Name": distribution,
        "Version": str(manifest.version),
        "Summary": f"{manifest.architecture} classifier of {', '.join(manifest.labels)} for sentiment-service",
        "Requires-Dist": "sentiment-service",
        "Requires-Python": ">=3.11",
        "Description-Content-Type": "text/markdown",
    }
    # A manifest with other values is refused.
    assert all(value.isprintable() for value in headers.values()), headers
    return "".join(f"{name}: {value}\n" for name, value in headers.items()) + f"\n{bundle.card}"
