"""The states of a model's version in one process, and the events that lead from one to the next. Pure.

Nothing else decides what follows: an event that has no row in ``TABLE`` is a bug of the caller.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

M = TypeVar("M")


class State(Enum):
    """What a version is, and which calls get it."""

    # Not in memory.
    GONE = auto()
    LOADING = auto()
    # Front ends begin to accept calls for it. Here it gets only those that they forward.
    ANNOUNCED = auto()
    # Calls that name its version get it.
    READY = auto()
    # Calls that name no version get it too. At most one version of a name.
    IN_USE = auto()
    # Like READY. It was in use and may be again, but is unloaded when a load needs its room.
    KEPT = auto()
    # Gets no new calls except those that front ends have accepted.
    LEAVING = auto()
    # Gets no new calls, and answers those that it has.
    ENDING = auto()


class Event(Enum):
    """What happens to a version."""

    BEGUN = auto()
    LOADED = auto()
    FAILED = auto()
    ADDED = auto()
    USED = auto()
    # Another version of the name is put to use.
    REPLACED = auto()
    WITHDRAWN = auto()
    # No front end has a call for it.
    LET_GO = auto()
    RELEASED = auto()


TABLE = {
    (State.GONE, Event.BEGUN): State.LOADING,
    (State.LOADING, Event.LOADED): State.ANNOUNCED,
    (State.LOADING, Event.FAILED): State.GONE,
    (State.ANNOUNCED, Event.ADDED): State.READY,
    (State.ANNOUNCED, Event.FAILED): State.GONE,
    (State.READY, Event.USED): State.IN_USE,
    (State.READY, Event.WITHDRAWN): State.LEAVING,
    (State.IN_USE, Event.REPLACED): State.KEPT,
    (State.IN_USE, Event.WITHDRAWN): State.LEAVING,
    (State.KEPT, Event.USED): State.IN_USE,
    (State.KEPT, Event.WITHDRAWN): State.LEAVING,
    (State.LEAVING, Event.LET_GO): State.ENDING,
    # The front ends could not be asked.
    (State.LEAVING, Event.RELEASED): State.GONE,
    (State.ENDING, Event.RELEASED): State.GONE,
}

# A new call gets a version in these states by its version.
CALLED = (State.READY, State.IN_USE, State.KEPT)
# A call that a front end has accepted gets it in these as well.
FORWARDED = (State.ANNOUNCED, State.LEAVING)

# The names of the states in Triton's repository index.
INDEX_READY, INDEX_LOADING, INDEX_UNLOADING, INDEX_UNAVAILABLE = "READY", "LOADING", "UNLOADING", "UNAVAILABLE"
INDEX = {
    State.GONE: INDEX_UNAVAILABLE,
    State.LOADING: INDEX_LOADING,
    State.ANNOUNCED: INDEX_LOADING,
    State.READY: INDEX_READY,
    State.IN_USE: INDEX_READY,
    State.KEPT: INDEX_READY,
    State.LEAVING: INDEX_UNLOADING,
    State.ENDING: INDEX_UNLOADING,
}


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A version of a model in the index, loaded or on disk. ``state``: one of INDEX; ``reason`` explains it."""

    name: str
    version: str
    state: str
    reason: str = ""


class Versions(Generic[M]):
    """The versions by ``name/version``, each in its state, in the order in which they came to it. Any thread may read it."""

    def __init__(self) -> None:
        # With what there is of each once it is loaded. Replaced at each change, so that a reader never sees half of one.
        self._versions: dict[str, tuple[State, M | None]] = {}

    def state(self, model: str) -> State:
        """The state of a version."""
        return self._versions.get(model, (State.GONE, None))[0]

    def ids(self, *states: State) -> list[str]:
        """The versions in these states."""
        return [model for model, (state, _) in self._versions.items() if state in states]

    def of(self, *states: State) -> list[M]:
        """What there is of the versions in these states."""
        return [loaded for state, loaded in self._versions.values() if state in states and loaded is not None]

    def move(self, model: str, event: Event, loaded: M | None = None) -> None:
        """Apply an event. ``loaded`` comes with LOADED."""
        before, had = self._versions.get(model, (State.GONE, None))
        after = TABLE[before, event]
        others = {other: version for other, version in self._versions.items() if other != model}
        self._versions = others if after is State.GONE else {**others, model: (after, loaded or had)}

    def announce(self, model: str, loaded: M) -> None:
        """Take a version that is loaded already."""
        self.move(model, Event.BEGUN)
        self.move(model, Event.LOADED, loaded)

    def add(self, model: str) -> None:
        """Send an announced version the calls that name it. It is put to use if no version of its name is in use."""
        self.move(model, Event.ADDED)
        if self._in_use(model) is None:
            self.move(model, Event.USED)

    def use(self, model: str) -> str | None:
        """Put a version to use, from the next call on; returns the one that it replaces, None if it was in use."""
        before = self._in_use(model)
        if before == model:
            return None
        # First, because it may be a bug: then nothing changes.
        self.move(model, Event.USED)
        if before is not None:
            self.move(before, Event.REPLACED)
        return before

    def _in_use(self, model: str) -> str | None:
        """The version in use of the same name."""
        name = model.partition("/")[0]
        return next((used for used in self.ids(State.IN_USE) if used.partition("/")[0] == name), None)
