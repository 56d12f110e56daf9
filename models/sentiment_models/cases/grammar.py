"""The grammar of cases: templates, the lexicon that fills them, and which parts are held out.

The data are in phenomena.toml (templates), domains.toml (what texts are about), kinds.toml (what can be said of a noun) and lexicon.toml
(words that fit every noun). Pure but for ``load``, which reads them.

A template holds both texts of a minimal pair, the positive one first:

    [yes|no]          "yes" in the positive text, "no" in the negative one
    {the} {was}       the noun, and words that agree with it (``english.agreement``)
    {be} {bent}       was or is, wasn't or isn't: the text is in either tense
    {+adj} {-adj}     an adjective of the noun's kind: +, the good one in the positive text; -, the bad one in the positive text
    {good adj}        the good one in both texts; so {bad adj}
    {adj2}            another choice of the same table
    (single) ...      only nouns with this trait: of their kind, or single (can be counted), or known (a thing one can look for)
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sentiment_models.cases.english import Noun, agreement

FOLDER = Path(__file__).parent
LABELS = ("positive", "negative")
"""The labels of a pair's two texts, in the order of a template's alternatives."""

ALTERNATIVES = re.compile(r"\[([^\[\]|]*)\|([^\[\]|]*)\]")
SLOT = re.compile(r"\{([+-]|good |bad )?([a-z]+)(\d?)\}")
NEEDS = re.compile(r"\(([a-z ]+)\) ")
NOUN_SLOTS = frozenset(agreement(Noun("", "")))
OF_KIND = {"adj": "adjectives", "attr": "adjectives", "event": "events"}
"""Slots that are filled from the noun's kind."""

VERB_FORMS = {
    "love": ("attitude", 0),
    "loved": ("attitude", 1),
    "loving": ("attitude", 2),
    "impress": ("effect", 0),
    "impressed": ("effect", 1),
}
"""Slots for a form of a verb; those of one table are forms of the same verb."""


@dataclass(frozen=True, slots=True)
class Table:
    """Entries of the lexicon in two halves, the second of which is held out. A neutral table may be the same in both.

    An entry with a sentiment is ``good|bad``.
    """

    known: tuple[str, ...]
    held_out: tuple[str, ...]

    @classmethod
    def of(cls, content: Any) -> "Table":  # from TOML: a list, or an object with the keys train and held_out
        """Make a table of what TOML gives: a list, or an object with ``train`` and ``held_out``."""
        if isinstance(content, list):
            return cls(tuple(content), tuple(content))
        return cls(tuple(content["train"]), tuple(content["held_out"]))

    def half(self, held_out: bool) -> tuple[str, ...]:
        """Return one half."""
        return self.held_out if held_out else self.known

    def joined(self, other: "Table") -> "Table":
        """Return the entries of both, half by half."""
        return Table(self.known + other.known, self.held_out + other.held_out)


@dataclass(frozen=True, slots=True)
class Kind:
    """What can be said of nouns of one kind. ``had``: the participle in "I have never had a better one", if there is one."""

    adjectives: Table
    events: Table
    had: str
    traits: frozenset[str]


@dataclass(frozen=True, slots=True)
class Scene:
    """A thing that is judged as a whole, and its parts."""

    whole: Noun
    parts: tuple[Noun, ...]


@dataclass(frozen=True, slots=True)
class Domain:
    """What texts are about. ``before`` and ``after``: neutral sentences; ``asides``: neutral parentheses."""

    name: str
    held_out: bool
    registers: tuple[str, ...]
    scenes: tuple[Scene, ...]
    asides: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Register:
    """How texts of a register begin and end, and how many neutral sentences they have before and after their core (least, most)."""

    first: tuple[str, ...]
    last: tuple[str, ...]
    before: tuple[int, int]
    after: tuple[int, int]


@dataclass(frozen=True)
class Template:
    """One construction: both texts of a pair, the positive one first."""

    name: str
    text: str
    held_out: bool
    needs: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def parse(cls, name: str, text: str, held_out: bool) -> "Template":
        """Parse a template with its needs in parentheses before it."""
        found = NEEDS.match(text)
        needs = frozenset(found[1].split()) if found else frozenset()
        return cls(name, text[found.end() :] if found else text, held_out, needs)

    @cached_property
    def members(self) -> tuple[str, str]:
        """The two texts, their slots unfilled."""
        positive, negative = (ALTERNATIVES.sub(rf"\{side}", self.text) for side in (1, 2))
        return positive, negative

    @cached_property
    def slots(self) -> frozenset[str]:
        """The names of the slots."""
        return frozenset(found[2] for found in SLOT.finditer(self.text))

    @cached_property
    def is_of_whole(self) -> bool:
        """Whether it judges the whole."""
        return "whole" in self.slots

    @cached_property
    def is_of_noun(self) -> bool:
        """Whether it says something of a noun, which is a part of the whole or the whole itself."""
        return bool(self.slots & (NOUN_SLOTS | OF_KIND.keys() | {"had"}))


@dataclass(frozen=True, slots=True)
class Phenomenon:
    """One way in which sentiment is said. ``rule``: how the labels follow."""

    name: str
    rule: str
    registers: tuple[str, ...]
    templates: tuple[Template, ...]


@dataclass(frozen=True, slots=True)
class Grammar:
    """Everything that texts are made of."""

    phenomena: tuple[Phenomenon, ...]
    domains: tuple[Domain, ...]
    kinds: Mapping[str, Kind]
    tables: Mapping[str, Table]
    registers: Mapping[str, Register]

    def nouns(self, template: Template, scene: Scene) -> Sequence[Noun]:
        """Return the nouns of a scene that a template can speak of; none: it does not fit the scene."""
        whole_only = template.is_of_whole and not template.is_of_noun
        if template.is_of_whole and not template.needs <= self._traits(scene.whole):
            return ()
        if whole_only:
            return (scene.whole,)
        nouns = scene.parts if template.is_of_whole else (scene.whole, *scene.parts)
        return [noun for noun in nouns if self._takes(noun, template)]

    def table(self, slot: str, noun: Noun) -> Table:
        """Return the table that fills a slot. Adjectives before a noun are of one word."""
        if slot not in OF_KIND:
            return self.tables[slot]
        kind = self.kinds[noun.kind]
        if slot == "event":
            return kind.events
        every = kind.adjectives.joined(self.tables["adjective"])
        if slot == "adj":
            return every
        return Table(*(tuple(entry for entry in half if " " not in entry) for half in (every.known, every.held_out)))

    def has_lexicon(self, template: Template) -> bool:
        """Whether a word with a sentiment from the lexicon is in a template, so that a half of the lexicon makes a difference."""
        tables = [VERB_FORMS.get(slot, (slot,))[0] for slot in template.slots - OF_KIND.keys()]
        return bool(template.slots & OF_KIND.keys()) or any("|" in self.tables[name].known[0] for name in tables if name in self.tables)

    def _takes(self, noun: Noun, template: Template) -> bool:
        kind = self.kinds[noun.kind]
        fits = template.is_of_whole or template.needs <= self._traits(noun)
        return fits and ("event" not in template.slots or bool(kind.events.known)) and ("had" not in template.slots or bool(kind.had))

    def _traits(self, noun: Noun) -> frozenset[str]:
        return self.kinds[noun.kind].traits | (frozenset() if noun.plural or noun.mass else {"single"})


def load(folder: Path = FOLDER) -> Grammar:
    """Read the grammar from the four files of a folder."""
    phenomena, domains, kinds, lexicon = (
        tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8")) for name in ("phenomena", "domains", "kinds", "lexicon")
    )
    registers = {name: _register(content) for name, content in lexicon.pop("register").items()}
    return Grammar(
        tuple(_phenomenon(content, tuple(registers)) for content in phenomena["phenomenon"]),
        tuple(_domain(content) for content in domains["domain"]),
        {name: _kind(content) for name, content in kinds.items()},
        {name: Table.of(content) for name, content in lexicon.items()},
        registers,
    )


def _phenomenon(content: Mapping[str, Any], registers: tuple[str, ...]) -> Phenomenon:  # TOML has no one type
    return Phenomenon(
        content["name"], content["rule"], tuple(content.get("registers", registers)), tuple(_templates(content["name"], content))
    )


def _templates(phenomenon: str, content: Mapping[str, Any]) -> Iterator[Template]:  # TOML has no one type
    for key, letter in (("templates", ""), ("held_out", "h")):
        for number, text in enumerate(content[key], 1):
            yield Template.parse(f"{phenomenon.replace(' ', '-')}/{letter}{number}", text, key == "held_out")


def _domain(content: Mapping[str, Any]) -> Domain:  # TOML has no one type
    scenes = tuple(Scene(Noun.parse(one["whole"]), tuple(map(Noun.parse, one["parts"]))) for one in content["scenes"])
    asides, before, after = (tuple(content[key]) for key in ("asides", "before", "after"))
    return Domain(content["name"], content.get("held_out", False), tuple(content["registers"]), scenes, asides, before, after)


def _kind(content: Mapping[str, Any]) -> Kind:  # TOML has no one type
    return Kind(
        Table.of(content["adjectives"]), Table.of(content.get("events", [])), content.get("had", ""), frozenset(content.get("traits", ()))
    )


def _register(content: Mapping[str, Any]) -> Register:  # TOML has no one type
    before, after = content["before"], content["after"]
    return Register(tuple(content["first"]), tuple(content["last"]), (before[0], before[1]), (after[0], after[1]))
