"""What a run begins with or learns from, told by its files: a checkpoint's folder, one that was trained here, or a bundle."""

from pathlib import Path
from typing import Any

from sentiment_models.manifest import MANIFEST_FILE, read_object
from sentiment_models.provenance import Json

TRAINING_FILE = "training.json"


def name_of(base: str) -> str:
    """A bundle's name and version; of another folder its own name, for its path says where it stood on this machine.

    A name such as organisation/model stays.

    Raises:
        ModelsError: a bundle's manifest cannot be read.
    """
    folder = Path(base).resolve()
    if not base or not folder.is_dir():
        return base
    manifest = _manifest(folder)
    return f"{manifest.get('name')}/{manifest.get('version')}" if manifest else folder.name


def training_of(base: str) -> Json:
    """How the base itself was trained, if it was trained here.

    Raises:
        ModelsError: its record cannot be read.
    """
    if not base:
        return None
    record = Path(base) / TRAINING_FILE
    return read_object(record) if record.is_file() else (_manifest(Path(base)).get("provenance") or {}).get("training")


def temperature_of(teacher: Path) -> float:
    """What a bundle's logits are divided by; 1 for what is no bundle.

    Raises:
        ModelsError: its manifest cannot be read.
    """
    calibration = _manifest(teacher).get("calibration")
    return float(calibration["temperature"]) if calibration else 1.0


def _manifest(folder: Path) -> dict[str, Any]:  # plain JSON
    path = folder / MANIFEST_FILE
    return dict(read_object(path)) if path.is_file() else {}
