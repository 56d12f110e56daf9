"""Generate cases: pairs of texts from the grammar, each wholly of parts that train or with some that are held out.

Pure: randomness comes from a seed alone. Only ``random()`` is drawn, because its sequence is the same in every Python.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeVar

from sentiment_models.cases.english import Noun, Typing, agreement, joined, sentence
from sentiment_models.cases.grammar import LABELS, SLOT, VERB_FORMS, Domain, Grammar, Phenomenon, Register, Scene
from sentiment_models.errors import ModelsError

COUNT_MIN, COUNT_MAX, COUNT_DEFAULT = 1_000, 200_000, 100_000
SEED = 1
WORDS_MIN, WORDS_MAX = 5, 80
TRAIN, HELD_OUT = "train", "held_out"

# What is held out, pair by pair: 13 of 20 pairs train. Each part is also held out alone, so that a failure says what a model lacks.
PLAN: tuple[frozenset[str], ...] = (
    *[frozenset[str]()] * 13,
    *[frozenset({"template"}), frozenset({"domain"}), frozenset({"lexicon"})] * 2,
    frozenset({"template", "domain", "lexicon"}),
)
# Neighbouring pairs of a phenomenon, and neighbouring phenomena, take places of the plan this far apart; coprime to its length.
STRIDE = 7
# Draws for one pair before the grammar counts as exhausted.
TRIES_MAX = 500
# Chance that a text is in the present tense where it can be.
PRESENT = 0.4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Case:
    """One text. ``pair`` is shared with its opposite; ``held_out`` names what is held out: template, domain, lexicon."""

    label: str
    text: str
    domain: str
    phenomenon: str
    template: str
    register: str
    pair: int
    held_out: tuple[str, ...]

    @property
    def split(self) -> str:
        """``train`` if nothing is held out, else ``held_out``."""
        return HELD_OUT if self.held_out else TRAIN

    def json(self) -> str:
        """Return a line for a .jsonl file that ``train`` and ``evaluate`` read."""
        *others, held_out = asdict(self).items()
        return json.dumps(dict([*others, ("split", self.split), held_out]), ensure_ascii=False)


def generate(grammar: Grammar, seed: int = SEED, count: int = COUNT_DEFAULT) -> Iterator[Case]:
    """Yield ``count`` texts in pairs, the positive one first; of an odd count one less. No two are equal but for case and punctuation.

    Phenomena take turns, so each has the same share of both splits. Equal seeds give equal texts.

    Args:
        grammar: from ``load``.
        seed: any whole number.
        count: COUNT_MIN to COUNT_MAX texts.

    Raises:
        ModelsError: the count is out of range, or the grammar has fewer texts.
    """
    if not COUNT_MIN <= count <= COUNT_MAX:
        raise ModelsError(f"the number of texts must be {COUNT_MIN:,} to {COUNT_MAX:,}, got {count:,}")
    draw = Draw(random.Random(str(seed)))  # noqa: S311 - no secret
    seen: set[str] = set()
    for pair in range(count // 2):
        number, turn = pair % len(grammar.phenomena), pair // len(grammar.phenomena)
        phenomenon, held_out = grammar.phenomena[number], PLAN[(turn + number) * STRIDE % len(PLAN)]
        for _ in range(TRIES_MAX):
            cases = _pair(grammar, phenomenon, held_out, pair, draw)
            letters = {_letters(case.text) for case in cases}
            if len(letters) == 2 and not letters & seen and all(WORDS_MIN <= len(case.text.split()) <= WORDS_MAX for case in cases):
                break
        else:
            raise ModelsError(f"the grammar has too few texts on {phenomenon.name}: gave {2 * pair:,} texts of {count:,}")
        seen |= letters
        yield from cases


def counts(cases: Sequence[Case]) -> str:
    """Return a table of the number of texts by phenomenon and split."""
    found = Counter((case.phenomenon, case.split) for case in cases)
    found += Counter(("all", case.split) for case in cases)
    names = dict.fromkeys(phenomenon for phenomenon, _ in found)
    rows = [("phenomenon", TRAIN, HELD_OUT), *((name, f"{found[name, TRAIN]:,}", f"{found[name, HELD_OUT]:,}") for name in names)]
    return "\n".join(f"{name:<20}{train:>10}{held_out:>10}" for name, train, held_out in rows)


class Draw:
    """Random choices from a generator's ``random()``."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def one(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[int(self.rng.random() * len(items))]

    def some(self, items: Sequence[T], least: int, most: int) -> list[T]:
        """Return between ``least`` and ``most`` different items, or all if there are fewer."""
        left, number = list(items), least + int(self.rng.random() * (most - least + 1))
        return [left.pop(int(self.rng.random() * len(left))) for _ in range(min(number, len(left)))]


class Filling:
    """What the slots of a template are filled with. A slot that occurs twice, or in both texts of the pair, has one choice."""

    def __init__(self, grammar: Grammar, domain: Domain, scene: Scene, noun: Noun, held_out: bool, draw: Draw) -> None:
        self._grammar, self._domain, self._noun, self._held_out, self._draw = grammar, domain, noun, held_out, draw
        kind = grammar.kinds[noun.kind]
        self._fixed = {
            **agreement(noun, "over" not in kind.traits and draw.rng.random() < PRESENT),
            "whole": f"the {scene.whole.word}",
            "wnoun": scene.whole.word,
            "had": kind.had,
        }
        self._chosen: dict[tuple[str, str], str] = {}

    def __call__(self, text: str, side: int) -> str:
        """Fill the slots of a text; ``side``: 0 for the positive member of the pair, 1 for the negative one."""

        def filled(found: re.Match[str]) -> str:
            pole, slot, number = found.groups()
            if (fixed := self._fixed.get(slot)) is not None:
                return fixed
            table, form = VERB_FORMS.get(slot, (slot, 0))
            entry = self._entry(table, number)
            if pole:
                place = {"+": side, "-": 1 - side, "good ": 0, "bad ": 1}[pole]
                entry = entry.split("|")[place]
            if slot in VERB_FORMS:
                entry = entry.split("/")[form]
            return self(entry, side) if "{" in entry else entry

        return SLOT.sub(filled, text)

    def _entry(self, table: str, number: str) -> str:
        key = (table, number)
        if key not in self._chosen:
            entries = self._grammar.table(table, self._noun).half(self._held_out)
            entries += self._domain.asides if table == "aside" else ()
            taken = {entry for (name, _), entry in self._chosen.items() if name == table}
            self._chosen[key] = self._draw.one([entry for entry in entries if entry not in taken])
        return self._chosen[key]


def _pair(grammar: Grammar, phenomenon: Phenomenon, held_out: frozenset[str], pair: int, draw: Draw) -> tuple[Case, Case]:
    domains = [one for one in grammar.domains if one.held_out == ("domain" in held_out) and set(one.registers) & set(phenomenon.registers)]
    templates = [
        one
        for one in phenomenon.templates
        if one.held_out == ("template" in held_out) and ("lexicon" not in held_out or grammar.has_lexicon(one))
    ]
    while True:
        domain, template = draw.one(domains), draw.one(templates)
        scene = draw.one(domain.scenes)
        if nouns := grammar.nouns(template, scene):
            break
    name = draw.one([register for register in domain.registers if register in phenomenon.registers])
    fill = partial(Filling, grammar, domain, scene, draw.one(nouns), "lexicon" in held_out, draw)
    before, after = ([fill()(one, 0) for one in sentences] for sentences in _frame(grammar.registers[name], domain, draw))
    core, typing = fill(), Typing.of_tweets(draw.rng) if name == "tweet" else Typing()
    texts = (typing(joined([*map(sentence, (*before, core(member, side), *after))])) for side, member in enumerate(template.members))
    parts = tuple(sorted(held_out))
    positive, negative = (
        Case(label, text, domain.name, phenomenon.name, template.name, name, pair, parts) for text, label in zip(texts, LABELS, strict=True)
    )
    return positive, negative


def _frame(register: Register, domain: Domain, draw: Draw) -> tuple[list[str], list[str]]:
    """Draw the neutral sentences before and after the core."""
    before = draw.some(domain.before, *register.before)
    after = draw.some(domain.after, *register.after)
    first, last = draw.one(register.first), draw.one(register.last)
    return [one for one in (first, *before) if one], [one for one in (*after, last) if one]


def _letters(text: str) -> str:
    """Return what makes a text distinct: its letters, emoticons and emoji, without case and the marks of sentences."""
    return " ".join(re.findall(r"[^\W_]+|[^\w\s.,!?'\"-]+", text.casefold()))
