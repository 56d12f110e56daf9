"""Files that are served over HTTP as they are. Pure."""

import hashlib
from dataclasses import dataclass

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One served file. ``etag`` includes its quotes."""

    body: bytes
    content_type: str
    etag: str

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


def has_type(name: str) -> bool:
    """Whether files of this name are served."""
    return name[name.rfind(".") :] in _TYPES


def asset_of(name: str, body: bytes) -> Asset:
    """A file of this name, whose ETag is that of its content."""
    return Asset(body, _TYPES[name[name.rfind(".") :]], f'"{hashlib.sha256(body).hexdigest()[:32]}"')
