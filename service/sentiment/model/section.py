"""A section of a bundle's manifest."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section, immutable. Manifests of later releases may have more fields; unknown ones are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False, protected_namespaces=())
