"""The loaded models by name."""

from sentiment.errors import ModelNotFound, Unavailable
from sentiment.pipeline.served import Served


class Models:
    """The loaded models by name. Empty while the server starts. A name without a version means the version in use."""

    def __init__(self, default: str) -> None:
        """``default``: the model of requests that name none. In ``name/version``, the version only selects what is loaded at startup."""
        self.default = default.partition("/")[0]
        self._served: dict[str, Served] = {}
        self._in_use: dict[str, Served] = {}
        self._held: dict[str, Served] = {}

    def add(self, served: Served, use: bool = True) -> None:
        """Add a model. ``use``: make it the version in use of its name; the first version of a name always is."""
        self._served[served.id] = served
        if use or served.classifier.manifest.name not in self._in_use:
            self.use(served)

    def use(self, served: Served) -> Served | None:
        """Make this the version in use of its name, from the next request on; returns the previous one, None if it is the same."""
        name = served.classifier.manifest.name
        before = self._in_use.get(name)
        self._in_use[name] = served
        return before if before is not served else None

    def remove(self, served: Served) -> None:
        """Send the model no more requests. If it is the version in use, its name is no longer served."""
        del self._served[served.id]
        name = served.classifier.manifest.name
        if self._in_use.get(name) is served:
            del self._in_use[name]

    def hold(self, served: Served) -> None:
        """Find the model by its id even while it is not one of the loaded models, for calls that another process has accepted for it."""
        self._held[served.id] = served

    def let_go(self, served: Served) -> None:
        """End ``hold``."""
        del self._held[served.id]

    def uses(self, served: Served) -> bool:
        """Whether this is the version in use of its name."""
        return self._in_use.get(served.classifier.manifest.name) is served

    def beside(self, served: Served) -> Served | None:
        """The highest loaded version with the same name and labels, if this is the version in use; None without one."""
        if not self.uses(served):
            return None
        manifest = served.classifier.manifest
        others = [one for one in self._served.values() if one is not served and one.classifier.manifest.name == manifest.name]
        alike = [one for one in others if set(one.classifier.manifest.labels) == set(manifest.labels)]
        return max(alike, key=lambda one: one.classifier.manifest.version, default=None)

    def all(self) -> list[Served]:
        """All models: the default first, then by name and version.

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
        found = self._served.get(wanted) or self._in_use.get(wanted) or self._held.get(wanted)
        if found is None:
            raise ModelNotFound(f"model {wanted[:128]!r} is not loaded; loaded are {', '.join(sorted(self._served))}")
        return found
