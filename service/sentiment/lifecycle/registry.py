"""The models of a process and their states: what a name in a request means."""

from collections.abc import Collection, Iterable

from sentiment.errors import ModelNotFound, Unavailable
from sentiment.lifecycle.states import CALLED, FORWARDED, Event, State, Versions
from sentiment.pipeline.served import Served


class Models(Versions[Served]):
    """The models in their states. A name without a version means the version in use. Belongs to one event loop."""

    def __init__(self, default: str) -> None:
        """``default``: the model of requests that name none. In ``name/version``, the version only selects what is loaded at startup."""
        super().__init__()
        self.default = default.partition("/")[0]
        # What calls find, by ``name/version`` and by name; empty while the server starts.
        self._found: dict[str, Served] = {}

    def move(self, model: str, event: Event, loaded: Served | None = None) -> None:
        """Apply an event. ``loaded`` comes with LOADED."""
        super().move(model, event, loaded)
        self._find_anew()

    def follow(self, listed: Iterable[Served], in_use: Collection[Served]) -> None:
        """Take over the states of another process: these models are called, and those of them in use also by their names."""
        self._versions = {served.id: (State.IN_USE if served in in_use else State.READY, served) for served in listed}
        self._find_anew()

    def uses(self, served: Served) -> bool:
        """Whether this is the version in use of its name."""
        return self._found.get(served.name) is served

    def beside(self, served: Served) -> Served | None:
        """The highest loaded version with the same name and labels, if this is the version in use; None without one."""
        if not self.uses(served):
            return None
        labels = set(served.classifier.manifest.labels)
        others = [one for one in self.of(*CALLED) if one is not served and one.name == served.name]
        return max((one for one in others if set(one.classifier.manifest.labels) == labels), key=lambda one: one.version, default=None)

    def all(self) -> list[Served]:
        """All models that calls may name: the default first, then by name and version.

        Raises:
            Unavailable: nothing is loaded yet.
        """
        first = self.find("")
        return [first, *sorted((served for served in self.of(*CALLED) if served is not first), key=lambda served: served.id)]

    def find(self, model: str) -> Served:
        """Look up ``name/version``, ``name`` (its version in use) or the empty string (the default's).

        Raises:
            Unavailable: nothing is loaded yet.
            ModelNotFound: no such model is loaded.
        """
        wanted = model or self.default
        found = self._found.get(wanted)
        if found is None:
            if not self._found:
                raise Unavailable("the server is starting")
            raise ModelNotFound(f"model {wanted[:128]!r} is not loaded; loaded are {', '.join(sorted(self.ids(*CALLED)))}")
        return found

    def _find_anew(self) -> None:
        """Let calls find the models of these states."""
        found = {served.id: served for served in self.of(*CALLED)}
        if found:
            found |= {served.id: served for served in self.of(*FORWARDED)}
            found |= {served.name: served for served in self.of(State.IN_USE)}
        self._found = found
