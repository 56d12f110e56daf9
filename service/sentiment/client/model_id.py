"""Identity of a model."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelId:
    """The model that answered. Models with the same digest give the same answers."""

    name: str
    version: int
    digest: str
