"""The loaded models by name."""

from sentiment.errors import ModelNotFound, Unavailable
from sentiment.pipeline import Served


class Models:
    """The loaded models by name. Empty while the server starts."""

    def __init__(self, default: str) -> None:
        self._default = default
        self._served: dict[str, Served] = {}

    def add(self, served: Served) -> None:
        """Serve a model from now on."""
        self._served[served.id] = served

    def all(self) -> list[Served]:
        """The default model first, then by name and version.

        Raises:
            Unavailable: nothing is loaded yet.
        """
        first = self.find("")
        return [first, *(self._served[key] for key in sorted(self._served) if self._served[key] is not first)]

    def find(self, model: str) -> Served:
        """Look up ``name/version``, ``name`` (its highest version) or the empty string (the default).

        Raises:
            Unavailable: nothing is loaded yet.
            ModelNotFound: no such model is loaded.
        """
        if not self._served:
            raise Unavailable("the server is starting")
        wanted = model or self._default
        if wanted in self._served:
            return self._served[wanted]
        versions = [served for served in self._served.values() if served.classifier.manifest.name == wanted]
        if not versions:
            raise ModelNotFound(f"model {wanted[:128]!r} is not loaded; loaded are {', '.join(sorted(self._served))}")
        return max(versions, key=lambda served: served.classifier.manifest.version)
