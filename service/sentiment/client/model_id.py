"""Which model answered."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelId:
    """Who answered; the same digest means the same answers."""

    name: str
    version: int
    digest: str
