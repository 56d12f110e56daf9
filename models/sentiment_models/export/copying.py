"""A bundle's folder: under another version, and put in the place of an older one."""

import shutil
import tempfile
from pathlib import Path

from sentiment.model.bundle import CARD, MANIFEST, Bundle, load_bundle
from sentiment_models.errors import ModelsError
from sentiment_models.export.manifest import read_object, write_manifest
from sentiment_models.reports.record import record_path


def copy(folder: Path, version: int, out: Path) -> str:
    """Copy a bundle to ``out``, which must not exist. Returns the digest of the copy.

    Only the files that the manifest names and the card are copied, and the record, if there is one, to stand beside the copy. The folder
    appears at once and whole: a server may watch it.

    Raises:
        sentiment.errors.BadBundle: the bundle is damaged.
        ModelsError: it has this version already, or ``out`` exists or cannot be written.
    """
    bundle = load_bundle(folder)
    if version == bundle.manifest.version:
        raise ModelsError(f"--version {version}: {folder} has this version; a copy needs another one")
    if out.exists():
        raise ModelsError(f"{out}: exists; versions are immutable")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # A name that begins with a dot is not a version.
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as made:
            tree = Path(made) / out.name
            tree.mkdir()
            copy_files(bundle, tree)
            write_manifest(tree, {**read_object(tree / MANIFEST), "version": version})
            digest = load_bundle(tree).digest
            tree.rename(out)
        if (record := record_path(folder)).is_file():
            shutil.copyfile(record, record_path(out))
    except OSError as error:
        raise ModelsError(f"{out}: cannot be written: {error.strerror}") from error
    return digest


def copy_files(bundle: Bundle, folder: Path) -> None:
    """Copy the manifest, the files that it names and the card into a folder."""
    for name in dict.fromkeys((MANIFEST, CARD, *bundle.manifest.files)):
        if (bundle.path / name).is_file():
            shutil.copyfile(bundle.path / name, folder / name)


def put_in_place(part: Path, bundle: Path) -> None:
    """Rename a folder that is complete to ``bundle``, and remove what was there."""
    old = bundle.with_name(bundle.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if bundle.exists():
        bundle.rename(old)
    part.rename(bundle)
    shutil.rmtree(old, ignore_errors=True)
