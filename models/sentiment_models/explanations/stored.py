"""Read figures that a command wrote as JSON."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from sentiment_models.errors import ModelsError

Figures = TypeVar("Figures", bound=BaseModel)


def stored(path: Path, kind: type[Figures], command: str) -> Figures:
    """Read a file that ``command`` wrote.

    Raises:
        ModelsError: the file cannot be read, or another version or another command wrote it.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ModelsError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise ModelsError(f"{path}: not written by {command} of this version: {where}: {first['msg']}; run the command again") from error
