"""CheckList-style behavioural tests: texts whose correct label, or correct change of the answer, is known by construction.

Ribeiro et al. 2020, "Beyond Accuracy: Behavioral Testing of NLP Models with CheckList". The templates are in
behaviours.toml. Pure; knows nothing of the model that answers.
"""

import itertools
import random
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentiment_models.data.perturb import recase, typos
from sentiment_models.evaluation.findings import BehaviourFound, Failure

FILE = Path(__file__).with_name("behaviours.toml")
NEGATIVE, POSITIVE = "negative", "positive"
CASES_MAX = 36
SEED = 7
# A probability may move the wrong way by this much before it counts, as in CheckList.
MOVE_MAX = 0.1
EXAMPLES_MAX = 5
SLOT = re.compile(r"\{([a-z]+)(?:_\d)?\}")


@dataclass(frozen=True, slots=True)
class Case:
    """One text and its correct label, or a text before and after a change and the expected effect: ``same``, ``up`` or ``down``."""

    texts: tuple[str, ...]
    wanted: str


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One test. ``kind`` is functionality, invariance or direction; ``wanted`` describes the expected behaviour."""

    name: str
    kind: str
    wanted: str
    cases: tuple[Case, ...]


def behaviours(file: Path = FILE, seed: int = SEED) -> tuple[Behaviour, ...]:
    """Generate the tests from the templates, at most CASES_MAX cases each. Equal seeds give equal cases."""
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    words: dict[str, list[str]] = content["words"]
    rngs = (random.Random(f"{seed}{test['name']}") for test in content["test"])  # noqa: S311 - no secret
    return tuple(_behaviour(test, words, rng) for test, rng in zip(content["test"], rngs, strict=True))


def texts(tests: Sequence[Behaviour]) -> list[str]:
    """Return the distinct texts of the tests, in order."""
    return list(dict.fromkeys(text for test in tests for case in test.cases for text in case.texts))


def applies_to(labels: Sequence[str]) -> bool:
    """Whether the tests apply to a model with these labels."""
    return {NEGATIVE, POSITIVE} <= set(labels)


def judge(test: Behaviour, found: Mapping[str, NDArray[np.float64]], labels: Sequence[str]) -> BehaviourFound:
    """Check answers against a test.

    Args:
        test: from ``behaviours``.
        found: the probabilities of every text of the test, in the order of ``labels``.
        labels: label names; they include ``negative`` and ``positive``.
    """
    failures: list[tuple[float, Failure]] = []
    positive = labels.index(POSITIVE)
    for case in test.cases:
        rows = [found[text] for text in case.texts]
        answers = [labels[int(row.argmax())] for row in rows]
        moved = float(rows[-1][positive] - rows[0][positive])
        failed = {
            "same": answers[0] != answers[-1],
            "up": moved < -MOVE_MAX,
            "down": moved > MOVE_MAX,
        }.get(case.wanted, answers[0] != case.wanted)
        if failed:
            scores = tuple(round(float(row.max()), 4) for row in rows)
            weight = abs(moved) if len(rows) == 2 else scores[0]
            failures.append((weight, Failure(texts=case.texts, wanted=case.wanted, answers=tuple(answers), scores=scores)))
    failures.sort(key=lambda pair: -pair[0])
    return BehaviourFound(
        name=test.name,
        kind=test.kind,
        wanted=test.wanted,
        cases=len(test.cases),
        failures=len(failures),
        examples=tuple(failure for _, failure in failures[:EXAMPLES_MAX]),
    )


def _behaviour(test: Mapping[str, Any], words: Mapping[str, Sequence[str]], rng: random.Random) -> Behaviour:  # TOML has no one type
    groups: list[list[Case]] = []
    for wanted in (POSITIVE, NEGATIVE):
        groups += [[Case((text,), wanted) for text in _filled(template, words)] for template in test.get(wanted, ())]
    for wanted, key in (("up", "up"), ("down", "down"), ("same", "pairs")):
        groups += [_paired(first, second, wanted, words) for first, second in test.get(key, ())]
    for template in test.get("texts", ()):
        if "swap" in test:
            groups.append(list(_swapped(template, test["swap"], words)))
        else:
            change = CHANGES[test["change"]]
            groups.append([Case((text, changed), "same") for text in _filled(template, words) if (changed := change(text, rng)) != text])
    return Behaviour(test["name"], test["kind"], test["wanted"], tuple(_drawn(groups, rng)))


def _drawn(groups: Sequence[list[Case]], rng: random.Random) -> Iterator[Case]:
    """Draw at most CASES_MAX cases, in turn from each template that has any left."""
    for group in groups:
        rng.shuffle(group)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*groups))
    seen = dict.fromkeys(case for case in turns if case is not None)
    return itertools.islice(seen, CASES_MAX)


def _filled(template: str, words: Mapping[str, Sequence[str]]) -> list[str]:
    """Fill the slots of a template with every combination of words."""
    slots = {found.group(): found.group(1) for found in SLOT.finditer(template)}
    choices = itertools.product(*(words[name] for name in slots.values()))
    return [_written(template, dict(zip(slots, chosen, strict=True))) for chosen in choices]


def _paired(first: str, second: str, wanted: str, words: Mapping[str, Sequence[str]]) -> list[Case]:
    """Fill two templates that share their slots with the same words."""
    return [Case((a, b), wanted) for a, b in (both.split("\0") for both in _filled(f"{first}\0{second}", words))]


def _swapped(template: str, slot: str, words: Mapping[str, Sequence[str]]) -> Iterator[Case]:
    """Pair each word of one slot with the next one; the other slots stay equal within a pair."""
    for first, second in itertools.pairwise([*words[slot], words[slot][0]]):
        befores, afters = (_filled(template.replace(f"{{{slot}}}", word), words) for word in (first, second))
        yield from (Case(pair, "same") for pair in zip(befores, afters, strict=True))


def _written(template: str, chosen: Mapping[str, str]) -> str:
    """Fill the slots, correct "a" to "an", and capitalise each part."""
    text = SLOT.sub(lambda found: chosen[found.group()], template)
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
    return "\0".join(part[:1].upper() + part[1:] for part in text.split("\0"))


def _change_final_punctuation(text: str, rng: random.Random) -> str:
    return text.rstrip(".!") + rng.choice(("", "!", "!!!", "..."))


CHANGES: Mapping[str, Callable[[str, random.Random], str]] = {"typos": typos, "casing": recase, "punctuation": _change_final_punctuation}
