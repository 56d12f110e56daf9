"""The table of states, and what a name means whatever has happened to the versions."""

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentiment.errors import ModelNotFound, Unavailable
from sentiment.lifecycle.registry import Models
from sentiment.lifecycle.states import CALLED, FORWARDED, INDEX, INDEX_READY, TABLE, Event, State


def version_of(name: str, version: int) -> Any:
    return SimpleNamespace(id=f"{name}/{version}", name=name, version=version)


VERSIONS = [version_of("tiny", 1), version_of("tiny", 2), version_of("other", 1)]
CHANGES: dict[str, Callable[[Models, Any], object]] = {
    "begun": lambda models, served: models.move(served.id, Event.BEGUN),
    "loaded": lambda models, served: models.move(served.id, Event.LOADED, served),
    "failed": lambda models, served: models.move(served.id, Event.FAILED),
    "add": lambda models, served: models.add(served.id),
    "use": lambda models, served: models.use(served.id),
    "withdrawn": lambda models, served: models.move(served.id, Event.WITHDRAWN),
    "let_go": lambda models, served: models.move(served.id, Event.LET_GO),
    "released": lambda models, served: models.move(served.id, Event.RELEASED),
}
drawn = st.lists(st.tuples(st.sampled_from(VERSIONS), st.sampled_from(sorted(CHANGES))), max_size=60)


def found(models: Models, model: str) -> object:
    try:
        return models.find(model)
    except (ModelNotFound, Unavailable) as error:
        return type(error)


def after(changes: list[tuple[Any, str]]) -> Models:
    """The models after those of the changes that the table allows."""
    models = Models("tiny")
    for served, change in changes:
        before = {one.id: models.state(one.id) for one in VERSIONS}
        try:
            CHANGES[change](models, served)
        except KeyError:
            assert {one.id: models.state(one.id) for one in VERSIONS} == before
    return models


def reached(start: State) -> set[State]:
    """The states that follow, by whatever events."""
    seen = {start}
    while more := {after for (before, _), after in TABLE.items() if before in seen} - seen:
        seen |= more
    return seen


def test_every_state_follows_from_gone_and_leads_back_to_it() -> None:
    assert reached(State.GONE) == set(State)
    assert all(State.GONE in reached(state) for state in State)
    assert {event for _, event in TABLE} == set(Event)


def test_the_index_shows_those_states_as_ready_whose_version_calls_may_name() -> None:
    assert {state for state, shown in INDEX.items() if shown == INDEX_READY} == set(CALLED)
    assert set(INDEX) == set(State)


@given(drawn)
def test_whatever_happens_a_name_means_its_only_version_in_use_and_a_version_itself_while_it_gets_calls(
    changes: list[tuple[Any, str]],
) -> None:
    models = after(changes)

    called = [one for one in VERSIONS if models.state(one.id) in CALLED]
    in_use = {one.name: one for one in called if models.state(one.id) is State.IN_USE}
    nothing = ModelNotFound if called else Unavailable
    assert len(in_use) == len(models.ids(State.IN_USE))
    for one in VERSIONS:
        gets_calls = called and models.state(one.id) in (*CALLED, *FORWARDED)
        assert found(models, one.id) == (one if gets_calls else nothing)
        assert models.uses(one) is (one in in_use.values())
    for name in ("tiny", "other"):
        assert found(models, name) == in_use.get(name, nothing)
    assert found(models, "") == in_use.get("tiny", nothing)
    if "tiny" in in_use:
        assert models.all() == [in_use["tiny"], *sorted((one for one in called if one is not in_use["tiny"]), key=lambda one: one.id)]


@given(drawn)
def test_whatever_happens_a_name_with_a_called_version_has_one_in_use_until_it_is_withdrawn(changes: list[tuple[Any, str]]) -> None:
    models = after([(served, change) for served, change in changes if change != "withdrawn"])

    names = {model.partition("/")[0] for model in models.ids(*CALLED)}
    assert {model.partition("/")[0] for model in models.ids(State.IN_USE)} == names


@given(drawn)
def test_the_version_kept_longest_comes_first_and_only_one_that_was_in_use_is_kept(changes: list[tuple[Any, str]]) -> None:
    models = Models("tiny")
    for served, change in changes:
        kept, in_use = models.ids(State.KEPT), models.ids(State.IN_USE)
        with contextlib.suppress(KeyError):
            CHANGES[change](models, served)
        now = models.ids(State.KEPT)
        assert now == [model for model in [*kept, *in_use] if model in now]


def test_an_event_that_a_state_does_not_have_is_a_bug() -> None:
    with pytest.raises(KeyError):
        Models("tiny").move("tiny/1", Event.LOADED, VERSIONS[0])
