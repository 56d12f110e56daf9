"""Figures that a command wrote as JSON, read again."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from sentiment_models.errors import ModelsError

Figures = TypeVar("Figures", bound=BaseModel)


def stored(path: Path, kind: type[Figures], command: str) -> Figures:
    """Read a file that ``command`` wrote.

    Raises:
        ModelsError: it cannot be read, or holds something else, or is of a version that measured other things.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ModelsError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "as a whole"
        raise ModelsError(f"{path}: not of {command} of this version: {where}: {first['msg']}; measure again") from error
