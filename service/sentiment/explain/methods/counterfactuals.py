"""Searches for small sets of words that decide the answer, each verified on the served model. Pure.

Flip: words whose removal changes the answer (Martens and Provost 2014, "Explaining Data-Driven Document Classifications").
Keep: words that give the answer alone (Carter, Mueller, Jain and Gifford 2019, "What Made You Do This? Understanding Black-Box Decisions
with Sufficient Input Subsets").
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from sentiment.explain.methods.erasure import Answers, Enough, Floats, Masks, Steps, ranked, without
from sentiment.model.scores import probabilities

ROWS_BUDGET = 256
# Pairs are tried among the first 12 words: 66 rows, and all pairs of a short sentence.
PAIR_WORDS = 12
# Maximum prefixes of the ranking to try. More cost as much as shrinking and find nothing smaller.
PREFIXES = 32

Words = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """Result of a search. If nothing was found, ``words``, ``label`` and ``probability`` are None.

    ``words``: word indices, ascending. ``label``: the resulting answer; ``probability``: its calibrated probability. ``rows``: masks that
    the search ran. ``minimal``: the search tried to leave out each single word, and none can be. ``exhaustive_below``: all sets with fewer
    words were tried and none reaches the goal; if it equals the number of ``words``, no smaller set exists. ``stopped``: the budget or
    ``Enough`` ended the search, so a smaller set may exist.
    """

    words: Words | None
    label: int | None
    probability: float | None
    rows: int
    minimal: bool
    exhaustive_below: int
    stopped: bool


def flip(n: int, scores: Floats, label: int, temperature: float, answers: Answers, rows_budget: int = ROWS_BUDGET) -> Steps[Counterfactual]:
    """Search for the fewest words whose removal changes the answer from ``label`` to another.

    If ``label`` is not the answer: the fewest whose removal makes it the answer. The search removes words in the order of their scores
    until the answer changes, keeps only the words that are needed, then tries single words and pairs of the first words.

    Args:
        n: number of words of the text.
        scores: [n]; a larger score means more support for the label.
        label: index of the explained label.
        temperature: of the calibration.
        answers: known logits of this text.
        rows_budget: maximum number of new masks, at least 1. Masks with known logits are free.

    Raises:
        Enough: if thrown before the logits of the whole text are known. Later the best set so far is returned.
    """
    search = _Search(n, label, answers, rows_budget, erases=True)
    whole = yield from answers.ask(np.ones((1, n), np.bool_))
    search.wanted = int(whole[0].argmax()) != label
    yield from search.run(ranked(-scores if search.wanted else scores))
    return search.result(temperature)


def keep(n: int, scores: Floats, label: int, temperature: float, answers: Answers, rows_budget: int = ROWS_BUDGET) -> Steps[Counterfactual]:
    """Search for the fewest words that alone make ``label`` the answer; no words if the empty text does.

    Arguments and search as in ``flip``. Always returns a result when ``Enough`` is thrown, which may be that nothing was found.
    """
    search = _Search(n, label, answers, rows_budget, erases=False)
    yield from search.run(ranked(scores))
    return search.result(temperature)


class _Search:
    """Searches for the smallest set of words that reaches the goal. A stopped search keeps its best set.

    The words of a set are either erased or the only ones kept. The goal is that the label is then the answer (``wanted``), or is not.
    """

    def __init__(self, n: int, label: int, answers: Answers, rows_budget: int, erases: bool) -> None:
        self._n = n
        self._label = label
        self._answers = answers
        self._rows_before = answers.rows
        self._rows_budget = rows_budget
        self._erases = erases
        self.wanted = True
        self._best: Words | None = None
        self._minimal = False
        self._exhaustive_below = 0
        self._stopped = False

    def run(self, order: Sequence[int]) -> Steps[None]:
        """Search in the order of a word ranking. Keeps the best set on ``Enough`` and when the budget is used up."""
        try:
            yield from self._grow(order)
            yield from self._shrink()
            yield from self._try_small(order)
        except Enough:
            self._stopped = True

    def result(self, temperature: float) -> Counterfactual:
        """The best set so far."""
        rows = self._answers.rows - self._rows_before
        if self._best is None:
            return Counterfactual(None, None, None, rows, self._minimal, self._exhaustive_below, self._stopped)
        words = tuple(sorted(self._best))
        logits = self._answers.known(self._masks([words]))[0]
        label = int(logits.argmax())
        probability = probabilities(logits, temperature)[label]
        return Counterfactual(words, label, probability, rows, self._minimal, self._exhaustive_below, self._stopped)

    def _grow(self, order: Sequence[int]) -> Steps[None]:
        """Find the shortest prefix of the order that reaches the goal, among at most PREFIXES prefixes. ``_shrink`` removes the excess."""
        sizes = list(range(self._n + 1))
        if self._n >= PREFIXES:
            sizes = [0, *(int(size) for size in np.unique(np.geomspace(1, self._n, PREFIXES - 1).round()))]
        self._best = yield from self._first([tuple(order[:size]) for size in sizes])
        self._exhaustive_below = 0 if self._best == () else 1

    def _shrink(self) -> Steps[None]:
        """Drop words from the best set, the last of the order first, until each remaining word is needed."""
        while self._best is not None and not self._minimal:
            best = self._best
            words = best[::-1]
            reached = yield from self._ask([_less(best, {word}) for word in words])
            if len(reached) < len(words):
                raise Enough
            spare = [word for word, reaches in zip(words, reached, strict=True) if reaches]
            self._minimal = not spare
            if spare:
                self._best = _less(best, {spare[0]})
                # Words that can be left out one by one can mostly be left out together, which saves rounds.
                together = [_less(best, set(spare[:count])) for count in range(len(spare), 1, -1)]
                self._best = (yield from self._first(together)) or self._best

    def _try_small(self, order: Sequence[int]) -> Steps[None]:
        """Try single words, then pairs of the first words, as long as the best set is larger."""
        for size, among in ((1, order), (2, order[:PAIR_WORDS])):
            if self._best is not None and len(self._best) <= size:
                return
            found = yield from self._first(list(combinations(among, size)))
            if found:
                # All smaller sets have failed.
                self._best, self._minimal = found, True
                return
            if len(among) == self._n:
                self._exhaustive_below = size + 1

    def _first(self, sets: Sequence[Words]) -> Steps[Words | None]:
        """The first of the sets that reaches the goal. Runs them in batches."""
        for start in range(0, len(sets), self._answers.rows_max):
            part = sets[start : start + self._answers.rows_max]
            reached = yield from self._ask(part)
            if any(reached):
                return part[reached.index(True)]
            if len(reached) < len(part):
                raise Enough
        return None

    def _ask(self, sets: Sequence[Words]) -> Steps[list[bool]]:
        """Whether each set reaches the goal; only for the leading sets if the budget is too small for all."""
        masks = self._masks(sets)
        count = self._answers.affordable(masks, self._rows_budget - (self._answers.rows - self._rows_before))
        if not count:
            return []
        logits = yield from self._answers.ask(masks[:count])
        return [(int(row.argmax()) == self._label) is self.wanted for row in logits]

    def _masks(self, sets: Sequence[Words]) -> Masks:
        masks = without(self._n, sets)
        return masks if self._erases else ~masks


def _less(words: Words, left_out: Set[int]) -> Words:
    return tuple(word for word in words if word not in left_out)
