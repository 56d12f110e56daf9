"""The loaded models by name."""

from sentiment.errors import ModelNotFound, Unavailable
from sentiment.serving.pipeline import Served


class Models:
    """The loaded models by name. Empty while the server starts. A name means one of its versions at any time: that in use."""

    def __init__(self, default: str) -> None:
        """``default``: the model of requests that name none; of ``name/version`` the version only says what is loaded at the start."""
        self.default = default.partition("/")[0]
        self._served: dict[str, Served] = {}
        self._in_use: dict[str, Served] = {}

    def add(self, served: Served, use: bool = True) -> None:
        """Serve a model from now on. ``use``: its name means it; the first one of a name is always what that means."""
        self._served[served.id] = served
        if use or served.classifier.manifest.name not in self._in_use:
            self.use(served)

    def use(self, served: Served) -> Served | None:
        """Let a model's name mean this version of it, from the next request on; returns the one that it meant before, if another."""
        name = served.classifier.manifest.name
        before = self._in_use.get(name)
        self._in_use[name] = served
        return before if before is not served else None

    def remove(self, served: Served) -> None:
        """Give it no requests any more. If its name means it, the name means nothing then."""
        del self._served[served.id]
        name = served.classifier.manifest.name
        if self._in_use.get(name) is served:
            del self._in_use[name]

    def uses(self, served: Served) -> bool:
        """Whether its name means it."""
        return self._in_use.get(served.classifier.manifest.name) is served

    def all(self) -> list[Served]:
        """The default model first, then by name and version.

        Raises:
            Unavailable: nothing is loaded yet.
        """
        first = self.find("")
        return [first, *(self._served[key] for key in sorted(self._served) if self._served[key] is not first)]

    def find(self, model: str) -> Served:
        """Look up ``name/version``, ``name`` (its version in use) or the empty string (the default's).

        Raises:
            Unavailable: nothing is loaded yet.
            ModelNotFound: no such model is loaded.
        """
        if not self._served:
            raise Unavailable("the server is starting")
        wanted = model or self.default
        found = self._served.get(wanted) or self._in_use.get(wanted)
        if found is None:
            raise ModelNotFound(f"model {wanted[:128]!r} is not loaded; loaded are {', '.join(sorted(self._served))}")
        return found
