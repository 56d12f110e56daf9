"""Figures that a command writes as JSON for other commands to read."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from sentiment.model.bundle import Manifest
from sentiment_models.errors import ModelsError


class Stored(BaseModel):
    """Figures, or a part of them. They do not change once they are measured, and a file with others is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Figures = TypeVar("Figures", bound=Stored)


def stored(path: Path, kind: type[Figures], command: str, advice: str = "run the command again") -> Figures:
    """Read a file that ``command`` wrote. ``advice``: what to do about a file that it did not write.

    Raises:
        ModelsError: the file cannot be read, or another version or another command wrote it.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ModelsError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        what = problem(error, "the whole file")
        raise ModelsError(f"{path}: not written by {command} of this version: {what}; {advice}") from error


def refuse_other(manifest: Manifest, name: str, digest: str, measured: str) -> None:
    """Check that a bundle has the file that figures were measured on. ``measured``: the message's words before the file's name.

    Raises:
        ModelsError: the bundle has no such file, or another with its name.
    """
    file = manifest.files.get(name)
    if file is None or file.sha256 != digest:
        known = f"no {name}" if file is None else f"one with SHA-256 {file.sha256[:12]}"
        raise ModelsError(f"{measured} {name} with SHA-256 {digest[:12]}; the bundle has {known}")


def problem(error: ValidationError, whole: str = "") -> str:
    """Return the first problem and its field. ``whole``: the name of what was read, for a problem of no single field."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or whole
    return f"{where}: {first['msg']}" if where else first["msg"]
