"""The states of a model's version, as Triton's repository index names them. Pure."""

from dataclasses import dataclass

READY, LOADING, UNLOADING, UNAVAILABLE = "READY", "LOADING", "UNLOADING", "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A version of a model, loaded or on disk. ``reason`` explains its state."""

    name: str
    version: str
    state: str
    reason: str = ""
